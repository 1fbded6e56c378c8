"""Native attention: the same as products and a softmax over all keys, with gradients; what it refuses."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf.native.attention import attention_ops, native_attention
from returnn_tf.native.portable import portable_ops
from returnn_tf.ops.softmax import masked_softmax
from returnn_tf.util.lazy_tf import tf
from tests.native.attention_cases import CASES, SIZES


@pytest.fixture(scope="module")
def ops() -> Any:
    found = attention_ops()
    assert found is not None, "the native attention has to compile where the tests run"
    return found


def plain(
    parts: Any, size: int, *, scale: float, lengths: Any = None, causal: bool = False, table: Any = None,
    dropout: float = 0.0, seed: Any = None,
) -> Any:  # fmt: skip
    """Return the same with an array of all energies."""
    q, k, v = parts if len(parts) == 3 else tf.split(parts[0], [size, size, parts[0].shape[-1] - 2 * size], -1)
    keys, queries = tf.range(tf.shape(k)[1]), tf.range(tf.shape(q)[1])
    energies = tf.einsum("bthd,bshd->bhts", scale * q, k)
    if table is not None:
        clipping = table.shape[0] // 2
        rows = tf.clip_by_value(keys - queries[:, None], -clipping, clipping) + clipping
        energies += tf.einsum("bthd,tsd->bhts", scale * q, tf.gather(table, rows))
    mask = None if lengths is None else (keys < lengths[:, None])[:, None, None]
    if causal:
        mask = keys <= queries[:, None]
    weights = masked_softmax(energies, mask)
    if dropout:
        keep = tf.random.stateless_uniform(tf.shape(weights), seed) >= dropout
        weights *= tf.cast(keep, tf.float32) / (1 - dropout)
    return tf.einsum("bhts,bshd->bthd", weights, v)


def with_gradients(function: Any, inputs: Any) -> list[Any]:
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = function(*inputs)
        loss = tf.reduce_sum(y * tf.reshape(tf.sin(tf.cast(tf.range(tf.size(y)), tf.float32)), tf.shape(y)))
    return [y, *map(tf.convert_to_tensor, tape.gradient(loss, inputs))]


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.RandomState(1)
    return [tf.constant(rng.normal(0, 1, shape), tf.float32) for shape in shapes]


@pytest.mark.parametrize("frames,heads,size,value", SIZES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_forms_agree(ops: Any, case: str, frames: int, heads: int, size: int, value: int) -> None:
    """Of all three in one array."""
    options = dict(CASES[case])
    clipping = options.pop("clipping", None)
    if "lengths" in options:
        options["lengths"] = tf.constant(options["lengths"])
    inputs = arrays((3, frames, heads, 2 * size + value), *([] if clipping is None else [(2 * clipping + 1, size)]))
    options["scale"] = size**-0.5
    if "dropout" in options:
        options["seed"] = tf.constant([3, 2**41 + 7], tf.int64)

    def native(x: Any, table: Any = None) -> Any:
        return native_attention(ops, [x], size, table=table, **options)

    def by_ops(x: Any, table: Any = None) -> Any:
        return plain([x], size, table=table, **options)

    for a, b in zip(with_gradients(native, inputs), with_gradients(by_ops, inputs)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * float(tf.reduce_max(tf.abs(b))))


def test_fewer_queries_than_keys(ops: Any) -> None:
    """Apart, as an encoder and a decoder give them; and no queries or sequences at all."""
    lengths = tf.constant([70, 3])
    for shapes in [((2, 5), (2, 70)), ((2, 0), (2, 70)), ((0, 5), (0, 3))]:
        inputs = arrays(*((*shape, 2, 6) for shape in (shapes[0], shapes[1], shapes[1])))
        options = {"scale": 0.5, "lengths": lengths[: shapes[0][0]]}
        sides = [lambda *x: native_attention(ops, x, 6, **options), lambda *x: plain(x, 6, **options)]  # noqa: B023
        for a, b in zip(*(with_gradients(side, inputs) for side in sides)):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_padding_is_not_read(ops: Any) -> None:
    """Also if it is not a number."""
    q, k, v = arrays((2, 4, 1, 3), (2, 9, 1, 3), (2, 9, 1, 3))
    lengths = tf.constant([5, 9])
    good = with_gradients(lambda *x: native_attention(ops, x, 3, scale=1.0, lengths=lengths), [q, k, v])
    padding = tf.where(tf.sequence_mask(lengths, 9), 0.0, np.nan)[..., None, None]
    bad = with_gradients(
        lambda *x: native_attention(ops, x, 3, scale=1.0, lengths=lengths), [q, k + padding, v + padding]
    )
    for a, b in zip(good, bad):
        np.testing.assert_array_equal(a, b)


def test_nan_stays(ops: Any) -> None:
    """For the checks of the training."""
    q, k, v = arrays((1, 20, 1, 3), (1, 20, 1, 3), (1, 20, 1, 3))
    q = tf.tensor_scatter_nd_update(q, [[0, 7, 0, 1]], [np.nan])
    y, *gradients = with_gradients(lambda *x: native_attention(ops, x, 3, scale=1.0), [q, k, v])
    assert np.isnan(y[0, 7]).all() and not np.isnan(y[0, 8:]).any()
    assert all(np.isnan(gradient).any() for gradient in gradients)


def test_wrong_inputs(ops: Any) -> None:
    """Each with its message."""
    x = tf.zeros([2, 3, 1, 6])
    for parts, options, message in [
        ([x], {"lengths": tf.constant([4, 1])}, "a length is 4, with 3 keys"),
        ([x], {"lengths": tf.constant([1])}, "lengths has to be"),
        ([x], {"table": tf.zeros([2, 2])}, "the table has to be"),
        ([x, x[:1], x], {}, "every part has to be"),
        ([x[..., :2], x[..., :3], x], {}, "the sizes do not fit"),
        ([x[:, :2, :, :2], x[..., :2], x], {"causal": True}, "there are 2 queries and 3 keys"),
    ]:
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            native_attention(ops, parts, 2, scale=1.0, **options)


NETWORK = {
    "distance": {"class": "relative_positional_encoding", "n_out": 3, "clipping": 2, "from": "data"},
    "a": {"class": "self_attention", "num_heads": 2, "total_key_dim": 6, "n_out": 8, "key_shift": "distance",
          "attention_dropout": 0.2, "from": "data"},
    "b": {"class": "self_attention", "num_heads": 4, "total_key_dim": 8, "n_out": 8, "attention_left_only": True,
          "attention_dropout": 0.1, "from": "a"},
    "output": {"class": "softmax", "loss": "ce", "from": "b"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"maximize_grad_norm": 0.1}], ids=["first gradients", "second gradients"])
def test_training_is_the_same(ops: Any, options: Any) -> None:
    """Steps with the op and without it, with the same masks of dropout; also where gradients are differentiated."""
    config = returnn_tf.Config({
        "extern_data": {"data": {"dim": 5}, "classes": {"dim": 3, "sparse": True}}, "network": NETWORK,
        "optimizer": {"class": "sgd"}, "learning_rate": 0.01, "random_seed": 1, "behavior_version": 21, **options,
    })  # fmt: skip
    feed = {
        "data": np.random.RandomState(1).normal(0, 1, (3, 21, 5)).astype("float32"),
        "data/size0": np.array([21, 8, 13], "int32"),
        "classes": np.random.RandomState(2).randint(0, 3, (3, 21)).astype("int32"),
        "classes/size0": np.array([21, 8, 13], "int32"),
    }
    results, types = [], []
    for portable in (False, True):
        trainer = returnn_tf.Trainer(returnn_tf.Network.from_config(config, train=True), config)
        with portable_ops() if portable else contextlib.nullcontext():
            results.append([trainer.step(feed).total_loss for _ in range(3)])
        types.append({op.type for graph in trainer.steps.function.graphs for op in graph.graph.get_operations()})
    assert "RtfAttentionGrad" in types[0] and "RtfAttentionGrad" not in types[1]
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5)
    assert results[0][2] < results[0][0]
