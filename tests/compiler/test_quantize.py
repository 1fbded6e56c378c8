"""The setting ``quantize``: what is stored as int8, that it is computed with, and mistakes."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest

from returnn_tf.compiler.describe import describe_config
from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.engine.checkpoints.params import assign
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.native.portable import portable_ops
from returnn_tf.ops import int8
from returnn_tf.tasks.setting_checks import check_all_settings
from returnn_tf.util.lazy_tf import tf

FEATURES, LABELS = 160, 200
EXTERN_DATA = {
    "data": {"dim": FEATURES},
    "image": {"shape": (FEATURES, None), "feature_dim_axis": 1},
    "classes": {"dim": LABELS, "sparse": True},
}
LENS = np.array([5, 3], "int32")
LINEAR = {"class": "linear", "activation": None, "n_out": 128, "from": "data"}
ATTENTION = {"class": "self_attention", "num_heads": 4, "total_key_dim": 64, "n_out": 64, "from": "data"}


def _decoder(beam: int) -> dict[str, Any]:
    """Return a decoder whose layers stay in the loop: an embedding that is tied to the output, attention, a choice."""
    tied = {"map": {"W": {"reuse_layer": "embed"}, "b": None}}
    return {
        "embed": {"class": "linear", "activation": None, "with_bias": False, "n_out": 128, "from": "prev:output",
                  "initial_output": 0},
        "att": {**ATTENTION, "from": "embed", "attention_left_only": True, "n_out": 128, "total_key_dim": 128},
        "res": {"class": "combine", "kind": "add", "from": ["att", "embed"]},
        "ff": {"class": "linear", "activation": "tanh", "n_out": 128, "from": ["res", "base:enc"]},
        "prob": {"class": "softmax", "n_out": LABELS, "use_transposed_weights": True, "from": "ff",
                 "reuse_params": tied},
        "output": {"class": "choice", "target": "classes", "beam_size": beam, "from": "prob", "initial_output": 0},
        "end": {"class": "compare", "from": "output", "value": 0},
    }  # fmt: skip


def _cell(unit: str, source: str = "data", **options: Any) -> dict[str, Any]:
    """Return a network with a recurrent cell over frames."""
    return {"output": {"class": "rec", "unit": unit, "from": source, "n_out": 96, **options}}


def _in_loop(unit: str, n_out: int = 96, width: int = 52) -> dict[str, Any]:
    """Return a loop with a cell that reads a value known before the loop and one of the step before."""
    return {"output": {"class": "rec", "from": "data", "unit": {
        "s": {"class": "rnn_cell", "unit": unit, "n_out": n_out, "from": ["prev:output", "data:source"]},
        "output": {"class": "linear", "activation": "tanh", "n_out": width, "from": "s"},
    }}}  # fmt: skip


def _negative(reuse_layer: Any, **_: Any) -> Any:
    """Return the parameter of another layer, negated."""
    return -reuse_layer.params["W"]


DECODER = {
    "enc": {"class": "reduce", "mode": "mean", "axes": "T", "from": "data"},
    "output": {"class": "rec", "from": [], "target": "classes", "max_seq_len": 7, "unit": _decoder(3)},
    "decision": {"class": "decide", "from": "output", "is_output_layer": True},
}
NETWORKS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "linear": ({"output": LINEAR}, {"output/W"}),
    "transposed": ({"output": {**LINEAR, "use_transposed_weights": True}}, {"output/W"}),
    "softmax": ({"output": {"class": "softmax", "n_out": LABELS, "from": "data"}}, {"output/W"}),
    "features in front": ({"output": {**LINEAR, "from": "data:image"}}, {"output/W"}),
    "embedding": ({"output": {**LINEAR, "from": "data:classes"}}, {"output/W"}),
    "transposed embedding": (
        {"output": {**LINEAR, "from": "data:classes", "use_transposed_weights": True}}, {"output/W"},
    ),
    "self_attention": ({"output": ATTENTION}, {"output/QKV"}),
    "subnetwork": (
        {"output": {"class": "subnetwork", "from": "data", "subnetwork": {"output": LINEAR}}}, {"output/output/W"},
    ),
    "loop": (
        {"output": {"class": "rec", "from": "data", "unit": {
            "output": {"class": "linear", "activation": "tanh", "n_out": 100, "from": ["data:source", "prev:output"]},
        }}}, {"output/rec/output/W"},
    ),
    # input weights are multiplied in int8, recurrent ones in a loop as well; over frames the latter are floats
    "lstm": (_cell("nativelstm2"), {"output/rec/W", "output/rec/W_re"}),
    "lstm backwards": (_cell("lstm", direction=-1), {"output/rec/W", "output/rec/W_re"}),
    "lstm in one matrix": (_cell("nativelstmlowmem"), {"output/rec/W"}),
    "standardlstm": (_cell("standardlstm"), {"output/rec/lstm_cell/kernel"}),
    "peepholes": (_cell("standardlstm", unit_opts={"use_peepholes": True}), {"output/rec/lstm_cell/kernel"}),
    "basiclstm": (_cell("basiclstm"), {"output/rec/basic_lstm_cell/kernel"}),
    "gru": (_cell("gru"), {"output/rec/gru_cell/gates/kernel", "output/rec/gru_cell/candidate/kernel"}),
    "basicrnn": (_cell("basicrnn"), {"output/rec/basic_rnn_cell/kernel"}),
    "lstm of labels": (_cell("lstm", "data:classes"), {"output/rec/W", "output/rec/W_re"}),
    "rhn": (_cell("rhn"), {"output/rec/W", *("output/rec/rhn_cell/depth_%d/W" % i for i in range(5))}),
    "slstm": (_cell("slstm"), {"output/rec/W", "output/rec/W_re"}),
    "mamba": (_cell("mamba"), {"output/rec/in_proj", "output/rec/out_proj"}),
    "gla": (_cell("gla", n_out=128), {"output/rec/" + name for name in ("W_v", "W_r", "W_o")}),
    "rwkv6": (_cell("rwkv6", n_out=128), {"output/rec/W_" + name for name in "rkvgo"}),
    "lstm in a loop": (_in_loop("lstm"), {"output/rec/s/rec/W", "output/rec/s/rec/W_re"}),
    "standardlstm in a loop": (_in_loop("standardlstm"), {"output/rec/s/rec/lstm_cell/kernel"}),
    "gates of no whole panels in a loop": (_in_loop("standardlstm", 90), {"output/rec/s/rec/lstm_cell/kernel"}),
    "sources of no whole groups in a loop": (
        _in_loop("lstm", width=50), {"output/rec/s/rec/W", "output/rec/s/rec/W_re"},
    ),
    "gru in a loop": (
        _in_loop("gru"), {"output/rec/s/rec/gru_cell/gates/kernel", "output/rec/s/rec/gru_cell/candidate/kernel"},
    ),
    "rhn in a loop": (
        _in_loop("rhn"), {"output/rec/s/rec/W", *("output/rec/s/rec/rhn_cell/depth_%d/W" % i for i in range(5))},
    ),
    "conv": ({"output": {"class": "conv", "n_out": 64, "filter_size": 3, "padding": "same", "from": "data"}},
             {"output/W"}),
    "a small one": ({"h": LINEAR, "output": {**LINEAR, "n_out": 100, "from": "h"}}, {"h/W"}),
}  # fmt: skip
FLOATS: dict[str, dict[str, Any]] = {
    # read by rows in one layer and by columns in another: there is no axis of channels for both
    "two uses": {
        "h": {**LINEAR, "n_out": FEATURES, "from": "data"},
        "output": {**LINEAR, "n_out": FEATURES, "use_transposed_weights": True, "from": "h",
                   "reuse_params": {"map": {"W": {"reuse_layer": "h"}}}, "with_bias": False},
    },
    # code of a config expects a variable of floats
    "function": {
        "h": {**LINEAR, "n_out": FEATURES},
        "output": {**LINEAR, "n_out": FEATURES, "from": "h", "with_bias": False,
                   "reuse_params": {"map": {"W": {"reuse_layer": "h", "custom": _negative}}}},
    },
    "small": {"output": {**LINEAR, "n_out": 100}},
    "another class": {"output": {"class": "rec", "unit": "lru", "n_out": 80, "from": "data"}},
}  # fmt: skip


def _config(network: dict[str, Any], quantize: Any = "int8", **settings: Any) -> Config:
    given = {"extern_data": EXTERN_DATA, "network": network, "behavior_version": 21, "quantize": quantize, **settings}
    return Config(given)


def _feed() -> dict[str, Any]:
    rng = np.random.RandomState(1)
    return {
        "data": rng.normal(0, 1, (2, 5, FEATURES)).astype("float32"),
        "image": rng.normal(0, 1, (2, FEATURES, 5)).astype("float32"),
        "classes": rng.randint(0, LABELS, (2, 5)).astype("int32"),
        "data/size0": LENS,
        "image/size1": LENS,
        "classes/size0": LENS,
    }


def _networks(network: dict[str, Any], quantize: Any = "int8", **mode: bool) -> tuple[Network, Network]:
    """Return a network with int8, and one with the rounded parameters in float32."""
    int8, floats = (Network.from_config(_config(network, value), **mode) for value in (quantize, None))
    rng = np.random.RandomState(2)
    int8.set_param_values({name: rng.normal(0, 0.1, p.shape) for name, p in int8.params.items()})
    floats.set_param_values(int8.get_param_values())
    return int8, floats


@pytest.mark.parametrize("name", NETWORKS)
def test_layers(name: str) -> None:
    """Values are those of the rounded parameters, but for the rounding of activations; the same without native ops."""
    network, stored = NETWORKS[name]
    int8, floats = _networks(network)
    assert set(int8.plan.rounded) == stored
    found, expected = (net.run(_feed()).layers["output"].value for net in (int8, floats))
    assert found.shape == expected.shape
    bound = 0.05 if stored and "embedding" not in name else 1e-6
    assert np.abs(found - expected).max() <= bound * np.abs(expected).max()
    with portable_ops():
        again = Network.from_config(_config(network))
        again.set_param_values(int8.get_param_values())
        plain = again.run(_feed()).layers["output"].value
    np.testing.assert_allclose(plain, found, atol=bound * np.abs(expected).max())


@pytest.mark.parametrize("name", [
    "linear", "softmax", "embedding", "transposed", "self_attention", "lstm", "gru", "conv", "lstm in a loop",
    "standardlstm in a loop", "gru in a loop", "gates of no whole panels in a loop",
    "sources of no whole groups in a loop",
])  # fmt: skip
def test_bfloat16(name: str) -> None:
    """The same matrices; differences are those of numbers with 8 bits; the same without native ops."""
    network, stored = NETWORKS[name]
    rounded, floats = _networks(network, "bfloat16")
    assert set(rounded.plan.rounded) == stored
    variable = rounded.params[min(stored)]
    assert [part.dtype.name for part in variable.parts.values()] == ["bfloat16"] and variable.dtype == tf.float32
    found, expected = (net.run(_feed()).layers["output"].value for net in (rounded, floats))
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())
    with portable_ops():
        again = Network.from_config(_config(network, "bfloat16"))
        again.set_param_values(rounded.get_param_values())
        plain = again.run(_feed()).layers["output"].value
    np.testing.assert_allclose(plain, found, atol=0.005 * np.abs(expected).max())


def test_bfloat16_in_search() -> None:
    rounded, floats = _networks(DECODER, "bfloat16", search=True)
    found, expected = (net.run(_feed()).layers for net in (rounded, floats))
    np.testing.assert_allclose(found["output"].beam_scores, expected["output"].beam_scores, rtol=0.02)
    np.testing.assert_array_equal(found["decision"].value, expected["decision"].value)


@pytest.mark.parametrize("name, depths", [
    ("lstm", [160]), ("basiclstm", [160]), ("gru", [160]), ("rhn", []), ("lstm of labels", []), ("conv", []),
    ("lstm in a loop", [52, 96, 160]), ("standardlstm in a loop", [52, 96, 160]), ("gru in a loop", [52, 96, 96, 160]),
    ("gates of no whole panels in a loop", []), ("sources of no whole groups in a loop", [96]),
])  # fmt: skip
def test_products_of_cells(name: str, depths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in int8 where input and state, and gates, are whole groups and panels of what is stored."""
    found, product = [], int8.native_int8_product
    monkeypatch.setattr(int8, "native_int8_product", lambda _, x, *w: found.append(x.shape[-1]) or product(_, x, *w))
    Network.from_config(_config(NETWORKS[name][0])).run(_feed())
    assert sorted(found) == depths


@pytest.mark.parametrize("name", FLOATS)
def test_without_effect(name: str) -> None:
    with pytest.raises(ConfigError, match="quantize: no matrix with at least 16384 numbers .* Omit quantize"):
        plan_from_config(_config(FLOATS[name]))


def test_search() -> None:
    """Labels are those of the rounded parameters; a tied embedding is stored once, by its labels."""
    int8, floats = _networks(DECODER, search=True)
    assert set(int8.plan.rounded) == {"output/rec/embed/W", "output/rec/att/QKV", "output/rec/ff/W"}
    assert int8.plan.rounded["output/rec/embed/W"].width == LABELS
    found, expected = (net.run(_feed()).layers for net in (int8, floats))
    np.testing.assert_allclose(found["output"].beam_scores, expected["output"].beam_scores, rtol=0.02)
    np.testing.assert_array_equal(found["decision"].value, expected["decision"].value)


@pytest.mark.parametrize("quantize", [None, "int8", "bfloat16"])
def test_search_after_a_change(quantize: Optional[str]) -> None:
    """Parameters that are assigned between two searches are those of the second one."""
    changed, again = (Network.from_config(_config(DECODER, quantize), search=True) for _ in range(2))
    rng = np.random.RandomState(3)
    first, second = ({name: rng.normal(0, 0.1, p.shape) for name, p in changed.params.items()} for _ in range(2))
    changed.set_param_values(first)
    before = changed.run(_feed()).layers["output"].beam_scores
    changed.set_param_values(second)
    again.set_param_values(second)
    found, expected = (net.run(_feed()).layers for net in (changed, again))
    np.testing.assert_array_equal(found["output"].beam_scores, expected["output"].beam_scores)
    np.testing.assert_array_equal(found["decision"].value, expected["decision"].value)
    assert (found["output"].beam_scores != before).all()


def test_rounded_once() -> None:
    """A value that is read back and assigned again stays the same."""
    int8, _ = _networks(DECODER, search=True)
    values = int8.get_param_values()
    int8.set_param_values(values)
    for name, value in int8.get_param_values().items():
        np.testing.assert_allclose(value, values[name], rtol=1e-6)


def test_losses_and_constraints() -> None:
    """Of an evaluation: they read what is stored."""
    network = {"output": {"class": "softmax", "from": "data", "loss": "ce", "target": "classes", "L2": 0.1}}
    int8, floats = _networks(network)
    found, expected = (net.run(_feed()) for net in (int8, floats))
    np.testing.assert_allclose(found.total_loss, expected.total_loss, rtol=0.01)
    assert found.total_loss != pytest.approx(sum(found.losses.values()), rel=0.01), "with the constraint"


def test_memory() -> None:
    """There is no variable with the floats."""
    net = Network.from_config(_config({"output": LINEAR}))
    weights = net.params["output/W"]
    assert (weights.shape, weights.dtype.name) == ((FEATURES, 128), "float32")
    stored = sum(part.numpy().nbytes for part in weights.parts.values())
    assert stored == weights.spec.size == FEATURES * 128 + 4 * 128


@pytest.mark.parametrize(
    "exclude, stored",
    [
        (["output/ff"], {"output/rec/embed/W", "output/rec/att/QKV"}),
        (["output/prob"], {"output/rec/att/QKV", "output/rec/ff/W"}),  # that of embed, too
        (["output/a*", "output/embed"], {"output/rec/ff/W"}),
    ],
)
def test_exclude(exclude: list[str], stored: set[str]) -> None:
    plan = plan_from_config(_config(DECODER, {"dtype": "int8", "exclude": exclude}), search=True)
    assert set(plan.rounded) == stored


def test_exclude_all() -> None:
    with pytest.raises(ConfigError, match="quantize: no matrix with at least 16384 numbers is left"):
        plan_from_config(_config(DECODER, {"exclude": ["output/*"]}), search=True)


@pytest.mark.parametrize("pattern", ["h", "data", "out/*", "enc"])
def test_exclude_without_effect(pattern: str) -> None:
    config = _config({"enc": {**LINEAR, "n_out": 4}, "output": {**LINEAR, "from": ["enc", "data"]}},
                     {"exclude": [pattern]})  # fmt: skip
    with pytest.raises(
        ConfigError, match=r"'exclude' has '%s', but no layer .* stored as int8" % pattern.replace("*", ".")
    ):
        plan_from_config(config)


@pytest.mark.parametrize(
    "settings, text",
    [
        ({"quantize": "int4"}, "'dtype' is 'int4'. Did you mean 'int8'?"),
        (
            {"quantize": "bfloat16", "float_dtype": "float64"},
            "products with bfloat16 have operands and results of float32",
        ),
        ({"quantize": {"exlude": []}}, "exclude"),
        ({"mixed_precision": "bfloat16"}, "mixed_precision is 'bfloat16'. Set mixed_precision to None"),
        ({"float_dtype": "float64"}, "float_dtype is 'float64'. Set float_dtype to 'float32'"),
    ],
    ids=str,
)
def test_mistakes(settings: dict[str, Any], text: str) -> None:
    config = _config({"output": LINEAR}, **settings)
    for read in (plan_from_config, check_all_settings):
        with pytest.raises(ConfigError) as info:
            read(config)
        assert "quantize" in str(info.value) and text in str(info.value)


def test_too_long_for_int32() -> None:
    config = _config({"output": {**LINEAR, "n_out": 1}}, extern_data={"data": {"dim": 140_000}})
    with pytest.raises(ConfigError, match=r"layer 'output' .*sums up 140000 products, .* 'exclude': \['output'\]"):
        plan_from_config(config)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("from_file", [False, True])
def test_not_finite(value: float, from_file: bool) -> None:
    """No parameter is changed, also of those before."""
    net = Network.from_config(_config({"h": {**LINEAR, "n_out": FEATURES}, "output": {**LINEAR, "from": "h"}}))
    before = net.get_param_values()
    values = {name: np.ones(p.shape, "float32") for name, p in net.params.items()}
    values["output/W"][3, 7] = value
    with pytest.raises(DataError, match=r"Layer 'output': the parameter 'output/W' .* 1 of its numbers .* at \[3, 7\]"):
        assign(net.stored_params, values, source="it") if from_file else net.set_param_values(values)
    for name, old in before.items():
        np.testing.assert_array_equal(net.params[name].numpy(), old)


@pytest.mark.parametrize("operation", [
    lambda w: w * 2.0, lambda w: 2.0 - w, lambda w: -w, lambda w: w[1, 3:5], lambda w: w @ tf.ones([128, 2]),
    lambda w: np.ones((3, FEATURES), "float32") @ w, lambda w: tf.ones([FEATURES, 128]) / w, lambda w: abs(w) > 0.1,
    lambda w: w**2, np.asarray, tf.reduce_sum,
])  # fmt: skip
@pytest.mark.parametrize("source", ["data", "data:classes"])
def test_in_user_code(operation: Any, source: str) -> None:
    """A parameter computes as one of floats does, eagerly and in a graph, whichever axis its channels are."""
    data = {**EXTERN_DATA, "classes": {"dim": FEATURES, "sparse": True}}
    net = Network.from_config(_config({"output": {**LINEAR, "from": source}}, extern_data=data))
    weights = net.params["output/W"]
    expected = operation(tf.Variable(weights.numpy()))
    np.testing.assert_allclose(operation(weights), expected)
    if operation is not np.asarray:
        np.testing.assert_allclose(tf.function(lambda: operation(weights), autograph=False)(), expected)


@pytest.mark.parametrize("option, value", [("param_variational_noise", 0.5), ("param_dropout", 0.5)])
def test_noise(option: str, value: float) -> None:
    """It is added in a run with the noise of a training."""
    int8, _ = _networks({"output": {**LINEAR, option: value}})
    quiet, noisy = (int8.run(_feed(), train=train).layers["output"].value for train in (False, True))
    assert np.abs(noisy - quiet).mean() > 0.1 * np.abs(quiet).mean()


def test_training_is_refused() -> None:
    network = {"output": {"class": "softmax", "from": "data", "loss": "ce", "target": "classes"}}
    config = _config(network, optimizer={"class": "sgd"}, learning_rate=0.1)
    text = "rounded parameters can't be trained: rounding has no gradient"
    with pytest.raises(ConfigError, match=text):
        check_all_settings(config)
    net = Network.from_config(config, train=True)
    with pytest.raises(ConfigError, match=text):
        StepTrainer(net, config)
    with pytest.raises(ConfigError, match=text):
        net.run(_feed(), with_grad=True)
    check_all_settings(_config(network, task="search"))


def test_check_shows_it() -> None:
    lines = describe_config(_config({"h": LINEAR, "output": {**LINEAR, "n_out": 4, "from": "h"}})).splitlines()
    rows = {line.split()[0]: line for line in lines if line and not line.startswith(" ")}
    assert rows["h"].split()[-2:] == ["20,608", "(int8)"] and "int8" not in rows["output"]
    assert "82.5 KiB as float32; 23.0 KiB with 1 array of int8" in "\n".join(lines)
