"""Layer classes of configs that derive from a specific layer class of RETURNN, such as LinearLayer."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from returnn_tf.compat.modules.layers.layer_base import LayerBase
from returnn_tf.compat.modules.layers.registering import register_layer_class
from returnn_tf.compat.modules.layers.specific import specific_layer
from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError
from returnn_tf.graph.registry import LAYERS, register_layer
from returnn_tf.layers.math.copy import CopyLayer
from tests.registries import registered_here

CLASSES = """
from returnn.tf.layers.basic import LinearLayer, SubnetworkLayer, HDFDumpLayer, register_layer_class
from TFNetworkLayer import ConvLayer
from returnn.tf.layers.rec import RecLayer
from returnn.tf.layers.variable import VariableLayer
import tensorflow as tf


class Scaled(LinearLayer):
    layer_class = "scaled_linear"

    def __init__(self, scale=2.0, **kwargs):
        super().__init__(**kwargs)
        with self.var_creation_scope():
            offset = self.add_param(tf.get_variable("offset", [self.output.dim], initializer=tf.ones_initializer()))
        assert self.input_data.dim and self.params["W"].shape[1] == self.output.dim
        before = self.output_before_activation
        assert before is None or before.x.shape.rank == self.output.batch_ndim
        self.output.placeholder = self.output.placeholder * scale + (offset - 1.0)

    @classmethod
    def get_out_data_from_opts(cls, **kwargs):
        out = super().get_out_data_from_opts(**kwargs)
        assert out.dim == kwargs["n_out"]
        return out


class Conv(ConvLayer):
    layer_class = "scaled_conv"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.output.placeholder = 2.0 * self.output.placeholder


class Twice(LinearLayer):
    layer_class = "twice_linear"

    def __init__(self, n_out, **kwargs):
        super().__init__(n_out=n_out * 2, **kwargs)
        self.output.placeholder = sum(tf.split(self.output.placeholder, 2, axis=-1))


class Rec(RecLayer):
    layer_class = "scaled_rec"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.output.placeholder = 2.0 * self.output.placeholder


class Sub(SubnetworkLayer):
    layer_class = "scaled_subnetwork"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.output.placeholder = 2.0 * self.output.placeholder


class Var(VariableLayer):
    layer_class = "scaled_variable"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.output.placeholder = 2.0 * self.output.placeholder


for cls in (Scaled, Conv, Twice, Rec, Sub, Var):
    register_layer_class(cls)
"""


@pytest.fixture(scope="module", autouse=True)
def _classes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Register the classes as a config does."""
    path = tmp_path_factory.mktemp("config") / "my.config"
    path.write_text(CLASSES)
    with registered_here(LAYERS):
        Config.from_file(str(path))
        yield


def net_of(network: dict[str, Any]) -> Network:
    data = {"data": {"dim": 3}, "classes": {"dim": 5, "sparse": True}}
    return Network.from_config(Config({"extern_data": data, "network": network, "behavior_version": 21}))


UNIT = {"a": {"class": "linear", "n_out": 4, "from": ["data:source", "prev:output"], "activation": "tanh"}}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "linear": ({"class": "linear", "n_out": 4, "activation": "tanh", "from": "data"}, "scaled_linear"),
    "size by target": ({"class": "linear", "target": "classes", "activation": None, "from": "data"}, "scaled_linear"),
    "two sources": ({"class": "linear", "n_out": 4, "activation": "relu", "from": ["data", "data"]}, "scaled_linear"),
    "without bias": ({"class": "linear", "n_out": 4, "with_bias": False, "L2": 0.1, "from": "data"}, "scaled_linear"),
    "lengths": (
        {"class": "conv", "n_out": 4, "filter_size": (2,), "padding": "valid", "strides": 2, "in_spatial_dims": ["T"],
         "from": "data"},
        "scaled_conv",
    ),
    "recurrent": ({"class": "rec", "unit": "nativelstm2", "n_out": 4, "from": "data"}, "scaled_rec"),
    "a loop": (
        {"class": "rec", "from": "data", "unit": {**UNIT, "output": {"class": "copy", "from": "a"}}}, "scaled_rec"
    ),
    "subnetwork": (
        {"class": "subnetwork", "from": "data", "subnetwork": {
            "a": {"class": "linear", "n_out": 4, "activation": "tanh", "from": "data"},
            "output": {"class": "combine", "kind": "add", "from": ["a", "base:around"]}}},
        "scaled_subnetwork",
    ),
    "variable": ({"class": "variable", "shape": [3], "init": "he_normal"}, "scaled_variable"),
}  # fmt: skip
AROUND = {"around": {"class": "linear", "n_out": 4, "from": "data", "activation": None}}


@pytest.mark.parametrize("layer, name", CASES.values(), ids=list(CASES))
def test_twice_the_layer(layer: dict[str, Any], name: str) -> None:
    """The parameters and lengths are those of the layer, and the class changes its output."""
    feed = {"data": np.linspace(-1, 1, 30, dtype="float32").reshape(2, 5, 3), "data/size0": [5, 3]}
    plain, derived = (
        net_of({**AROUND, "x": {**layer, "class": c}, "output": {"class": "combine", "kind": "mul", "from": ["x"]}})
        for c in (layer["class"], name)
    )
    extra = ["x/offset"] if name == "scaled_linear" else []
    assert sorted(derived.params) == sorted([*plain.params, *extra])
    rng = np.random.default_rng(1)
    values = {key: rng.normal(size=tuple(value.shape)).astype("float32") for key, value in plain.params.items()}
    plain.set_param_values(values)
    derived.set_param_values(values)
    one, two = (net.run(feed, fetch=["x"]).layers["x"] for net in (plain, derived))
    assert one.axes == two.axes and {k: v.tolist() for k, v in one.sizes.items()} == {
        k: v.tolist() for k, v in two.sizes.items()
    }
    np.testing.assert_allclose(two.value, 2 * one.value, rtol=1e-5, atol=1e-6)


def test_init_may_give_other_options() -> None:
    net = net_of({"output": {"class": "twice_linear", "n_out": 4, "from": "data", "activation": None}})
    assert {name: tuple(value.shape) for name, value in net.params.items()} == {"output/W": (3, 8), "output/b": (8,)}
    feed = {"data": np.ones([1, 2, 3], "float32"), "data/size0": [2]}
    assert net.run(feed).layers["output"].value.shape == (1, 2, 4)


def test_in_a_loop_with_its_previous_step() -> None:
    """The output of the class is that of the previous step, and layers inside are reached from outside."""
    feed = {"data": np.ones([1, 3, 3], "float32"), "data/size0": [3]}
    step = {"class": "scaled_linear", "n_out": 1, "from": ["data:source", "prev:output"], "activation": None}
    net = net_of({"output": {"class": "rec", "from": "data", "unit": {"output": step}}})
    net.set_param_values({"output/rec/output/W": np.array([[1.0], [0], [0], [0.5]], "float32")})
    np.testing.assert_allclose(net.run(feed).layers["output"].value[0, :, 0], [2.0, 4.0, 6.0])
    inside = {"class": "scaled_subnetwork", "from": "data", "subnetwork": {
        "a": {"class": "eval", "eval": "source(0) + 1.0", "from": "data"},
        "output": {"class": "copy", "from": "a"}}}  # fmt: skip
    net = net_of({"sub": inside, "output": {"class": "combine", "kind": "sub", "from": ["sub", "sub/a"]}})
    np.testing.assert_allclose(net.run(feed).layers["output"].value, np.full([1, 3, 3], 2.0))


def test_states_of_a_derived_recurrent_layer() -> None:
    feed = {"data": np.ones([1, 3, 3], "float32"), "data/size0": [3]}
    last = {"class": "get_last_hidden_state", "from": "x", "key": "h", "n_out": 4}
    net = net_of({"x": {"class": "scaled_rec", "unit": "lstm", "n_out": 4, "from": "data"}, "output": last})
    found = net.run(feed, fetch=["x"])
    np.testing.assert_allclose(2 * found.layers["output"].value, found.layers["x"].value[:, -1], rtol=1e-5)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"nonsense": 3}, "Layer 'output' .*unknown option 'nonsense'"),
        ({"activation": "nonsense"}, "nonsense"),
        ({"with_bias": "nonsense"}, "option 'with_bias' must be"),
        ({"scale": "a"}, "my.config|TypeError|ValueError"),
    ],
)
def test_mistakes(options: dict[str, Any], message: str) -> None:
    network = {"output": {"class": "scaled_linear", "n_out": 4, "from": "data", **options}}
    config = Config({"extern_data": {"data": {"dim": 3}}, "network": network, "behavior_version": 21})
    with pytest.raises(ConfigError, match=message):
        plan_from_config(config)


def test_bases_are_known_by_all_their_modules(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "my.config"
    path.write_text(
        "from TFNetworkRecLayer import RecLayer as a\nfrom returnn.tf.layers.rec import RecLayer as b\n"
        "from returnn.tf.layers.basic import HDFDumpLayer, MergeDimsLayer, SoftmaxLayer, LinearLayer as c\n"
        "from TFNetworkLayer import LinearLayer as d\nsame = a is b and c is d\n"
    )
    config = Config.from_file(str(path))
    assert config.typed("same") and config.typed("HDFDumpLayer").layer_class == "hdf_dump"


def test_classes_of_configs_are_no_bases() -> None:
    """Nor do they hide what is registered later, as by a plug-in, or has a name with the same letters."""
    assert "scaled_linear" in LAYERS and specific_layer("ScaledLinearLayer") is None
    with registered_here(LAYERS):

        @register_layer("late_copy")
        class LateCopyLayer(CopyLayer):
            """A copy."""

        register_layer_class(type("Other", (LayerBase,), {"layer_class": "latecopy"}))
        base = specific_layer("LateCopyLayer")
        assert base is not None and base.own_class is LateCopyLayer
    assert specific_layer("LateCopyLayer") is None
