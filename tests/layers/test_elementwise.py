"""combine, compare, switch, eval, activation, gating: numpy re-computation and what goes wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError
from returnn_tf.layers.math.combine import COMPARISONS
from tests.feeds import random_feed

EXTERN = {"data": {"dim": 4}, "other": {"dim": 4}, "labels": {"dim": 5, "sparse": True}}


def _config(network: dict[str, Any], **settings: Any) -> Config:
    return Config({"behavior_version": 21, "extern_data": EXTERN, "network": network, **settings})


def _run(layer: dict[str, Any], **others: dict[str, Any]) -> Any:
    net = Network.from_config(_config({**others, "output": layer}))
    feed = random_feed({k: v for k, v in net.extern_data.items() if k in net.used_data_keys})
    return net.run(feed).layers["output"].value, feed


SQUARE = {"class": "activation", "activation": "square", "from": "data"}


@pytest.mark.parametrize("kind", ["truediv", "/", "average", "xlogy", "atan2", "igamma", "complex", "logaddexp"])
@pytest.mark.parametrize("sparse", [True, False])
def test_kinds_of_floats(kind: str, sparse: bool) -> None:
    """Labels and other integers are refused, naming the kind."""
    layer = {"class": "combine", "kind": kind, "from": ["x", "x"]}
    x = {"class": "copy", "from": "data:labels"} if sparse else {"class": "length", "from": "data"}
    with pytest.raises(ConfigError, match="'output' .*kind %r is not defined for int32. Cast" % kind):
        plan_from_config(_config({"x": x, "output": layer}))


@pytest.mark.parametrize(
    "kind, expected",
    [
        ("add", lambda a, b: a + b),
        ("sub", lambda a, b: a - b),
        ("mul", lambda a, b: a * b),
        ("truediv", lambda a, b: a / b),
        ("floordiv", lambda a, b: a // b),
        ("mod", lambda a, b: a % b),
        ("maximum", np.maximum),
        ("minimum", np.minimum),
        ("squared_difference", lambda a, b: (a - b) ** 2),
        ("average", lambda a, b: (a + b) / 2),
        ("logaddexp", np.logaddexp),
        ("+", lambda a, b: a + b),
        ("-", lambda a, b: a - b),
        ("*", lambda a, b: a * b),
        ("/", lambda a, b: a / b),
        ("//", lambda a, b: a // b),
        ("subtract", lambda a, b: a - b),
        ("divide_no_nan", lambda a, b: a / b),
        ("atan2", np.arctan2),
        ("div", lambda a, b: a / b),
        ("xlogy", lambda a, b: a * np.log(b)),
        ("complex", lambda a, b: a + 1j * b),
        ("less", np.less),
        ("not_equal", np.not_equal),
    ],
)
def test_combine_kinds(kind: str, expected: Any) -> None:
    value, feed = _run({"class": "combine", "kind": kind, "from": ["data", "b"]}, b=SQUARE)
    np.testing.assert_allclose(value, expected(feed["data"], feed["data"] ** 2), rtol=1e-4, atol=1e-5)


def test_combine_two_time_axes_needs_a_word_of_the_user() -> None:
    layer = {"class": "combine", "kind": "add", "from": ["data", "data:other"]}
    with pytest.raises(ConfigError, match="reinterpret_data layer .option size_base."):
        plan_from_config(_config({"output": layer}))
    plan = plan_from_config(_config({"output": layer}, behavior_version=0))
    assert plan.outputs["output"].output.axis_kinds == ("B", "T", "T", "F")


@pytest.mark.parametrize("n, message", [(5, "n_out is 5, but the sources give"), (4, None)])
def test_combine_n_out_is_verified(n: int, message: Any) -> None:
    config = _config({"b": SQUARE, "output": {"class": "combine", "kind": "add", "n_out": n, "from": ["data", "b"]}})
    if message is None:
        plan_from_config(config)
    else:
        with pytest.raises(ConfigError, match=message):
            plan_from_config(config)


def test_feature_of_one_is_broadcast() -> None:
    one = {"class": "linear", "activation": None, "n_out": 1, "from": "data"}
    value, feed = _run({"class": "combine", "kind": "mul", "from": ["one", "data"]}, one=one)
    assert value.shape == feed["data"].shape


@pytest.mark.parametrize(
    "code, expected",
    [
        ("tf.log(tf.square(source(0)) + 1.0)", lambda x: np.log(x**2 + 1)),
        ("tf.reduce_sum(source(0), axis=-1, keep_dims=True) * tf.ones_like(source(0))",
         lambda x: x.sum(-1, keepdims=True) + 0 * x),
        ("tf.to_float(tf.to_int32(source(0)))", lambda x: x.astype(int).astype(float)),
        ("tf.nn.sigmoid(source(0)) * np.pi", lambda x: np.pi / (1 + np.exp(-x))),
        ("safe_log(tf.zeros_like(source(0)))", lambda x: np.full_like(x, np.log(1e-20))),
        ("tf.where(tf.is_finite(source(0)), source(0), tf.zeros_like(source(0)))", lambda x: x),
        ("tf.where(tf.range(tf.shape(source(0))[0]) > 0, source(0), -source(0))",
         lambda x: np.concatenate([-x[:1], x[1:]])),
        ("tf.where([False] + [True] * (source(0).shape[-1] - 1), source(0), tf.zeros_like(source(0)))",
         lambda x: np.concatenate([0 * x[..., :1], x[..., 1:]], axis=-1)),
        ("tf.log_sigmoid(source(0, auto_convert=False))", lambda x: -np.log1p(np.exp(-x))),
        ("source(0) * tf.to_float(self.network.global_train_step + 2)", lambda x: 2 * x),
        ("source(0) + self.sources[0].output.placeholder", lambda x: 2 * x),
        ("tf.expand_dims(source(0, as_data=True).get_sequence_mask(), 2) & (source(0) > 9) "
         "if False else source(0)", lambda x: x),
    ],
)  # fmt: skip
def test_eval_sees_old_tf_names(code: str, expected: Any) -> None:
    value, feed = _run({"class": "eval", "eval": code, "from": "data"})
    np.testing.assert_allclose(value, expected(feed["data"]), rtol=1e-5, atol=1e-6)


def test_eval_random_numbers_are_those_of_the_step() -> None:
    layer = {"class": "eval", "eval": "tf.random_uniform(tf.shape(source(0)), 1.0, 2.0)", "from": "data"}
    net = Network.from_config(_config({"output": layer}))
    feed = random_feed({"data": net.extern_data["data"]})
    first = net.run(feed).layers["output"].value
    assert ((first >= 1) & (first < 2)).all()
    np.testing.assert_array_equal(first, net.run(feed).layers["output"].value)


def test_eval_function_sees_lengths() -> None:
    def with_lengths(source: Any, **_kwargs: Any) -> Any:
        import tensorflow as tf

        view = source(0, as_data=True)
        return tf.cast(view.get_sequence_lengths(), tf.float32)

    value, feed = _run({"class": "eval", "eval": with_lengths, "from": "data", "out_type": {"shape": (), "dim": None}})
    np.testing.assert_array_equal(value, feed["data/size0"])


@pytest.mark.parametrize(
    "out_type, kinds, dim, dtype",
    [
        ({"dtype": "int32"}, "BTF", 4, "int32"),
        ({"dim": 1, "shape": (None, 1)}, "BTF", 1, "float32"),
        ({"shape": (None,), "dim": None}, "BT", None, "float32"),
        ({"shape": (), "dim": None}, "B", None, "float32"),
        ({"sparse": True, "dim": 7, "dtype": "int32", "shape": (None,)}, "BT", 7, "int32"),
        ({"dim": 9}, "BTF", 9, "float32"),
    ],
)
def test_out_type(out_type: dict[str, Any], kinds: str, dim: Any, dtype: str) -> None:
    layer = {"class": "eval", "eval": "source(0)", "from": "data", "out_type": out_type}
    data = plan_from_config(_config({"output": layer})).outputs["output"].output
    assert ("".join(data.axis_kinds), data.dim, data.dtype) == (kinds, dim, dtype)


def test_out_type_errors() -> None:
    layer = {"class": "eval", "eval": "source(0)", "from": "data", "out_type": {"dtyp": "int32"}}
    with pytest.raises(ConfigError, match="out_type: unknown option 'dtyp'. Did you mean 'dtype'"):
        plan_from_config(_config({"output": layer}))
    layer["out_type"] = {"shape": (None, None, 4)}
    with pytest.raises(ConfigError, match="more dynamic axes than the sources"):
        plan_from_config(_config({"output": layer}))


@pytest.mark.parametrize("condition, factor", [(True, 1.0), (lambda: False, -3.0)])
def test_switch_with_known_condition(condition: Any, factor: float) -> None:
    neg = {"class": "eval", "eval": "-3.0 * source(0)", "from": "data"}
    value, feed = _run({"class": "switch", "condition": condition, "true_from": "data", "false_from": "neg"}, neg=neg)
    np.testing.assert_allclose(value, factor * feed["data"], rtol=1e-6)


@pytest.mark.parametrize("kind", sorted(COMPARISONS))
def test_compare_with_a_number(kind: str) -> None:
    """Some labels are equal to it."""
    value, feed = _run({"class": "compare", "kind": kind, "value": 2, "from": "data:labels"})
    assert {-1, 0, 1} <= set(np.sign(feed["labels"] - 2).ravel())
    np.testing.assert_array_equal(value, getattr(np, kind)(feed["labels"], 2))


def test_switch_with_numbers_and_labels() -> None:
    cond = {"class": "compare", "kind": "greater", "value": 2, "from": "data:labels"}
    value, feed = _run({"class": "switch", "condition": "c", "true_from": "data:labels", "false_from": 0}, c=cond)
    np.testing.assert_array_equal(value, np.where(feed["labels"] > 2, feed["labels"], 0))


@pytest.mark.parametrize(
    "layer, message",
    [
        (
            {"class": "combine", "kind": "add", "from": ["data", "n"]},
            "the sources have different dtypes, float32 .* int32",
        ),
        ({"class": "combine", "kind": "logical_and", "from": ["data", "data"]}, "'logical_and' cannot be of float32"),
        ({"class": "combine", "kind": "less", "from": ["data", "data", "data"]}, "'less' needs two sources, got 3"),
        ({"class": "combine", "kind": "logical_xor", "from": ["n", "n"]}, "'logical_xor' cannot be of int32"),
        (
            {"class": "combine", "kind": "substract", "from": "data"},
            "unknown kind 'substract'. Did you mean 'subtract'",
        ),
        ({"class": "combine", "kind": "less", "from": ["b", "b"]}, "kind 'less' cannot be of bool"),
        ({"class": "combine", "kind": "add", "from": ["b", "b"]}, "kind 'add' cannot be of bool. Cast the sources"),
        ({"class": "compare", "value": 0.5, "from": "n"}, r"value is 0\.5, but the source is int32\. Cast the source"),
        ({"class": "compare", "value": float("inf"), "from": "n"}, "value is inf, but the source is int32"),
        ({"class": "compare", "value": 1, "from": "b"}, "value is 1, but the source is bool"),
    ],
)
def test_dtype_errors(layer: dict[str, Any], message: str) -> None:
    network = {
        "n": {"class": "cast", "dtype": "int32", "from": "data"},
        "b": {"class": "compare", "value": 0.5, "from": "data"},
        "output": layer,
    }
    with pytest.raises(ConfigError, match=message):
        plan_from_config(_config(network))


def test_switch_errors() -> None:
    with pytest.raises(ConfigError, match="condition 'data' must be bool"):
        plan_from_config(
            _config({"output": {"class": "switch", "condition": "data", "true_from": 1.0, "false_from": 0.0}})
        )


@pytest.mark.parametrize("factor", [-1.0, 0.5])
def test_scaled_grad(factor: float) -> None:
    network = {
        "h": {"class": "linear", "activation": None, "n_out": 3, "from": "data"},
        "s": {"class": "scaled_grad", "scale": factor, "from": "h"},
        "output": {"class": "eval", "eval": "source(0) ** 2", "from": "s", "loss": "as_is"},
    }
    net = Network.from_config(_config(network))
    plain = Network.from_config(_config({**network, "s": {"class": "copy", "from": "h"}}))
    feed = random_feed({"data": net.extern_data["data"]})
    np.testing.assert_allclose(
        net.run(feed, with_grad=True).grads["h/W"], factor * plain.run(feed, with_grad=True).grads["h/W"], rtol=1e-5
    )


def test_scale_of_the_gradient_from_a_layer() -> None:
    network = {
        "h": {"class": "linear", "activation": None, "n_out": 3, "from": "data"},
        "scale": {"class": "constant", "value": 0.5},
        "by_feature": {"class": "variable", "shape": [3], "add_batch_axis": False, "trainable": False, "init": 0.25},
        "s": {"class": "scaled_grad", "scale": "scale", "from": "h"},
        "t": {"class": "scaled_grad", "scale": "by_feature", "from": "s"},
        "output": {"class": "eval", "eval": "source(0) ** 2", "from": "t", "loss": "as_is"},
    }
    net = Network.from_config(_config(network))
    plain = Network.from_config(_config({**network, "t": {"class": "copy", "from": "h"}}))
    feed = random_feed({"data": net.extern_data["data"]})
    np.testing.assert_allclose(
        net.run(feed, with_grad=True).grads["h/W"], plain.run(feed, with_grad=True).grads["h/W"] / 8, rtol=1e-5
    )


def test_gating_needs_an_even_dim() -> None:
    odd = {"class": "linear", "activation": None, "n_out": 3, "from": "data"}
    with pytest.raises(ConfigError, match="must be even to be halved, but the source has 3"):
        plan_from_config(_config({"o": odd, "output": {"class": "gating", "activation": None, "from": "o"}}))


INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
OF_INTS = {"abs": np.abs, "sign": np.sign, "negative": np.negative, "neg": np.negative,
           "square": np.square, "relu": lambda x: np.maximum(x, 0), "relu6": lambda x: np.clip(x, 0, 6),
           "round": lambda x: x, "identity": lambda x: x, "abs * 2": lambda x: np.abs(x) * 2}  # fmt: skip


def test_activations_of_integers() -> None:
    """All of them for each type, but negative numbers of unsigned ones."""
    network: dict[str, Any] = {"less": {"class": "eval", "eval": "source(0) - 2", "from": "data:labels",
                                        "out_type": {"sparse": False, "dim": None, "dtype": "int32"}}}  # fmt: skip
    for dtype in INTS:
        source = "data:labels" if dtype.startswith("u") else "less"
        network["c " + dtype] = {"class": "cast", "dtype": dtype, "from": "d " + dtype}
        network["d " + dtype] = {"class": "reinterpret_data", "set_sparse": False, "from": source}
        for name in OF_INTS:
            if not (dtype.startswith("u") and name in ("neg", "negative")):
                layer = {"class": "activation", "activation": name, "from": "c " + dtype, "is_output_layer": True}
                network["%s %s" % (dtype, name)] = layer
    network["output"] = {"class": "copy", "from": "less"}
    net = Network.from_config(_config(network))
    feed = random_feed({k: v for k, v in net.extern_data.items() if k in net.used_data_keys})
    for path, result in net.run(feed).layers.items():
        if path != "output":
            dtype, _, name = path.partition(" ")
            x = (feed["labels"] - (0 if dtype.startswith("u") else 2)).astype(dtype)
            np.testing.assert_array_equal(result.value, OF_INTS[name](x).astype(dtype), err_msg=path)
    for name, message in (("neg", "makes negative numbers"), ("reciprocal", "float")):
        network["output"] = {"class": "activation", "activation": name, "from": "c uint8"}
        with pytest.raises(ConfigError, match=message):
            plan_from_config(_config(network))
