"""Loops in the steps of other loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.tensor import Data
from tests.layers.nets import LENS, config_of, feed, net_of

#: The paths of the layers below, as often as they were planned.
PLANNED: list[str] = []


@register_layer("planning_counter")
class PlanningCounterLayer(Layer):
    """``y = x``, counted."""

    def template(self, ctx: PlanContext) -> Data:
        """Return that of the source."""
        PLANNED.append(ctx.node.path)
        return ctx.single_source()


def run(**inner: Any) -> Any:
    """Return the output of a loop which takes the loop in it from the step before.

    :param inner: options of the loop inside
    """
    network: dict[str, Any] = {
        "loop": {
            "class": "rec",
            "from": "data",
            "unit": {
                "two": {"class": "expand_dims", "axis": "T", "dim": 2, "from": "data:source"},
                "inner": {
                    "class": "rec",
                    "from": "two",
                    "unit": {"output": {"class": "linear", "n_out": 3, "from": ["data:source", "prev:output"]}},
                    **inner,
                },
                "last": {"class": "reduce", "mode": "max", "axis": "T", "from": "prev:inner"},
                "next": {"class": "reduce", "mode": "max", "axis": "T", "from": "inner"},
                "output": {"class": "combine", "kind": "add", "from": ["last", "next", "prev:output"]},
            },
        },
        "output": {"class": "copy", "from": "loop"},
    }
    config = Config({"behavior_version": 21, "extern_data": {"data": {"dim": 3}}, "network": network})
    data = np.random.default_rng(3).normal(size=(2, 4, 3)).astype("float32")
    return Network.from_config(config).run({"data": data, "data/size0": np.array([4, 2], "int32")}).layers["output"]


def test_a_loop_is_zero_before_the_first_step() -> None:
    """Unlike a cell, it has no initial state."""
    got = run()
    assert np.abs(got.value).max() > 0.1
    np.testing.assert_array_equal(got.value, run(initial_output=0).value)


def planned_layers(depth: int, joined: dict[str, Any], *, fails: bool = False) -> int:
    """Return how often layers of loops within loops are planned.

    :param joined: options of the layer that joins the source of a loop and its value of the step before
    :param fails: whether the innermost layer can't be planned
    """
    joined = {**joined, "from": ["data:source", "prev:output"]}
    unit: dict[str, Any] = {
        "in": joined,
        "counter": {"class": "planning_counter", "from": "in"},
        "output": {"class": "linear", "n_out": 3, "from": "counter"},
    }
    if fails:
        unit["output"] = {"class": "copy", "from": ["counter", "prev:output"]}
    for _ in range(depth - 1):
        unit = {
            "in": joined,
            "counter": {"class": "planning_counter", "from": "in"},
            "two": {"class": "expand_dims", "axis": "T", "dim": 2, "from": "counter"},
            "inner": {"class": "rec", "from": "two", "unit": unit},
            "last": {"class": "reduce", "mode": "max", "axis": "T", "from": "inner"},
            "output": {"class": "linear", "n_out": 3, "from": "last"},
        }
    network = {"output": {"class": "rec", "from": "data", "unit": unit}}
    PLANNED.clear()
    config = Config({"behavior_version": 21, "extern_data": {"data": {"dim": 3}}, "network": network})
    if fails:
        with pytest.raises(ConfigError, match="follows from itself in a loop"):
            plan_from_config(config)
    else:
        plan_from_config(config)
    return len(PLANNED)


@pytest.mark.parametrize(
    "joined",
    [{"class": "combine", "kind": "add"}, {"class": "linear", "activation": "tanh", "n_out": 3}, {"class": "copy"}],
    ids=["known at once", "guessed first", "a concatenation of unknown size first"],
)
def test_planning_takes_work_in_proportion_to_the_depth(joined: dict[str, Any]) -> None:
    counts = [planned_layers(depth, joined) for depth in range(2, 8)]
    steps = {after - before for before, after in zip(counts, counts[1:])}
    assert len(steps) == 1 and counts[-1] < 7 * counts[0], counts


def test_planning_does_not_explode_where_a_layer_fails() -> None:
    counts = [planned_layers(depth, {"class": "combine", "kind": "add"}, fails=True) for depth in (4, 8)]
    assert counts[1] < 5 * counts[0], counts


def chain(links: int, *, loops: bool) -> dict[str, Any]:
    """Return a unit of layers that each take the one before from the previous step; the first one takes the last.

    :param loops: whether each has a loop of its own
    """
    last = "last" if loops else "counter"
    step = {"output": {"class": "combine", "kind": "add", "from": ["data:source", "prev:output"]}}
    unit: dict[str, Any] = {}
    for i in range(links):
        source = ["prev:%s%d" % (last, i - 1)] if i else ["data:source", "prev:%s%d" % (last, links - 1)]
        unit["link%d" % i] = {"class": "combine", "kind": "add", "from": source}
        unit["counter%d" % i] = {"class": "planning_counter", "from": "link%d" % i}
        if loops:
            unit["two%d" % i] = {"class": "expand_dims", "axis": "T", "dim": 2, "from": "counter%d" % i}
            unit["loop%d" % i] = {"class": "rec", "from": "two%d" % i, "unit": step}
            unit["last%d" % i] = {"class": "reduce", "mode": "max", "axis": "T", "from": "loop%d" % i}
    return {**unit, "output": {"class": "copy", "from": "%s%d" % (last, links - 1)}}


@pytest.mark.parametrize("loops", [False, True])
def test_a_chain_of_previous_values_is_planned_in_its_order(loops: bool) -> None:
    counts = []
    for links in (5, 10, 25):
        PLANNED.clear()
        network = {"output": {"class": "rec", "from": "data", "unit": chain(links, loops=loops)}}
        plan_from_config(Config({"behavior_version": 21, "extern_data": {"data": {"dim": 3}}, "network": network}))
        counts.append(len(PLANNED) / links)
    assert max(counts) < 5  # does not grow with the length


def test_a_long_chain_in_another_order_is_planned_as_well() -> None:
    unit = dict(reversed(list(chain(25, loops=False).items())))
    network = {"output": {"class": "rec", "from": "data", "unit": unit}}
    plan = plan_from_config(Config({"behavior_version": 21, "extern_data": {"data": {"dim": 3}}, "network": network}))
    assert plan.by_path()["output"].output.axis_kinds == ("T", "B", "F")


@pytest.mark.parametrize(
    "unit",
    [
        {"output": {"class": "combine", "kind": "add", "from": ["data:source", "prev:output"]}},
        {"output": {"class": "combine", "kind": "add", "from": ["x", "prev:output"], "initial_output": "var"},
         "x": {"class": "combine", "kind": "mul", "from": ["data:source", "base:mean"]}},
        {"c": {"class": "rnn_cell", "unit": "gru", "n_out": 3, "from": ["data:source", "prev:output"]},
         "output": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "c"}},
    ],
    ids=["sum", "outer value", "cell"],
)  # fmt: skip
def test_a_loop_over_the_hypotheses_of_a_search(unit: dict[str, Any]) -> None:
    """Such as a language model that rescores them: each hypothesis is a sequence of its own."""
    search = {
        "embedding": {"class": "linear", "activation": None, "n_out": 2, "from": "prev:output"},
        "prob": {"class": "softmax", "n_out": 5, "from": ["embedding", "data:source"]},
        "output": {"class": "choice", "target": None, "beam_size": 3, "initial_output": 0, "from": "prob"},
    }
    layers = {
        "mean": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"},
        "embedding": {"class": "linear", "activation": None, "n_out": 3, "from": "labels"},
        "output": {"class": "rec", "from": "embedding", "unit": unit},
    }
    found_labels = {"labels": {"class": "rec", "from": "data", "unit": search, "is_output_layer": True}}
    given_labels = {"labels": {"class": "copy", "from": "data:labels"}}
    net = Network.from_config(config_of({**layers, **found_labels}), search=True)
    rng = np.random.default_rng(2)
    net.set_param_values({name: rng.normal(size=var.shape) for name, var in net.params.items()})
    arrays = feed()
    found = net.run(arrays).layers
    labels = found["labels"].value
    assert len(np.unique(labels)) > 2
    other = net_of({**layers, **given_labels})
    other.set_param_values({name: net.params[name].numpy() for name in other.params})
    repeated = {name: np.repeat(value, 3, axis=0) for name, value in arrays.items()}
    expected = other.run({**repeated, "labels": labels}).layers["output"].value
    for row, length in enumerate(np.repeat(LENS, 3)):
        np.testing.assert_allclose(found["output"].value[row, :length], expected[row, :length], rtol=1e-4, atol=1e-5)
