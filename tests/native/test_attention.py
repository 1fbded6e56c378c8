"""Native attention: the same as products and a softmax over all keys, with gradients; rounded; what it refuses."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf.native.attention import attention_ops, native_attention
from returnn_tf.native.portable import portable_ops
from returnn_tf.ops.dense import attention_forms
from returnn_tf.ops.dense.attention_forms import attention_by_energies, rounds_factors, usable_attention_ops
from returnn_tf.ops.softmax import masked_softmax
from returnn_tf.util.lazy_tf import tf
from tests.native.attention_cases import CASES, SIZES
from tests.native.derivatives import derivatives
from tests.native.drivers import check_driver
from tests.native.tiles import BFLOAT16_TARGETS


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
        weights *= tf.cast(keep, weights.dtype) / (1 - dropout)
    return tf.einsum("bhts,bshd->bthd", weights, v)


def with_gradients(function: Any, inputs: Any) -> list[Any]:
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = function(*inputs)
        loss = tf.reduce_sum(y * tf.reshape(tf.sin(tf.cast(tf.range(tf.size(y)), y.dtype)), tf.shape(y)))
    return [y, *map(tf.convert_to_tensor, tape.gradient(loss, inputs))]


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.RandomState(1)
    return [tf.constant(rng.normal(0, 1, shape), tf.float32) for shape in shapes]


def options_of(case: str, size: int) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Return the options of a case, and the shape of its table, if it has one."""
    options = {**CASES[case], "scale": size**-0.5}
    clipping = options.pop("clipping", None)
    if "lengths" in options:
        options["lengths"] = tf.constant(options["lengths"])
    if "dropout" in options:
        options["seed"] = tf.constant([3, 2**41 + 7], tf.int64)
    return options, [] if clipping is None else [(2 * clipping + 1, size)]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("frames,heads,size,value", SIZES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_forms_agree(ops: Any, case: str, frames: int, heads: int, size: int, value: int) -> None:
    """Of all three in one array."""
    options, table = options_of(case, size)
    inputs = arrays((3, frames, heads, 2 * size + value), *table)

    def native(x: Any, table: Any = None) -> Any:
        return native_attention(ops, [x], size, table=table, **options)

    def by_ops(x: Any, table: Any = None) -> Any:
        return plain([x], size, table=table, **options)

    for a, b in zip(with_gradients(native, inputs), with_gradients(by_ops, inputs)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * float(tf.reduce_max(tf.abs(b))))


@pytest.mark.parametrize("frames,heads,size,value", SIZES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_rounded_factors(ops: Any, case: str, frames: int, heads: int, size: int, value: int) -> None:
    """Results are as close to those of float64 as TensorFlow's products of bfloat16 around a softmax in float32."""
    options, table = options_of(case, size)
    inputs = arrays(*((3, frames, heads, n) for n in (size, size, value)), *table)

    def native(q: Any, k: Any, v: Any, table: Any = None) -> Any:
        return native_attention(ops, (q, k, v), size, table=table, rounded=True, **options)

    def in_bfloat16(q: Any, k: Any, v: Any, table: Any = None) -> Any:
        return attention_by_energies((q, k, v), table=table, product_dtype="bfloat16", **options)

    def exact(q: Any, k: Any, v: Any, table: Any = None) -> Any:
        return plain((q, k, v), size, table=table, **options)

    expected = with_gradients(exact, [tf.cast(x, tf.float64) for x in inputs])
    for ours, theirs, value in zip(with_gradients(native, inputs), with_gradients(in_bfloat16, inputs), expected):
        error, usual = (np.sqrt(np.mean((x.numpy() - value.numpy()) ** 2)) for x in (ours, theirs))
        assert ours.shape == value.shape and 0 < error <= 1.1 * usual


def test_rounded_factors_have_the_same_dropout(ops: Any) -> None:
    """With an identity as the values, the results are the weights."""
    q, k = arrays((2, 70, 2, 32), (2, 70, 2, 32))
    v = tf.tile(tf.eye(70)[None, :, None], [2, 1, 2, 1])
    options: dict[str, Any] = {"scale": 0.2, "dropout": 0.4, "seed": tf.constant([1, 2])}
    floats, rounded = (
        native_attention(ops, (q, k, v), 32, rounded=rounded, **options).numpy() for rounded in (False, True)
    )
    np.testing.assert_array_equal(rounded == 0, floats == 0)
    np.testing.assert_allclose(rounded, floats, rtol=0.05)


@pytest.mark.usefixtures("device")
def test_fewer_queries_than_keys(ops: Any) -> None:
    """Apart, as an encoder and a decoder give them; and no queries or sequences at all."""
    lengths = tf.constant([70, 3])
    for shapes in [((2, 5), (2, 70)), ((2, 0), (2, 70)), ((0, 5), (0, 3))]:
        inputs = arrays(*((*shape, 2, 6) for shape in (shapes[0], shapes[1], shapes[1])))
        options = {"scale": 0.5, "lengths": lengths[: shapes[0][0]]}
        sides = [lambda *x: native_attention(ops, x, 6, **options), lambda *x: plain(x, 6, **options)]  # noqa: B023
        for a, b in zip(*(with_gradients(side, inputs) for side in sides)):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", ["packed, by distance, dropout", "packed, causal", "ragged", "no sequences"])
def test_gradients_of_gradients(case: str) -> None:
    """For losses on gradients: by the form in TensorFlow."""
    ops = usable_attention_ops(5, with_table=True)
    options: dict[str, Any] = {"scale": 0.5}
    shapes: list[tuple[int, ...]] = [(2, 7, 3, 16)]
    if case == "packed, by distance, dropout":
        options.update(dropout=0.3, seed=tf.constant([3, 5]), lengths=tf.constant([7, 4]))
        shapes.append((5, 5))
    elif case == "packed, causal":
        options.update(causal=True)
    else:
        batch = 2 if case == "ragged" else 0
        options.update(lengths=tf.constant([9, 3][:batch], tf.int32))
        shapes = [(batch, 4, 3, 5), (batch, 9, 3, 5), (batch, 9, 3, 6)]

    def run(attend: Any) -> list[Any]:
        def function(*x: Any) -> Any:
            parts, table = (x[:1], x[1]) if len(x) == 2 else (x, None)
            return attend(list(parts), 5, table=table, **options)

        return tf.function(lambda *x: derivatives(function, *x), autograph=False)(*arrays(*shapes))

    for got, wanted in zip(run(functools.partial(native_attention, ops)), run(plain)):
        size = float(tf.reduce_max(tf.abs(wanted))) if tf.size(wanted) else 0.0
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5 * size)


@pytest.mark.usefixtures("device")
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


@pytest.mark.usefixtures("device")
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


@pytest.mark.slow
@pytest.mark.parametrize("target", ["avx512bf16", "tiles", "avx2"])
def test_instruction_sets(target: str, tmp_path: Path) -> None:
    """With floats and rounded factors, for any number of threads."""
    check_driver("attention", BFLOAT16_TARGETS[target], ("-O2", "-pthread"), tmp_path)


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


@pytest.mark.parametrize("low, key, rounded", [("bfloat16", 32, True), ("bfloat16", 24, False), ("float16", 32, False)])
def test_mixed_precision_rounds(ops: Any, low: str, key: int, rounded: bool) -> None:
    """The factors of bfloat16, if keys are large enough; all that is left of the setting is the projection."""
    layer = {"class": "self_attention", "num_heads": 1, "total_key_dim": key, "n_out": 8, "from": "data"}
    net = returnn_tf.Network.from_config(
        returnn_tf.Config({
            "extern_data": {"data": {"dim": 5}}, "mixed_precision": low, "behavior_version": 21,
            "network": {"output": {**layer, "loss": "as_is"}},
        }),
        train=True,
    )  # fmt: skip
    found = []

    def run(feed: Any) -> Any:
        objective = net.lower(feed, train=True, step=tf.constant(1, tf.int64)).objective
        found.extend(op for op in objective.graph.get_operations() if op.type == "RtfAttention")
        return objective

    net.feed_function(run)({"data": np.ones((2, 3, 5), "float32"), "data/size0": [3, 2]})
    assert [op.get_attr("rounded") for op in found] == [rounded]


def test_types_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried out for the factors that it will have; TensorFlow's form has those of float16."""
    asked: list[Any] = []
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["a GPU"])
    monkeypatch.setattr(attention_forms, "attention_ops", lambda: "ops")
    monkeypatch.setattr(attention_forms, "pays", lambda trial, *size: not asked.append((trial.name, *size)))
    found = {low: usable_attention_ops(16, product_dtype=low) for low in (None, "bfloat16", "float16")}
    assert found == {None: "ops", "bfloat16": "ops", "float16": None}
    assert asked == [("attention", 16, tf.float32), ("attention", 16, tf.bfloat16)]
    assert [low for low in found if rounds_factors(16, low)] == ["bfloat16"]
