"""Operations whose kernels can't deal with empty tensors: one entry is appended before, and cut off after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

from returnn_tf.native.portable import in_portable_ops
from returnn_tf.ops.frames.pad import pad_axis
from returnn_tf.ops.frames.shape import size_of, with_sizes
from returnn_tf.util.lazy_tf import tf

#: From the number of entries of an axis to that of a result.
End = Callable[[Any], Any]


def without_empty_axes(x: Any, ends: Sequence[Optional[End]], run: Callable[[Any], Any]) -> Any:
    """Run an operation on [N, others..., channels] so that its kernels get no empty axis of a size known to runs only.

    oneDNN's kernels, which TensorFlow takes on CPUs with AVX-512, give the convolution of an empty tensor the shape of
    the input, and end the process in the gradient of its maxima (2.16). Where nothing is empty, nothing is copied.

    :param ends: for each of the others; None: the operation can deal with an empty one, and defines what comes of it
    :param run: [N, others..., channels] -> [N, others'..., channels']
    """
    if in_portable_ops():  # kernels of other runtimes know empty tensors
        return run(x)
    kept = [size_of(x, 0), *(None if end is None else size_of(x, i + 1) for i, end in enumerate(ends))]
    kept = [None if isinstance(size, int) else size for size in kept]
    y = run(_with_entries(x, kept))
    return cut(y, [kept[0], *(n if n is None or end is None else end(n) for n, end in zip(kept[1:], ends))])


def _with_entries(x: Any, sizes: Sequence[Any]) -> Any:
    """Append a zero to each empty axis of [N, others..., channels] that is named.

    :param sizes: of the axes but the last; None: not named
    """
    named = [size is not None for size in sizes]
    if not any(named):
        return x
    pads = [(0, none_or_more(1 - size) if is_named else 0) for size, is_named in zip(sizes, named)]
    y = tf.pad(x, [*pads, (0, 0)])
    return with_sizes(y, [None if is_named else size for size, is_named in zip(x.shape, [*named, False])])


def cut(y: Any, ends: Sequence[Any]) -> Any:
    """Keep the first entries of the first axes; None: all, as of further axes."""
    if all(end is None for end in ends):
        return y
    # Unlike that of a strided slice, the gradient of this copies nothing if nothing is cut.
    sizes = [-1 if end is None else end for end in ends] + [-1] * (y.shape.rank - len(ends))
    first = tf.slice(y, [0] * y.shape.rank, tf.stack(sizes))
    return with_sizes(
        first, [None if end is not None else size for end, size in zip(ends, y.shape)] + list(y.shape[len(ends) :])
    )


def at_least_one(x: Any, axis: int) -> Any:
    """Append a zero to an axis without entries, so that there is one to read; one with entries is not copied."""
    return pad_axis(x, axis, 0, none_or_more(1 - size_of(x, axis)))


def none_or_more(count: Any) -> Any:
    """Return a count, or 0 if it is negative; an int or a scalar."""
    return max(count, 0) if isinstance(count, int) else tf.maximum(count, 0)
