"""Values beside the outputs of layers: a new kind is declared in one place, and kept in line with the outputs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.graph.aux_values import PRE_ACTIVATION, Aux, OnExit, PreActivation, batch_of_output
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.lowering import Lowering, LoweringOptions
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.graph.semantics import Semantics
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True)
class Double:
    """Twice the output of a layer."""

    values: Any


DOUBLE: Aux[Double] = Aux(
    "double",
    batch_axis=batch_of_output,
    each=lambda func, double: Double(func(double.values)),
    on_exit=OnExit.MOVE,
    forwarded=True,
)


@register_layer("plugin_double")
class PluginDoubleLayer(Layer):
    """``y = x``, and beside it ``2 x``."""

    def template(self, ctx: PlanContext) -> Data:
        """Return that of the source."""
        return ctx.single_source()

    def emit(self, ctx: EmitContext) -> Any:
        """Return one product."""
        ctx.set_aux(self.node, DOUBLE, Double(ctx.source() * 2))
        return ctx.source()


@register_layer("plugin_half_of_double")
class PluginHalfOfDoubleLayer(Layer):
    """What a source has beside its output, halved; emitted after all sources."""

    def template(self, ctx: PlanContext) -> Data:
        """Return that of the first source."""
        return self.source.output.replace(vocab=None)

    def emit(self, ctx: EmitContext) -> Any:
        """Return one division."""
        double = ctx.aux(self.source, DOUBLE)
        assert double is not None
        return tf.cast(double.values / 2, ctx.output.dtype)


def run(network: dict[str, Any], *, search: bool = False) -> Any:
    extern_data = {"data": {"dim": 4}, "classes": {"dim": 5, "sparse": True}}
    config = Config({"behavior_version": 21, "extern_data": extern_data, "network": network})
    data = np.random.default_rng(5).normal(size=(3, 4, 4)).astype("float32")
    feed = {"data": data, "data/size0": np.array([4, 2, 3], "int32")}
    return Network.from_config(config, search=search, train=False).run(feed).layers


@pytest.mark.slow
def test_a_choice_reorders_it() -> None:
    """What belongs to a layer before a choice is asked for after it: it is that of the hypotheses chosen."""
    unit = {
        "output": {"class": "choice", "target": "classes", "beam_size": 4, "initial_output": 0, "from": "p"},
        "embed": {"class": "linear", "activation": None, "n_out": 6, "from": "prev:output"},
        "marked": {"class": "plugin_double", "from": "embed"},
        "p": {"class": "softmax", "n_out": 5, "from": ["marked", "data:source"]},
        "plain": {"class": "copy", "from": ["marked"], "is_output_layer": True, "extra_deps": "output"},
        "half": {"class": "plugin_half_of_double", "from": ["marked", "output"], "is_output_layer": True},
    }
    network = {
        "loop": {"class": "rec", "from": "data", "unit": unit, "optimize_move_layers_out": False},
        "output": {"class": "copy", "from": "loop"},
        "plain": {"class": "copy", "from": "loop/plain", "is_output_layer": True},
        "half": {"class": "copy", "from": "loop/half", "is_output_layer": True},
    }
    layers = run(network, search=True)
    assert len(np.unique(layers["plain"].value)) > 1
    np.testing.assert_allclose(layers["half"].value, layers["plain"].value)


@pytest.mark.parametrize("copies", [0, 1, 2])
def test_it_leaves_a_loop(copies: int) -> None:
    """The axis of the steps comes first, in the output as in the value beside it; copies have it too."""
    unit = {"a0": {"class": "plugin_double", "from": "data:source"}}
    for i in range(copies):
        unit["a%d" % (i + 1)] = {"class": "copy", "from": "a%d" % i}
    last = "a%d" % copies
    unit[last] = {**unit[last], "is_output_layer": True}
    network = {
        "loop": {"class": "rec", "from": "data", "unit": {**unit, "output": {"class": "copy", "from": "a0"}}},
        "half": {"class": "plugin_half_of_double", "from": "loop/" + last},
        "output": {"class": "copy", "from": "half"},
        "plain": {"class": "copy", "from": "loop/" + last, "is_output_layer": True},
    }
    layers = run(network)
    assert layers["output"].value.shape == (3, 4, 4)
    np.testing.assert_allclose(layers["output"].value, layers["plain"].value)


def test_a_child_does_not_change_its_parent() -> None:
    lowering = Lowering(LoweringOptions(train=False, search=False, semantics=Semantics(behavior_version=21)))
    node: Any = object()
    lowering.values.set_aux(node, DOUBLE, Double(1))
    child = lowering.child()
    child.values.set_aux(node, PRE_ACTIVATION, PreActivation(2, "tanh"))
    child.values.set_aux(node, DOUBLE, Double(3))
    assert lowering.values.aux == {node: {DOUBLE: Double(1)}}
