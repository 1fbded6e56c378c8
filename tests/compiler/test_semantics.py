"""What a plan means does not depend on who lowers it: precision and behavior_version are part of the plan."""

from __future__ import annotations

import threading
from typing import Any

from returnn_tf.compiler.lower import lower
from returnn_tf.compiler.network import Network
from returnn_tf.graph.carried_state import NoCarriedState
from returnn_tf.util.lazy_tf import tf
from tests.layers.nets import config_of

SETTINGS: list[dict[str, Any]] = [{"float_dtype": "float64"}, {"mixed_precision": "bfloat16"}, {}]


def _network(meet: threading.Barrier) -> dict[str, Any]:
    """Return a network whose lowerings wait for each other amid its layers and within its loop."""

    def wait(source: Any, **_: Any) -> Any:
        meet.wait(60)
        return source(0) * 1.5

    unit = {
        "a": {"class": "linear", "activation": "tanh", "n_out": 3, "from": ["data:source", "prev:output"]},
        "wait": {"class": "eval", "eval": wait, "from": "a"},
        "output": {"class": "rnn_cell", "unit": "lstmblock", "n_out": 3, "from": "wait"},
    }
    return {
        "h": {"class": "linear", "activation": "relu", "n_out": 4, "from": "data"},
        "wait": {"class": "eval", "eval": wait, "from": "h"},
        "rec": {"class": "rec", "unit": unit, "from": "wait"},
        "output": {"class": "softmax", "n_out": 5, "from": "rec", "loss": "ce", "target": "labels"},
    }


def _graph_of(net: Network, specs: dict[str, Any]) -> Any:
    """Return the graph of the values and losses, lowered without any context but the plan."""

    def emit(feed: dict[str, Any]) -> Any:
        result = lower(
            net.plan, net.stored_params, feed, train=True, outputs=net.plan.roots(), carried=NoCarriedState(), step=0
        )
        return result.values, result.total_loss

    return tf.function(emit, autograph=False).get_concrete_function(specs)


def _ops(function: Any) -> list[tuple[str, tuple[str, ...]]]:
    """Return the type and the output types of each op, in order, those of the body of the loop included."""
    graphs = [function.graph, *(f.graph for f in function.graph._functions.values() if hasattr(f, "graph"))]
    return [(op.type, tuple(t.dtype.name for t in op.outputs)) for g in graphs for op in g.get_operations()]


def test_lowered_in_threads_at_once_with_other_precisions() -> None:
    together = threading.Barrier(len(SETTINGS))
    # The functions of a config wait for each other, so that no lowering ends before the others have begun.
    nets = [Network.from_config(config_of(_network(together), **settings), train=True) for settings in SETTINGS]
    alone = [
        Network.from_config(config_of(_network(threading.Barrier(1)), **settings), train=True) for settings in SETTINGS
    ]
    expected = [_graph_of(net, net.input_signature()) for net in alone]
    found: dict[int, Any] = {}

    def run(index: int) -> None:
        found[index] = _graph_of(nets[index], nets[index].input_signature())

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(nets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(len(nets)))
    for index, function in enumerate(expected):
        assert _ops(found[index]) == _ops(function)
        assert found[index].structured_outputs[1].dtype.name == SETTINGS[index].get("float_dtype", "float32")
    kinds = [{dtype for _, dtypes in _ops(function) for dtype in dtypes} for function in expected]
    assert "bfloat16" in kinds[1] and not any("bfloat16" in kinds[i] for i in (0, 2))
    assert "float64" not in kinds[1] | kinds[2]


def test_of_the_config() -> None:
    config = config_of({"output": {"class": "linear", "n_out": 2, "from": "data"}}, float_dtype="float64")
    plan = Network.plan(config)
    assert plan.semantics.float_dtype == "float64" and plan.semantics.product_dtype is None
    assert plan.semantics.behavior_version == 21
    assert plan.layers["output"].output.dtype == plan.params["output/W"].dtype == "float64"
