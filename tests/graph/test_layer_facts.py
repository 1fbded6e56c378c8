"""What the compiler knows about a layer class, it knows from the class: a plug-in counts as much as a built-in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.pretrain.carry_over import axes_of_params
from returnn_tf.engine.search.beam import with_beam_size
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import LAYERS, register_layer
from returnn_tf.ops.initializers import get_initializer
from returnn_tf.tensor import Data
from returnn_tf.tensor.parts import Part, Parts
from returnn_tf.util.lazy_tf import tf

FEED = {"data": np.ones((2, 3, 4), "float32"), "data/size0": np.array([3, 2], "int32")}


@register_layer("plugin_sum")
class PluginSumLayer(Layer):
    """``y = sum of x over all steps so far``; outside of loops a copy."""

    has_memory = True

    def template(self, ctx: PlanContext) -> Data:
        """Return the template of the source."""
        data = ctx.single_source()
        if ctx.in_step:
            ctx.loop_state("sum", data, lambda emit: tf.zeros(emit.shape(data)))
        return data

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one addition."""
        if not self.node.loop_states:
            return ctx.source()
        total = ctx.loop_state("sum") + ctx.source()
        ctx.set_loop_state("sum", total)
        return total


@register_layer("plugin_silent_sum")
class PluginSilentSumLayer(PluginSumLayer):
    """The same, but declared as if it had no state."""

    has_memory = False


@register_layer("plugin_choice")
class PluginChoiceLayer(Layer):
    """Has a beam."""

    beam_size_option = "width"


@register_layer("plugin_pairs")
class PluginPairsLayer(Layer):
    """Its output has two halves."""

    def template(self, ctx: PlanContext) -> Data:
        """Return the features of the source twice."""
        data = ctx.single_source()
        out = ctx.new_feature(2 * (data.dim or 0))
        ctx.param("W", (data.feature_dim, out), get_initializer(0.0))
        return data.with_feature(data.feature_axis or 0, out)

    def param_parts(self, name: str, shape: Sequence[int], axis: int, inputs: Parts) -> Parts:
        """Return the halves in the columns of W."""
        return inputs if axis == 0 else [Part("half %d" % i, shape[axis] // 2) for i in range(2)]


def config_of(network: dict[str, Any]) -> Config:
    return Config({"behavior_version": 21, "extern_data": {"data": {"dim": 4}}, "network": network})


def loop(layer: str, *, open_end: bool) -> dict[str, Any]:
    """Return the sum of the same vector in each of three steps."""
    unit: dict[str, Any] = {
        "sum": {"class": layer, "from": "base:vector"},
        "output": {"class": "copy", "from": "sum"},
    }
    opts: dict[str, Any] = {"from": "data"}
    if open_end:
        unit["end"] = {"class": "compare", "from": ":i", "value": 3}
        opts = {"from": [], "max_seq_len": 5}
    else:
        unit["output"] = {"class": "combine", "kind": "add", "from": ["sum", "zero"]}
        unit["zero"] = {"class": "eval", "from": ["data:source", "prev:zero"], "eval": "source(0) * 0 + source(1) * 0"}
    return {
        "vector": {"class": "reduce", "mode": "max", "axis": "T", "from": "data"},
        "loop": {"class": "rec", **opts, "unit": unit},
        "output": {"class": "copy", "from": "loop"},
    }


@pytest.mark.parametrize("layer", ["cumsum", "plugin_sum"])
@pytest.mark.parametrize("open_end", [False, True])
def test_a_layer_with_a_state_stays_in_its_loop(layer: str, open_end: bool) -> None:
    out = Network.from_config(config_of(loop(layer, open_end=open_end))).run(FEED).layers["output"]
    assert out.value.shape == (2, 3, 4)
    np.testing.assert_array_equal(out.value[0], np.repeat([[1.0], [2.0], [3.0]], 4, axis=1))


def test_a_hidden_state_must_be_declared() -> None:
    """If the class does not declare its state, the error names the layer, the class and the fix."""
    network = loop("plugin_silent_sum", open_end=False)
    network["loop"]["optimize_move_layers_out"] = False
    with pytest.raises(ConfigError, match=r"plugin_silent_sum.*Set has_memory = True on PluginSilentSumLayer\."):
        plan_from_config(config_of(network))


def test_memory_of_the_classes() -> None:
    """Those of ours, by name: others may move out of a loop."""
    with_memory = {name for name, cls in LAYERS.items() if cls.has_memory}
    ours = {name for name in with_memory if LAYERS[name].__module__.startswith("returnn_tf.layers.")}
    assert ours == {
        "choice",
        "cond",
        "cum_concat",
        "cumsum",
        "edit_distance_table",
        "hot_words",
        "kenlm",
        "masked_computation",
        "optimal_completions",
        "positional_encoding",
        "rand_int",
        "random",
        "rec",
        "rnn_cell",
        "self_attention",
        "twod_lstm",
        "unmask",
        "window",
        "word_scores",
    }


def test_the_beam_of_a_plugin() -> None:
    config = config_of({"output": {"class": "plugin_choice", "width": 3}, "x": {"class": "copy", "from": []}})
    config.set_text("beam_size", "7")
    network = with_beam_size(config).typed("network")
    assert network == {"output": {"class": "plugin_choice", "width": 7}, "x": {"class": "copy", "from": []}}


def test_the_parts_of_a_parameter_of_a_plugin() -> None:
    network = {"output": {"class": "plugin_pairs", "from": "data"}}
    (axes,) = axes_of_params(plan_from_config(config_of(network))).values()
    assert axes == [[Part("data", 4)], [Part("half 0", 4), Part("half 1", 4)]]
