"""Loops, and the values that they write in each step, for all steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

from returnn_tf.graph.lowering import Lowering
from returnn_tf.native.portable import in_portable_ops
from returnn_tf.ops.frames.stacked import first_entries, stacked
from returnn_tf.ops.xla import xla_limit
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


def run_loop(go_on: Callable[..., Any], body: Callable[..., Any], start: Sequence[Any], limit: Any) -> Any:
    """Run `tf.while_loop`.

    :param limit: the maximum number of steps, which ``go_on`` must respect as well
    """
    # The limit speeds up the backward pass. The converter to ONNX takes a constant one for int64, also in the body.
    limit = xla_limit(limit) if in_portable_ops() else limit
    return tf.while_loop(go_on, body, tuple(start), maximum_iterations=limit)


#: A loop that ends by itself may have a limit far beyond its steps, such as 2**31 - 1. Above this one its arrays grow
#: with the steps, since TensorFlow ends the process where it can't allocate all entries at once.
_MOST_RESERVED = 10_000


class StackedResult:
    """A value that a loop writes in each step, in one array that is stacked at its end.

    :param dtype: of an entry
    :param sizes: of an entry: ints or int32 scalars; None where it is not known before the loop
    :param limit: the maximum number of steps
    :param is_full: whether there are always that many steps
    """

    def __init__(self, dtype: tf.DType, sizes: list[Any], limit: Any, *, is_full: bool) -> None:
        self._sizes, self._is_full = sizes, is_full
        #: To be written in each step at the index of the step.
        # Growing costs time in the backward pass, and XLA and ONNX have no arrays that grow.
        grows = not is_full and not in_portable_ops() and (_static(limit) or 0) > _MOST_RESERVED
        size = _MOST_RESERVED if grows else limit
        self.array = tf.TensorArray(dtype, size=size, dynamic_size=grows, element_shape=[_static(n) for n in sizes])

    def all_steps(self, array: Any, count: Any) -> Any:
        """Return the written values.

        :param array: `array` at the end of the loop
        :param count: the number of steps, int32 scalar
        :return: [steps, ...]
        """
        known = [-1 if size is None else size if _static(size) is None else _static(size) for size in self._sizes]
        if self._is_full or in_portable_ops():
            values = stacked(array, known)
            # Other formats can't gather. There, the array has just the entries that were written.
            return values if self._is_full else values[:count]
        return first_entries(array, count, known)


def sizes_before(lowering: Lowering, data: Data, beam: int) -> list[Any]:
    """Return the sizes of the value of a step, None where they are not known before the loop.

    :param lowering: outside of the loop
    :param beam: hypotheses per sequence
    """
    sizes: list[Any] = list(data.static_shape)
    for axis, dim in enumerate(data.dims):
        if dim.is_batch and dim.expr is None and dim not in lowering.dims.sizes:
            sizes[axis] = lowering.dims.batch_size * beam
        elif sizes[axis] is None and not dim.is_batch:
            sizes[axis] = lowering.dims.sizes.get(dim)
    return sizes


def _static(size: Any) -> Optional[int]:
    """Return a size as an int if it is known while tracing."""
    if size is None or isinstance(size, int):
        return size
    value = tf.get_static_value(size)
    return None if value is None else int(value)
