"""What follows a product: bias, activation, dropout, residual connection, fused where a native op can.

In training, an op of its own does so, otherwise the native op of the product, if there is one. The functions look at
the op that made their argument: dropout of an activation, a residual connection around a dropout, or an activation of
what is normalised over the batch, becomes one op over both. The op that was emitted before is not run unless something
else reads its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

from returnn_tf.native.after_product import AfterProduct
from returnn_tf.native.decoding.search import PackedMatrix
from returnn_tf.native.dispatch import LEAST_WIDTH, form, plain_form
from returnn_tf.native.fused.activate import FUNCTIONS, Dropout, activate_ops, native_activate, native_gate
from returnn_tf.native.fused.activate_gradients import Call
from returnn_tf.native.fused.batch_norm import batch_norm_ops, followed_by
from returnn_tf.native.int8 import int8_ops, native_int8_product
from returnn_tf.native.trials.measured import pays
from returnn_tf.native.trials.trial import Case, Size, Trial, draw
from returnn_tf.ops.activations import get_activation
from returnn_tf.util.lazy_tf import tf


def _ops_after_batch_norm(x: Any, bias: Optional[Any], activation: Any) -> Optional[Any]:
    normed = bias is None and _native_function(activation) is not None and _origin(x) == "RtfBatchNorm"
    return batch_norm_ops() if normed and x.op.get_attr("function") == b"identity" else None


@form(
    lambda ops, x, bias, activation: followed_by(ops, x.op, _native_function(activation) or ""),
    where=_ops_after_batch_norm,
)
@form(
    lambda ops, x, bias, activation: native_activate(ops, x, function=_native_function(activation) or "", bias=bias),
    where=lambda x, bias, activation: (
        _ops_for(x, ACTIVATE_TRIAL) if _native_function(activation) not in (None, "identity") else None
    ),
)
def bias_and_activation(x: Any, bias: Optional[Any], activation: Any) -> Any:
    """Compute ``activation(x + bias)``, in the same way as `get_activation` to 1e-5.

    :param x: [..., width]
    :param bias: [width]
    :param activation: see `returnn_tf.ops.activations.check_activation`
    """
    if bias is not None:
        x = tf.nn.bias_add(x, bias) if x.shape.rank is not None and x.shape.rank > 1 else x + bias
    return get_activation(activation)(x)


def _gate_ops(x: Any, axis: int, activation: Any, gate_activation: Any, *, train: bool, **_: Any) -> Any:
    known = _native_function(activation) is not None and _native_function(gate_activation) is not None
    return _ops_for(x, GATE_TRIAL) if train and known and axis == x.shape.rank - 1 else None


def _native_gate(ops: Any, x: Any, axis: int, activation: Any, gate_activation: Any, **_: Any) -> Any:
    return native_gate(ops, x, _native_function(activation) or "", _native_function(gate_activation) or "")


@form(_native_gate, where=_gate_ops)
def gated(x: Any, axis: int, activation: Any, gate_activation: Any, *, train: bool) -> Any:
    """Compute ``activation(a) * gate_activation(b)`` of the halves of an axis.

    :param train: else the graph may be exported, and needs no library for this
    """
    a, b = tf.split(x, 2, axis=axis)
    return get_activation(activation)(a) * get_activation(gate_activation)(b)


NoiseShape = Optional[Sequence[Any]]


def _drop_entries(
    ops: Any, x: Any, rate: float, seed: Any, noise_shape: NoiseShape = None, rows: Optional[Any] = None
) -> Any:
    """Compute `dropout` where each entry has its own number, together with what made x."""
    function, x, bias, factors = _before(x)
    return native_activate(ops, x, function=function, bias=bias, factors=factors, dropout=Dropout(rate, seed, rows))


def _drop_columns(
    ops: Any, x: Any, rate: float, seed: Any, noise_shape: NoiseShape = None, rows: Optional[Any] = None
) -> Any:
    """Compute `dropout` where each column has one number, together with what made x."""
    mask = tf.reshape(_mask(x, rate, seed, noise_shape, rows), [-1])
    function, x, bias, factors = _before(x)
    return native_activate(ops, x, function=function, bias=bias, factors=mask if factors is None else mask * factors)


@form(
    _drop_entries,
    where=lambda x, rate, seed, noise_shape=None, rows=None: (
        _ops_for(x, ACTIVATE_TRIAL) if noise_shape is None else None
    ),
)
@form(
    _drop_columns,
    where=lambda x, rate, seed, noise_shape=None, rows=None: (
        _ops_for(x, ACTIVATE_TRIAL) if _is_of_columns(noise_shape, x) else None
    ),
)
def dropout(x: Any, rate: float, seed: Any, noise_shape: NoiseShape = None, rows: Optional[Any] = None) -> Any:
    """Set entries to zero with the probability ``rate``, below 1, and scale the others by ``1 / (1 - rate)``.

    The numbers are those of `tf.random.stateless_uniform` in every form.

    :param seed: int [2]
    :param noise_shape: sizes of the mask, 1 where it is shared; None: each entry has its own number
    :param rows: numbers of the rows, ascending, if they are some of a larger tensor, int64 [rows]; without noise_shape
    """
    return x * _mask(x, rate, seed, noise_shape, rows)


def _mask(x: Any, rate: float, seed: Any, noise_shape: NoiseShape, rows: Optional[Any]) -> Any:
    shape = tf.shape(x) if noise_shape is None else tf.stack([tf.cast(size, tf.int32) for size in noise_shape])
    numbers = tf.random.stateless_uniform(shape, seed) if rows is None else _of_rows(rows, seed, shape)
    # The same mask in any precision; numbers of few digits would round the rate.
    return tf.cast(numbers >= rate, x.dtype) * (1.0 / (1.0 - rate))


#: Native ops of products -> the same product with something else after it.
_PRODUCTS: dict[str, Callable[[Any, AfterProduct], Any]] = {
    "RtfPackedProduct": lambda op, after: PackedMatrix.of(op).product(op.inputs[0], after),
    "RtfInt8Product": lambda op, after: native_int8_product(int8_ops(), *op.inputs[:3], after=after),
}


def continued_product(x: Any, **part: Any) -> Optional[Any]:
    """Compute what follows a product in its op; None if no such op made x, or it cannot do that.

    The product is computed again if something else reads x.

    :param part: see `AfterProduct.followed_by`
    """
    again = _PRODUCTS.get(_origin(x) or "")
    after = None if again is None else AfterProduct.of(x.op).followed_by(**part)
    return None if again is None or after is None else again(x.op, after)


def add(a: Any, b: Any) -> Any:
    """Compute ``a + b`` for tensors of the same shape, in one pass with the bias, activation or dropout before it."""
    for x, residual in ((b, a), (a, b)):
        if residual.dtype != x.dtype or _origin(x) not in ("BiasAdd", "RtfActivate"):
            continue
        ops = _ops_for(x, ACTIVATE_TRIAL)
        if ops is None:
            continue
        if x.op.type == "BiasAdd":
            return native_activate(ops, x.op.inputs[0], bias=x.op.inputs[1], residual=residual)
        call = Call.of(x.op)
        if not call.residual:
            return call.again(ops, x.op.inputs[0], residual)
    return a + b


def _of_rows(rows: Any, seed: Any, shape: Any) -> Any:
    """Return the random numbers of some rows of a larger tensor.

    :param shape: [..., width] of the rows
    """
    count = tf.reduce_sum(rows[-1:] + 1)
    whole = tf.random.stateless_uniform(tf.stack([count, tf.cast(shape[-1], tf.int64)]), seed)
    return tf.reshape(tf.gather(whole, rows), shape)


def _native_function(activation: Any) -> Optional[str]:
    if activation is not None and not isinstance(activation, str):
        return None
    return FUNCTIONS.get(activation.strip().lower() if activation else None)


def _ops_for(x: Any, trial: Trial) -> Optional[Any]:
    """Return the ops if they have kernels for the tensor, and it is not too narrow to be worth compiling them."""
    fits = x.dtype == tf.float32 and x.shape.rank and (x.shape[-1] or LEAST_WIDTH) >= LEAST_WIDTH
    ops = activate_ops() if fits else None
    return ops if ops is not None and pays(trial, x.shape[-1], x.dtype) else None


def _is_of_columns(noise_shape: NoiseShape, x: Any) -> bool:
    """Return whether a mask has one number for each entry of the last axis."""
    sizes = list(noise_shape or ())
    return (
        x.shape.rank is not None
        and all(isinstance(size, int) for size in sizes)
        and sizes == [1] * (x.shape.rank - 1) + [x.shape[-1]]
    )


def _origin(x: Any) -> Optional[str]:
    """Return the type of the op that made a tensor in this graph, or None."""
    if tf.executing_eagerly() or getattr(x, "graph", None) is not tf.compat.v1.get_default_graph():
        return None
    if x.op.type == "BiasAdd" and x.op.get_attr("data_format") != b"NHWC":
        return None  # its bias is not along the last axis
    return str(x.op.type)


def _before(x: Any) -> tuple[str, Any, Optional[Any], Optional[Any]]:
    """Return function, argument, bias and factors whose result is x: of the op that made it if dropout may follow."""
    origin = _origin(x)
    if origin == "BiasAdd":
        return "identity", x.op.inputs[0], x.op.inputs[1], None
    if origin == "RtfActivate":
        call = Call.of(x.op)
        if not call.random and not call.residual:
            bias, factors = (found[0] if found else None for found in (call.bias, call.factors))
            return call.function, x.op.inputs[0], bias, factors
    return "identity", x, None, None


def _case(size: Size) -> Case:
    frames, rate, seed = (size.frames, size.batch, size.width), 0.1, [3, 5]
    inputs = draw((1.0, frames), (1.0, frames[-1:]), (1.0, frames))

    def native(ops: Any, x: Any, bias: Any, residual: Any) -> list[Any]:
        drop = Dropout(rate, tf.constant(seed))
        hidden = [native_activate(ops, x, function=function, bias=bias, dropout=drop) for function in ("relu", "swish")]
        return [*hidden, native_activate(ops, x, bias=bias, dropout=drop, residual=residual)]

    def plain(x: Any, bias: Any, residual: Any) -> list[Any]:
        drop, activated = plain_form(dropout), plain_form(bias_and_activation)
        hidden = [drop(activated(x, bias, function), rate, tf.constant(seed)) for function in ("relu", "swish", None)]
        return [*hidden[:2], residual + hidden[2]]

    return Case(inputs, native, plain)


def _gate_case(size: Size) -> Case:
    inputs = draw((1.0, (size.frames, size.batch, 2 * (size.width // 2))))

    def plain(x: Any) -> list[Any]:
        return [plain_form(gated)(x, 2, None, "sigmoid", train=True)]

    return Case(inputs, lambda ops, x: [native_gate(ops, x, "identity", "sigmoid")], plain)


ACTIVATE_TRIAL: Trial = Trial(
    "activation and dropout", "activate", __name__, "ACTIVATE_TRIAL", _case, "features", (128, 512, 2048)
)
GATE_TRIAL = Trial(
    "gated units", "activate", __name__, "GATE_TRIAL", _gate_case, "features of both halves", (256, 1024, 4096)
)
