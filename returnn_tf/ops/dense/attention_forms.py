"""Which form attention of all frames at once has: the native op, where it pays, or an array of all energies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Optional

from returnn_tf.native.attention import attention_ops, native_attention
from returnn_tf.native.trials.measured import pays
from returnn_tf.native.trials.trial import Case, Size, Trial, draw, ragged
from returnn_tf.ops.dense.attention import left_only_mask, product_sum
from returnn_tf.ops.frames.positions import by_distance
from returnn_tf.ops.softmax import masked_softmax
from returnn_tf.util.custom_gradient import register_once
from returnn_tf.util.lazy_tf import tf

#: Numbers of a key below which rounding takes longer on a CPU than it saves.
_LEAST_ROUNDED = 32


def usable_attention_ops(
    key_size: int, *, with_table: bool = False, product_dtype: Optional[str] = None
) -> Optional[Any]:
    """Return the native ops for float32, or None if the form in TensorFlow is used.

    On CPUs they are faster, in float32, too, than an array of all energies from products of fewer digits. GPUs have
    products of factors that are rounded to bfloat16.

    :param key_size: of a head
    :param with_table: whether the keys differ by distance
    :param product_dtype: see `Semantics`
    """
    trial = ATTENTION_BY_DISTANCE_TRIAL if with_table else ATTENTION_TRIAL
    dtype = tf.as_dtype(product_dtype or "float32")
    if dtype.name not in trial.dtypes and tf.config.get_visible_devices("GPU"):
        return None
    ops = attention_ops()
    if ops:
        register_once(RtfAttentionGrad=_gradient_of_gradient)
    return ops if ops and pays(trial, key_size, dtype) else None


def rounds_factors(key_size: int, product_dtype: Optional[str]) -> bool:
    """Return whether the native op rounds the factors of its products to bfloat16, see `native_attention`.

    :param key_size: of a head
    :param product_dtype: see `Semantics`
    """
    pays_here = key_size >= _LEAST_ROUNDED or bool(tf.config.get_visible_devices("GPU"))
    return product_dtype == "bfloat16" and pays_here


def attention_by_energies(
    parts: Sequence[Any],
    *,
    scale: float,
    lengths: Optional[Any] = None,
    causal: bool = False,
    table: Optional[Any] = None,
    dropout: float = 0.0,
    seed: Optional[Any] = None,
    product_dtype: Optional[str] = None,
    generator: Optional[Sequence[Any]] = None,
) -> Any:
    """Compute what `native_attention` does in TensorFlow.

    :param parts: queries, keys and values; with a table there are as many queries as keys
    :param product_dtype: see `Semantics`
    :param generator: key and counter instead of a seed
    """
    q, k, v = parts
    q, keys = q * scale, tf.shape(k)[1]
    energies = product_sum([(q, "bthd"), (k, "bshd")], "bhts", product_dtype=product_dtype)
    if table is not None:
        by_row = product_sum([(q, "bthd"), (table, "cd")], "bhtc", product_dtype=product_dtype)
        energies += by_distance(by_row, keys, table.shape[0] // 2)
    mask = None if lengths is None else tf.sequence_mask(lengths, keys)[:, None, None]
    y = masked_softmax(energies, left_only_mask(keys) if causal else mask)
    if dropout:
        if generator is None:
            numbers = tf.random.stateless_uniform(tf.shape(y), seed)
        else:
            key, counter = generator
            numbers = tf.raw_ops.StatelessRandomUniformV2(shape=tf.shape(y), key=key, counter=counter, alg=1)
        y *= tf.cast(numbers >= dropout, y.dtype) * (1.0 / (1.0 - dropout))
    return product_sum([(y, "bhts"), (v, "bshd")], "bthd", product_dtype=product_dtype)


def _gradient_of_gradient(op: Any, *weights: Any) -> list[Any]:
    """Differentiate the weighted sum of the gradients of the parts and the table, by the form in TensorFlow.

    :param op: RtfAttentionGrad
    :param weights: of its results
    """
    n, key_size = op.get_attr("n"), op.get_attr("key_size")
    parts, (lengths, table, key, counter, _, _, dy) = list(op.inputs)[:n], list(op.inputs)[n:]
    has_table = table.shape[0] != 0
    inputs, factors = [*parts, *([table] if has_table else [])], list(weights[:n])
    if has_table:  # the gradients for the table are summed over sequences and heads, so their weights are the same
        factors.append(tf.math.divide_no_nan(
            tf.reduce_sum(weights[n], axis=[0, 1]), tf.cast(tf.reduce_prod(tf.shape(weights[n])[:2]), tf.float32)
        ))  # fmt: skip
    with tf.GradientTape() as outer:
        outer.watch([dy, *inputs])
        with tf.GradientTape() as inner:
            inner.watch(inputs)
            split = parts if n == 3 else tf.split(parts[0], [key_size, key_size, parts[0].shape[-1] - 2 * key_size], -1)
            y = attention_by_energies(
                split, scale=op.get_attr("scale"), lengths=None if lengths.shape[0] == 0 else lengths,
                causal=op.get_attr("causal"), table=table if has_table else None, dropout=op.get_attr("dropout"),
                generator=(key, counter), product_dtype="bfloat16" if op.get_attr("rounded") else None,
            )  # fmt: skip
        first = inner.gradient(y, inputs, output_gradients=dy, unconnected_gradients="zero")
        total = tf.add_n([tf.reduce_sum(a * b) for a, b in zip(first, factors)])
    ddy, *found = outer.gradient(total, [dy, *inputs], unconnected_gradients="zero")
    return [*found[:n], None, found[n] if has_table else None, None, None, None, None, ddy]


#: Frames of a sequence of a trial, for each one of other trials; heads; clipping of distances.
_LONGER, _HEADS, _CLIPPING = 4, 2, 16


def _case(with_table: bool, size: Size) -> Case:
    frames, width = _LONGER * size.frames, size.width
    shapes: list[tuple[int, ...]] = [(size.batch, frames, _HEADS, width)] * 3
    shapes += [(2 * _CLIPPING + 1, width)] * with_table
    options = {"scale": width**-0.5, "lengths": _LONGER * ragged(size), "dropout": 0.1, "seed": (1, 2)}
    low = None if size.dtype == "float32" else size.dtype

    def native(ops: Any, q: Any, k: Any, v: Any, table: Optional[Any] = None) -> list[Any]:
        return [native_attention(ops, (q, k, v), width, table=table, rounded=low == "bfloat16", **options)]

    def plain(q: Any, k: Any, v: Any, table: Optional[Any] = None) -> list[Any]:
        y = attention_by_energies((q, k, v), table=table, product_dtype=low, **options)
        return [tf.cast(y, tf.float32)]

    return Case(draw(*((1.0, shape) for shape in shapes)), native, plain)


_DTYPES = ("float32", "bfloat16")
ATTENTION_TRIAL = Trial(
    "attention", "attention", __name__, "ATTENTION_TRIAL", partial(_case, False), "numbers of a key", (32, 64, 128),
    _DTYPES,
)  # fmt: skip
ATTENTION_BY_DISTANCE_TRIAL = Trial(
    "attention by distance", "attention", __name__, "ATTENTION_BY_DISTANCE_TRIAL", partial(_case, True),
    "numbers of a key", (32, 64), _DTYPES,
)  # fmt: skip
