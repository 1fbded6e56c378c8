"""A plan does not change once it is made: it can be lowered many times, even several times at once."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
import threading
from typing import Any, Callable

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.compiler.planning import compilation
from returnn_tf.config import Config, ConfigError
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer, Node
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.loops.frame import LoopRunLayer
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf
from tests.tiers import usual

EXTERN = {"data": {"dim": 4}, "classes": {"dim": 5, "sparse": True}}

#: Called while the plug-in layer below is emitted.
CALLS: list[Callable[[], None]] = []


@register_layer("plugin_call")
class PluginCallLayer(Layer):
    """``y = x``, and whatever the test does meanwhile."""

    def template(self, ctx: PlanContext) -> Data:
        """Return that of the source."""
        return ctx.single_source()

    def emit(self, ctx: EmitContext) -> Any:
        """Call what is to be called, once."""
        if CALLS:
            CALLS.pop()()
        return ctx.source()


def choice(source: str) -> dict[str, Any]:
    return {"class": "choice", "target": "classes", "beam_size": 3, "initial_output": 0, "from": source}


def loop(**opts: Any) -> dict[str, Any]:
    unit: dict[str, Any] = {
        "output": choice("p"),
        "embed": {"class": "linear", "activation": None, "n_out": 6, "from": "prev:output"},
        "s": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": 6, "from": ["embed", "x"]},
        "call": {"class": "plugin_call", "from": "s"},
        "p": {"class": "softmax", "n_out": 5, "from": "call"},
        "x": {"class": "reduce", "mode": "mean", "axis": "T", "from": "base:data"},
    }
    if opts:
        unit["end"] = {"class": "compare", "from": "output", "value": 0}
    else:
        unit["x"] = {"class": "copy", "from": "data:source"}
        unit["output"]["independent_of_batch"] = True  # the number of steps counts after the loop, too
        opts = {"from": "data"}
    return {
        "loop": {"class": "rec", "unit": unit, **opts},
        "output": {"class": "decide", "from": "loop"},
        "scores": {"class": "choice_get_beam_scores", "from": "loop", "is_output_layer": True},
    }


NETWORKS = {
    "search with a source": loop(),
    "search with an end": loop(**{"from": [], "max_seq_len": 6}),
    "no loop": {"output": {"class": "plugin_call", "from": "h"}, "h": {"class": "linear", "n_out": 3, "from": "data"}},
}


def net_of(network: dict[str, Any]) -> Network:
    config = Config({"behavior_version": 21, "extern_data": EXTERN, "network": network})
    return Network.from_config(config, search=True)


def feed(length: int, seed: int) -> dict[str, Any]:
    data = np.random.default_rng(seed).normal(size=(2, length, 4)).astype("float32")
    return {"data": tf.constant(data), "data/size0": tf.constant([length, length - 1])}


def traced(net: Network, inputs: dict[str, Any]) -> Any:
    """Return the function which computes all outputs, traced now."""
    signature = {name: tf.TensorSpec([None, *x.shape[1:]], x.dtype) for name, x in inputs.items()}
    function = tf.function(lambda values: net.lower(values).values, autograph=False)
    return function.get_concrete_function(signature)


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(NETWORKS, set(NETWORKS) - {"search with an end"}))
def test_one_plan_is_lowered_while_it_is_lowered(name: str) -> None:
    """While a layer of a loop is emitted, the same plan is emitted once more, in another graph."""
    net = net_of(NETWORKS[name])
    inputs = [feed(5, 1), feed(5, 2)]
    expected = [traced(net, one)(one) for one in inputs]
    inner: list[Any] = []
    CALLS.append(lambda: inner.append(traced(net, inputs[1])))
    outer = traced(net, inputs[0])
    assert not CALLS and len(inner) == 1
    for function, one, wanted in zip([outer, *inner], inputs, expected):
        got = function(one)
        assert set(got) == set(wanted)
        for path in wanted:
            np.testing.assert_array_equal(got[path].numpy(), wanted[path].numpy(), err_msg=path)


@pytest.mark.parametrize("name", NETWORKS)
def test_nothing_of_a_plan_can_be_set(name: str) -> None:
    plan = net_of(NETWORKS[name]).plan
    nodes = list(plan.all_nodes())
    assert nodes
    for node in nodes:
        place = "Layer %r" % node.path
        for thing, attribute in [(node, "path"), (node, "output"), (node.layer, "n_out"), (node.layer, "new")]:
            with pytest.raises(AttributeError, match="^" + re.escape(place)):
                setattr(thing, attribute, None)
        with pytest.raises(AttributeError, match="^" + re.escape(place)):
            del node.layer.node
        if node.extern_key is None and not node.layer.is_connector:
            with pytest.raises(dataclasses.FrozenInstanceError):
                node.plan.output = None  # type: ignore[misc, assignment]
        for spec in node.owned:
            with pytest.raises(AttributeError, match="^Parameter %r was planned" % spec.name):
                spec.trainable = False
        for field in (node.sources, node.deps, node.owned, node.inner):
            assert isinstance(field, tuple)
        with pytest.raises(TypeError):
            node.params["W"] = None


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "no loop"])
def test_nothing_of_a_planned_loop_can_be_set(name: str) -> None:
    (run,) = [node.layer for node in net_of(NETWORKS[name]).plan.all_nodes() if isinstance(node.layer, LoopRunLayer)]
    plan = run.loop
    assert plan.search is not None and plan.prevs and run.collected
    for record in (plan, plan.ending, plan.search, *plan.prevs, *(prev.initial for prev in plan.prevs)):
        for field in dataclasses.fields(record):
            with pytest.raises(AttributeError, match="cannot assign"):
                setattr(record, field.name, None)
    for values in (plan.prevs, plan.slices, plan.length_deps, plan.constrained, plan.search.choices, run.collected):
        assert isinstance(values, tuple)
    with pytest.raises(TypeError):
        plan.zones["s"] = ("", "")  # type: ignore[index]
    with pytest.raises(AttributeError):
        run.collected = ()


def test_classes_stay_what_they_are() -> None:
    """A plan is fixed by values, not by other classes."""
    plan = net_of(NETWORKS["no loop"]).plan
    assert type(plan.layers["output"].layer) is PluginCallLayer
    assert type(plan.layers["output"]) is Node


def test_options_of_a_plan_cannot_be_changed() -> None:
    config = {"behavior_version": 21, "extern_data": EXTERN, "network": loop()}
    plan = plan_from_config(Config(config), search=True)
    unit: Any = plan.layers["loop"].layer
    with pytest.raises(TypeError, match=re.escape("network['loop']['unit'] belongs to a plan and cannot be changed.")):
        unit.unit["new"] = {}
    with pytest.raises(TypeError, match=re.escape("network['loop']['unit']['s']['from'] belongs to a plan")):
        unit.unit["s"]["from"].append("p")
    copied = copy.deepcopy(unit.unit)
    copied["s"]["from"].append("p")
    assert type(copied) is dict and pickle.loads(pickle.dumps(unit.unit)) == unit.unit != copied
    config["network"]["loop"]["unit"]["new"] = {}  # type: ignore[index]  # the dict of the config is another one


def test_a_loss_of_a_plan_cannot_be_changed() -> None:
    output = {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}
    config = Config({"behavior_version": 21, "extern_data": EXTERN, "network": {"output": output}})
    (loss,) = plan_from_config(config, train=True).losses
    with pytest.raises(AttributeError, match="^The loss 'ce' of layer 'output' was planned"):
        loss.loss.scale = 2.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        loss.scale = 2.0  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(NETWORKS, list(NETWORKS)[:1]))
def test_one_plan_is_lowered_in_two_threads_at_once(name: str) -> None:
    net = net_of(NETWORKS[name])
    inputs = feed(5, 1)
    expected = traced(net, inputs)(inputs)
    both = threading.Barrier(2)
    found: list[Any] = []

    def lower() -> None:
        both.wait()
        found.append(traced(net, inputs)(inputs))

    threads = [threading.Thread(target=lower) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    for got in found:
        for path in expected:
            np.testing.assert_array_equal(got[path].numpy(), expected[path].numpy(), err_msg=path)


@register_layer("plugin_sets")
class PluginSetsLayer(Layer):
    """Keeps what `template` finds on itself, as layers could once."""

    def template(self, ctx: PlanContext) -> Data:
        """Set an attribute."""
        self.found = ctx.single_source()
        return self.found


@register_layer("plugin_init")
class PluginInitLayer(Layer):
    """``y = factor * x``, with a constructor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 2.0

    def template(self, ctx: PlanContext) -> Data:
        """Return that of the source."""
        return ctx.single_source()

    def emit(self, ctx: EmitContext) -> Any:
        """Use what the constructor set."""
        return self.factor * ctx.source()


@register_layer("plugin_post_init")
class PluginPostInitLayer(PluginInitLayer):
    """The same by the method that dataclasses call."""

    def __post_init__(self) -> None:
        self.factor = 2.0


@pytest.mark.parametrize("name", ["plugin_init", "plugin_post_init"])
def test_constructors_of_layer_classes_are_called(name: str) -> None:
    inputs = {"data": np.ones((1, 2, 4), "float32"), "data/size0": np.array([2], "int32")}
    net = Network.from_config(Config({"extern_data": EXTERN, "network": {"output": {"class": name, "from": "data"}}}))
    assert (net.run(inputs).layers["output"].value == 2.0).all()


@register_layer("plugin_returns_nothing")
class PluginReturnsNothingLayer(Layer):
    """Lacks a return."""

    def template(self, ctx: PlanContext) -> Data:
        """Forget the template."""
        ctx.single_source()
        return None  # type: ignore[return-value]


def test_a_layer_that_sets_its_attributes_is_told_what_to_return() -> None:
    """This is a mistake of the user, also in a loop, where errors may be due to what is not known yet."""
    layer = {"class": "plugin_sets", "from": "data"}
    looped = {"class": "rec", "from": "data", "unit": {"output": {**layer, "from": "prev:output"}}}
    for network, path in [({"output": layer}, "output"), ({"output": looped}, "output/output")]:
        with pytest.raises(ConfigError) as info:
            net_of(network)
        assert str(info.value).startswith("Layer %r (class 'plugin_sets'): 'found' cannot be set." % path)
        assert "Return what template() finds as a LayerPlan" in str(info.value)
        assert info.value.topic == "code-in-configs"


def test_a_template_that_is_none_is_an_error_of_the_layer() -> None:
    expected = r"^Layer 'output' \(class 'plugin_returns_nothing'\): template\(\) must return .* it returned None"
    with pytest.raises(ConfigError, match=expected):
        net_of({"output": {"class": "plugin_returns_nothing", "from": "data"}})


@pytest.mark.slow
@pytest.mark.parametrize("depth", range(1, 7))
def test_each_network_is_parsed_once(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a step network is planned until the dims of ``prev:`` settle."""
    calls: list[str] = []
    parse = compilation.parse_network

    def counted(network: Any, path: str, *args: Any) -> Any:
        calls.append(path)
        return parse(network, path, *args)

    monkeypatch.setattr(compilation, "parse_network", counted)
    unit: dict[str, Any] = {"output": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "prev:output"}}
    for _ in range(depth - 1):
        inner = {"class": "rec", "from": "base:data", "unit": unit}
        unit = {
            "inner": {**inner, "from": "around"},
            "around": {"class": "expand_dims", "axis": "T", "dim": 2, "from": "prev:output"},
            "output": {"class": "reduce", "mode": "max", "axis": "T", "from": "inner", "initial_output": 0},
        }
    network = {"loop": {"class": "rec", "from": "data", "unit": unit}, "output": {"class": "copy", "from": "loop"}}
    plan_from_config(Config({"behavior_version": 21, "extern_data": EXTERN, "network": network}))
    assert calls == ["loop" + i * "/inner" if i >= 0 else "" for i in range(-1, depth)]
