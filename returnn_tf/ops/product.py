"""Products of features with a matrix of weights, and what follows them in a layer: bias and activation."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

from returnn_tf.native.dispatch import form
from returnn_tf.native.portable import in_portable_ops
from returnn_tf.native.product import ops_for_frames, product_of_frames
from returnn_tf.ops.activations import get_activation, may_reduce
from returnn_tf.ops.after_product import bias_and_activation, continued_product
from returnn_tf.ops.mixed_precision import full, reduced
from returnn_tf.ops.rounded import RoundedMatrix, RowProduct
from returnn_tf.util.known_shapes import as_rows, with_frames_of
from returnn_tf.util.lazy_tf import tf


class Matrix(NamedTuple):
    """Weights.

    :param values: [in, out], or [out, in] if ``transposed``; None: only rounded ones are stored
    :param packed: the same in the order of a native op for few rows, or rounded, or in a step of a loop; None: none of
        these
    """

    values: Any
    transposed: bool = False
    packed: Optional[RowProduct] = None

    def rows(self, labels: Any) -> Any:
        """Look up a row [out] for each label."""
        if isinstance(self.packed, RoundedMatrix):
            return self.packed.rows(labels)
        return tf.gather(tf.transpose(self.values) if self.transposed else self.values, labels)


def _is_of_rows(x: Any, axis: int) -> bool:
    return bool(x.shape.rank == 2 and axis in (1, -1))


def _ops_for(x: Any, w: Matrix, axis: int, train: bool, product_dtype: Optional[str]) -> Any:
    return train and axis in (x.shape.rank - 1, -1) and ops_for_frames(x, w.values, product_dtype)


def _over_last(x: Any, axis: int) -> Any:
    """Move an axis to the end."""
    rank = x.shape.rank
    return x if axis in (-1, rank - 1) else tf.transpose(x, [*(i for i in range(rank) if i != axis), axis])


def _by_rows(x: Any, w: Matrix, axis: int, train: bool) -> bool:
    """Return whether `_product_of_rows` applies: to graphs that are trained, since exports expect a tensordot."""
    last = axis in (x.shape.rank - 1, -1)
    return bool(train and last and not w.transposed and w.values.shape[0] and not in_portable_ops())


def _product_of_rows(x: Any, w: Any) -> Any:
    """Compute the tensordot over the last axis by the same product with fewer ops, which count in deep networks."""
    depth, width = w.shape
    return with_frames_of(x, tf.matmul(as_rows(x, depth), w), depth, width)


def _of_reduced(low: str, x: Any, w: Matrix, axis: int = -1, *, train: bool, **_: Any) -> Any:
    w = w._replace(values=reduced(w.values, low))
    return product(reduced(x, low), w, axis, train=train, product_dtype=None)


@form(
    lambda _, x, w, axis=-1, **__: w.packed.product(_over_last(x, axis)),
    where=lambda x, w, axis=-1, **_: isinstance(w.packed, RoundedMatrix),
)
@form(
    lambda packed, x, *_, **__: packed.product(x),
    where=lambda x, w, axis=-1, **_: _is_of_rows(x, axis) and w.packed,
)
@form(
    lambda ops, x, w, *_, product_dtype, **__: product_of_frames(
        ops, x, w.values, transposed=w.transposed, rounded=product_dtype is not None
    ),
    where=lambda x, w, axis=-1, *, train, product_dtype: _ops_for(x, w, axis, train, product_dtype),
)
@form(_of_reduced, where=lambda x, w, axis=-1, *, train, product_dtype: product_dtype)
@form(  # TensorFlow fuses it with the bias and the activation, which it does not do for tensordot
    lambda _, x, w, *__, **___: tf.matmul(x, w.values, transpose_b=w.transposed),
    where=lambda x, w, axis=-1, **_: _is_of_rows(x, axis) and not in_portable_ops(),
)
@form(
    lambda _, x, w, *__, **___: _product_of_rows(x, w.values),
    where=lambda x, w, axis=-1, *, train, **_: _by_rows(x, w, axis, train),
)
def product(x: Any, w: Matrix, axis: int = -1, *, train: bool, product_dtype: Optional[str]) -> Any:
    """Return the product over an axis of x, which becomes the last one.

    :param train: other graphs, which may be exported, need no library for many frames
    :param product_dtype: type of the factors, see `Semantics`
    :return: of that type, or float32 if the native op computes it
    """
    return tf.tensordot(x, w.values, [[axis], [1 if w.transposed else 0]])


def dense(
    xw: Any,
    bias: Optional[Any],
    activation: Any,
    *,
    train: bool,
    product_dtype: Optional[str],
    on_sum: Optional[Callable[[Any], Any]] = None,
) -> tuple[Any, Any]:
    """Compute ``xw + bias`` and ``activation(xw + bias)``.

    :param xw: a `product`, or rows that were looked up
    :param bias: [width]
    :param activation: see `returnn_tf.ops.activations.check_activation`
    :param train: else the graph may be exported, and needs no library for this
    :param product_dtype: see `Semantics`
    :param on_sum: function of the sum, whose result replaces it
    """
    fuses = train and on_sum is None
    y, bias = xw, bias if bias is None else tf.cast(bias, xw.dtype)
    if bias is not None:
        y = bias_and_activation(xw, bias, None) if fuses else _with_bias(xw, bias)
    if on_sum is not None:
        y = on_sum(y)
    if activation is None:
        return y, y
    if activation == "relu":
        positive = continued_product(y, relu=True)
        if positive is not None:
            return y, positive
    if not may_reduce(activation):
        return y, get_activation(activation)(full(y, product_dtype))
    return y, bias_and_activation(xw, bias, activation) if fuses else get_activation(activation)(y)


def _with_bias(xw: Any, bias: Any) -> Any:
    y = continued_product(xw, bias=bias)
    return xw + bias if y is None else y
