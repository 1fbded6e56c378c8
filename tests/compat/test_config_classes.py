"""Layer and loss classes of configs on RETURNN's bases: planned, run, trained, in and outside of loops."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.checkpoints.params import load_checkpoint, save_checkpoint
from returnn_tf.graph.registry import LAYERS, LOSSES
from tests.layers.nets import EXTERN_DATA, LENS, feed
from tests.registries import registered_here

CLASSES = pathlib.Path(__file__).parent / "config_classes.py"


@pytest.fixture(scope="module", autouse=True)
def _classes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Load the classes as a config does."""
    folder = tmp_path_factory.mktemp("config")
    shutil.copy(CLASSES, folder / "classes_of_a_config.py")
    (folder / "my.config").write_text("#!returnn\nimport classes_of_a_config\n")
    with registered_here(LAYERS, LOSSES):
        Config.from_file(str(folder / "my.config"))
        yield


def config_of(network: dict[str, Any], **options: Any) -> Config:
    return Config({"extern_data": EXTERN_DATA, "network": network, "behavior_version": 21, **options})


def net_of(network: dict[str, Any], **options: Any) -> Network:
    return Network.from_config(config_of(network, **options), train=True)


def output(network: dict[str, Any], **options: Any) -> Any:
    return net_of(network, **options).run(feed()).layers["output"]


def in_loop(layer: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"output": {"class": "rec", "from": "data", "unit": {"output": layer, **others}}}


def test_parameters_are_known_before_a_run() -> None:
    plan = plan_from_config(config_of({"output": {"class": "half_of_mean", "from": "data"}}))
    params = {spec.name: (spec.shape, spec.trainable) for node in plan.nodes for spec in node.owned}
    assert params == {"output/scale": ((3,), True), "output/fixed": ((3,), False)}
    assert plan.outputs["output"].output.axis_kinds == ("B", "T", "F")
    values = net_of({"output": {"class": "half_of_mean", "from": "data"}}).get_param_values()
    np.testing.assert_array_equal(values["output/scale"], [2, 2, 2])
    np.testing.assert_array_equal(values["output/fixed"], [1, 2, 3])


@pytest.mark.parametrize("options", [{}, {"factor": 0.25}])
def test_half_of_mean(options: dict[str, float]) -> None:
    x = feed()["data"]
    mean = np.stack([x[i, :n].mean(axis=0) for i, n in enumerate(LENS)])[:, None]
    result = output({"output": {"class": "half_of_mean", "from": "data", **options}})
    expected = (x - options.get("factor", 0.5) * mean) * 2 + [1, 2, 3]
    np.testing.assert_allclose(result.value, expected, rtol=1e-5)


def test_several_sources_and_dropout() -> None:
    layer = {"class": "doubled", "from": ["data", "other"]}
    x = feed()
    config = {"output": {**layer, "from": ["data", "other"]}, "same": {"class": "reinterpret_data"}}
    del config["same"]
    same = {"o": {"class": "reinterpret_data", "size_base": "data", "from": "data:other"}}
    result = output({**same, "output": {**layer, "from": ["data", "o"]}})
    np.testing.assert_allclose(result.value, 2 * np.concatenate([x["data"], x["other"]], axis=2), rtol=1e-6)
    net = net_of({"output": {"class": "doubled", "dropout": 0.5, "from": "data"}})
    value = net.run(x, train=True).layers["output"].value
    assert set(np.round(np.unique(value / x["data"]), 3)) <= {0.0, 4.0}
    np.testing.assert_allclose(net.run(x, train=False).layers["output"].value, 2 * x["data"])


def test_axes_may_differ_from_the_source() -> None:
    plan = plan_from_config(config_of({"output": {"class": "add_one_hot_to_time", "n_positions": 2, "from": "data"}}))
    data = plan.outputs["output"].output
    assert data.axis_kinds == ("T", "B", "F") and data.dim == 5
    assert data.time_dim is plan.extern_data["data"].time_dim  # by the lengths that __init__ sets
    result = output({"output": {"class": "add_one_hot_to_time", "n_positions": 2, "from": "data"}})
    value = result.value if result.axes[0] == "B" else result.value.transpose(1, 0, 2)
    np.testing.assert_array_equal(value[:, :, 3:], np.eye(2)[[0, 1, 1, 1]][None].repeat(3, axis=0))


def test_own_lengths() -> None:
    sums = {"class": "reduce", "mode": "sum", "axis": "T", "from": "half"}
    result = output({"half": {"class": "every_second", "from": "data"}, "output": sums})
    x = feed()["data"]
    expected = [x[i, :n:2].sum(axis=0) for i, n in enumerate(LENS)]
    np.testing.assert_allclose(result.value, expected, rtol=1e-5)


def test_lengths_of_a_declared_dim() -> None:
    """It is computed from those of the source, and named in other layers."""
    chunks = LAYERS.find("chunks").config_class.__init__.__globals__["CHUNKS"]  # type: ignore[union-attr]
    sums = {"class": "reduce", "mode": "sum", "axis": chunks, "from": "chunks"}
    result = output({"chunks": {"class": "chunks", "from": "data"}, "output": sums})
    x = feed()["data"]
    np.testing.assert_allclose(result.value, [x[i, :n:3].sum(axis=0) for i, n in enumerate(LENS)], rtol=1e-5)
    assert chunks.dyn_size is None  # outside of the building of ops


def test_parameters_are_saved_and_restored(tmp_path: pathlib.Path) -> None:
    config = config_of({**factor(loss="as_is"), "more": {"class": "half_of_mean", "from": "data", "loss": "as_is"}})
    net, other = (Network(plan_from_config(config, train=True), config, seed=seed) for seed in (1, 2))
    name = "output/factors/out_w"
    net.set_param_values({"more/fixed": np.float32([4, 5, 6])})
    assert (net.get_param_values()[name] != other.get_param_values()[name]).any()
    prefix = str(tmp_path / "model")
    save_checkpoint(net, prefix)
    load_checkpoint(other, prefix)
    for key, value in net.get_param_values().items():
        np.testing.assert_array_equal(other.get_param_values()[key], value)
    np.testing.assert_array_equal(
        net.run(feed()).layers["more"].value, other.run(feed()).layers["more"].value)  # fmt: skip


def test_labels() -> None:
    network = {"output": {"class": "sampling", "from": "data"}}
    data = plan_from_config(config_of(network)).outputs["output"].output
    assert data.dtype == "int32" and data.dim == 3 and data.sparse and data.axis_kinds == ("B", "T")
    np.testing.assert_array_equal(output(network).value, feed()["data"].argmax(axis=2))


def test_target() -> None:
    network = {"output": {"class": "like_target", "from": "data", "target": "labels"}}
    np.testing.assert_array_equal(output(network).value, np.eye(5)[feed()["labels"]])


def factor(**options: Any) -> dict[str, Any]:
    weights = {"class": "softmax_over_spatial", "from": "scores"}
    return {
        "encoder": {"class": "copy", "from": "data"},
        "scores": {"class": "linear", "activation": None, "n_out": 1, "from": "encoder"},
        "weights": weights,
        "state": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"},
        "output": {
            "class": "factor", "attention_weights": "weights", "base_encoder": "encoder", "prev_outputs": "state",
            "n_out": 4, **options,
        },
    }  # fmt: skip


def test_layers_in_options_and_scopes_within_the_layer() -> None:
    net = net_of(factor())
    assert {k: v.shape for k, v in net.get_param_values().items()} == {
        "output/factors/out_w": (3, 4), "scores/W": (3, 1), "scores/b": (1,)}  # fmt: skip
    x, values = feed()["data"], net.get_param_values()
    got = net.run(feed()).layers["output"].value
    for i, n in enumerate(LENS):
        frames = x[i, :n]
        score = frames @ values["scores/W"]
        weights = np.exp(score) / np.exp(score).sum(axis=0)
        logits = np.tanh(frames + frames.mean(axis=0)) @ values["output/factors/out_w"]
        probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(got[i], (weights * probs).sum(axis=0), rtol=1e-4)


def test_the_same_in_a_loop() -> None:
    layer = {
        "class": "factor", "attention_weights": "weights", "base_encoder": "base:encoder", "prev_outputs": "s",
        "n_out": 4,
    }  # fmt: skip
    unit = {
        "s": {"class": "linear", "activation": None, "n_out": 3, "from": ["prev:output", "data:source"]},
        "weights": {"class": "copy", "from": "base:weights"},
        "output": {**layer, "initial_output": 0.0},
    }
    outer = {k: v for k, v in factor().items() if k in ("encoder", "scores", "weights")}
    net = net_of({**outer, "output": {"class": "rec", "from": "data", "unit": unit, "loss": "as_is"}})
    assert net.get_param_values()["output/rec/output/factors/out_w"].shape == (3, 4)
    result = net.run(feed())
    assert result.layers["output"].value.shape[-1] == 4 and np.isfinite(result.layers["output"].value).all()


def test_layers_that_the_code_asks_for(tmp_path: pathlib.Path) -> None:
    (tmp_path / "my.config").write_text(
        "from TFNetworkLayer import LayerBase, register_layer_class\n"
        "class Asks(LayerBase):\n    layer_class = 'asks'\n"
        "    def __init__(self, **kwargs):\n        super().__init__(**kwargs)\n"
        "        other = self.network.get_layer('other').output.placeholder\n"
        "        self.output.placeholder = self.sources[0].output.placeholder + other\n"
        "register_layer_class(Asks)\n"
    )
    Config.from_file(str(tmp_path / "my.config"))
    other = {"class": "eval", "eval": "source(0) * 2", "from": "data"}
    result = output({"output": {"class": "asks", "from": "data"}, "other": other})
    np.testing.assert_allclose(result.value, 3 * feed()["data"], rtol=1e-6)


def test_weights_of_another_layer() -> None:
    network = {
        "small": {"class": "copy", "from": "data"},
        "two": {"class": "slice", "axis": "F", "slice_end": 2, "from": "data"},
        "embed": {"class": "linear", "activation": None, "with_bias": False, "n_out": 5, "from": "two"},
        "output": {"class": "tied", "embedding": "embed", "from": "data", "n_out": 5, "loss": "as_is"},
    }
    net = net_of(network)
    values = net.get_param_values()
    assert {k: v.shape for k, v in values.items()} == {
        "embed/W": (2, 5), "output/hidden/kernel": (3, 2), "output/hidden/bias": (2,)}  # fmt: skip
    result = net.run(feed(), with_grad=True)
    hidden = np.tanh(feed()["data"] @ values["output/hidden/kernel"] + values["output/hidden/bias"])
    np.testing.assert_allclose(result.layers["output"].value, hidden @ values["embed/W"], rtol=1e-4)
    assert np.abs(result.grads["embed/W"]).max() > 0


def test_running_sum_in_and_outside_of_loops() -> None:
    x = feed()["data"].cumsum(axis=1)
    for network in ({"output": {"class": "running_sum", "from": "data"}},
                    in_loop({"class": "running_sum", "from": "data:source"})):  # fmt: skip
        result = output(network)
        value = result.value if result.axes[0] == "B" else result.value.transpose(1, 0, 2)
        for i, n in enumerate(LENS):
            np.testing.assert_allclose(value[i, :n], x[i, :n], rtol=1e-5)


@pytest.mark.parametrize(
    "layer",
    [
        {"class": "doubled"},
        {"class": "half_of_mean"},
        {"class": "add_one_hot_to_time", "n_positions": 3},
    ],
)
def test_layers_moved_out_of_a_loop(layer: dict[str, Any]) -> None:
    """They see the frames of all steps as time."""
    results = [
        output(network) for network in (
            {"output": {**layer, "from": "data"}}, in_loop({**layer, "from": "data:source"}))
    ]  # fmt: skip
    values = [r.value if r.axes[0] == "B" else r.value.transpose(1, 0, 2) for r in results]
    for i, n in enumerate(LENS):
        np.testing.assert_allclose(values[0][i, :n], values[1][i, :n], rtol=1e-5)


def test_a_growing_history() -> None:
    net = net_of(in_loop({"class": "history_attention", "total_key_dim": 2, "from": "data:source"}))
    (weights,) = net.get_param_values().values()
    result = net.run(feed()).layers["output"]
    value = result.value if result.axes[0] == "B" else result.value.transpose(1, 0, 2)
    for i, n in enumerate(LENS):
        keys = feed()["data"][i] @ weights
        for t in range(n):
            energy = np.exp(keys[: t + 1] @ keys[t])
            np.testing.assert_allclose(value[i, t], energy @ keys[: t + 1] / energy.sum(), rtol=1e-4)


@pytest.mark.parametrize(
    "layer",
    [
        {"class": "half_of_mean", "from": "data"},
        in_loop({"class": "history_attention", "total_key_dim": 2, "from": "data:source"})["output"],
    ],
)
def test_gradients(layer: dict[str, Any]) -> None:
    net = net_of({"output": {**layer, "loss": "as_is"}})
    (name,) = net.trainable_params
    got = net.run(feed(), with_grad=True).grads[name]
    start = net.get_param_values()[name]
    assert np.abs(got).max() > 0.1
    for index in np.ndindex(*start.shape):
        losses = []
        for change in (1e-2, -1e-2):
            changed = start.copy()
            changed[index] += change
            net.set_param_values({**net.get_param_values(), name: changed})
            losses.append(net.run(feed()).losses["output"])
        np.testing.assert_allclose(got[index], (losses[0] - losses[1]) / 2e-2, rtol=0.02, atol=0.02)


def test_loss() -> None:
    layer = {"class": "linear", "activation": None, "from": "data", "n_out": 3, "target": "other2"}
    same = {"other2": {"class": "reinterpret_data", "size_base": "data", "from": "data:other"}}
    net = net_of({**same, "output": {**layer, "loss": "abs_difference", "loss_opts": {"weight": 2.0}}})
    result, x = net.run(feed()), feed()
    y = result.layers["output"].value
    mask = np.arange(4)[None] < LENS[:, None]
    np.testing.assert_allclose(result.losses["output"], 2 * np.abs(y - x["other"])[mask].sum(), rtol=1e-4)
    assert result.errors["output"] == 3.0
    with pytest.raises(ConfigError, match="unknown option 'wait'. Known: weight"):
        net_of({**same, "output": {**layer, "loss": "abs_difference", "loss_opts": {"wait": 1}}})


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("self.output.placeholder = 1 / 0", {}, r"Layer 'output' \(class 'bad'\): .*my.config:6: ZeroDivisionError"),
    ("pass", {}, "has to set self.output.placeholder"),
    ("self.output.placeholder = self.sources[0].output.placeholder[:, 0]", {}, "has the shape .*, but the output was"),
    ("self.output.placeholder = self.network.get_layer('nothing').output", {}, "asks for the layer 'nothing'"),
    ("tf.get_variable('x', [3], regularizer=4)", {}, "regularizer is not supported; use the option L2"),
    (
        "tf.get_variable('x', tf.shape(self.sources[0].output.placeholder))",
        {},
        "shape of the variable 'x' is not known",
    ),
    ("self.add_param(3)", {}, "make the variable by tf.get_variable"),
    ("self.add_param(tf.get_variable('x', [3]), axis=4)", {}, "add_param: the argument 'axis' is not supported"),
    ("self.var_creation_scope(reuse=True).__enter__()", {}, "var_creation_scope: the argument 'reuse' is not"),
    ("self._get_target_value(search=1)", {}, "_get_target_value: the argument 'search' is not supported"),
    ("x = self.sources[1]", {}, "IndexError"),
    ("pass", {"nonsense": 3}, "unknown option 'nonsense'"),
]


@pytest.mark.parametrize("code, options, message", MISTAKES)
def test_mistakes(tmp_path: pathlib.Path, code: str, options: dict[str, Any], message: str) -> None:
    (tmp_path / "my.config").write_text(
        "import tensorflow as tf\nfrom TFNetworkLayer import LayerBase, register_layer_class\n"
        "class Bad(LayerBase):\n    layer_class = 'bad'\n"
        "    def __init__(self, **kwargs):\n        super().__init__(**kwargs); %s\n"
        "register_layer_class(Bad)\n"
        "network = {'output': {'class': 'bad', 'from': 'data', **%r}}\nextern_data = {'data': {'dim': 3}}\n"
        "behavior_version = 21\n" % (code, options)
    )
    with pytest.raises(ConfigError, match=message):
        plan_from_config(Config.from_file(str(tmp_path / "my.config")))


def test_classes_without_a_name_and_on_missing_bases(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "my.config"
    path.write_text("from TFNetworkLayer import LayerBase, register_layer_class\n"
                    "class X(LayerBase): pass\nregister_layer_class(X)\n")  # fmt: skip
    with pytest.raises(ConfigError, match="needs an attribute layer_class"):
        Config.from_file(str(path))
    path.write_text(
        "from TFNetworkLayer import NonsenseLayer, register_layer_class\n"
        "class X(NonsenseLayer):\n    layer_class = 'x'\nregister_layer_class(X)\nextern_data = {'data': {'dim': 3}}\n"
        "network = {'output': {'class': 'x', 'from': 'data'}}\n"
    )
    config = Config.from_file(str(path))  # registering it is no mistake
    with pytest.raises(ConfigError, match="'NonsenseLayer' of RETURNN's module 'TFNetworkLayer' is not part"):
        plan_from_config(config)
