"""Attention and positions in a loop: computed for all steps at once they give what they give step by step."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.tensor import SpatialDim
from returnn_tf.util.lazy_tf import tf
from tests.layers.nets import LENS, feed, net_of, renamed

HISTORY, OTHER_HISTORY, THIRD_HISTORY, OWN_HISTORY = (
    SpatialDim(name) for name in ("history", "other history", "third history", "own history")
)
SELF = {"class": "self_attention", "num_heads": 2, "total_key_dim": 4, "n_out": 4}
#: Layers y of a loop over data [batch, time, 3]; x is a linear layer of the frame, c the same in all steps.
NETS: dict[str, dict[str, Any]] = {
    "self_attention": {"y": {**SELF, "attention_left_only": True, "from": "x"}},
    "self_attention of both sides": {"y": {**SELF, "from": "x"}},
    "self_attention of a constant": {"y": {**SELF, "from": "c"}},
    "self_attention with another axis": {"y": {**SELF, "from": "outer"}},
    "self_attention within a step": {"y": {**SELF, "from": "within"}},
    "key_shift": {
        "shift": {"class": "relative_positional_encoding", "n_out": 2, "clipping": 2, "from": "x"},
        "y": {**SELF, "key_shift": "shift", "from": "x"},
    },
    "fixed key_shift": {
        "shift": {"class": "relative_positional_encoding", "n_out": 2, "clipping": 2, "fixed": True, "from": "x"},
        "y": {**SELF, "key_shift": "shift", "from": "x"},
    },
    "key_shift for all steps, attention in the loop": {
        "shift": {"class": "relative_positional_encoding", "n_out": 2, "from": "x"},
        "x2": {"class": "combine", "kind": "add", "from": ["x", "prev:y"]},
        "y": {**SELF, "n_out": 4, "key_shift": "shift", "from": "x2"},
    },
    "positional_encoding": {"y": {"class": "positional_encoding", "add_to_input": True, "from": "x"}},
    "only positions": {"y": {"class": "positional_encoding", "n_out": 5, "from": "x"}},
    "positions of a constant": {"y": {"class": "positional_encoding", "add_to_input": True, "from": "c"}},
    "positions with offset": {"y": {"class": "positional_encoding", "n_out": 4, "offset": "base:number", "from": "x"}},
    "constant position": {"y": {"class": "positional_encoding", "n_out": 4, "constant": 3, "from": "x"}},
    "cum_concat": {
        "all": {"class": "cum_concat", "out_spatial_dim": HISTORY, "from": "x"},
        "e": {"class": "dot", "red1": "F", "red2": "F", "var1": None, "var2": HISTORY, "from": ["x", "all"]},
        "w": {"class": "softmax_over_spatial", "axis": HISTORY, "from": "e"},
        "y": {"class": "generic_attention", "weights": "w", "base": "all"},
    },
    "cum_concat for all steps, attention in the loop": {
        "all": {"class": "cum_concat", "out_spatial_dim": OTHER_HISTORY, "from": "x"},
        "x2": {"class": "combine", "kind": "add", "from": ["x", "prev:y"]},
        "e": {"class": "dot", "red1": "F", "red2": "F", "var1": None, "var2": OTHER_HISTORY, "from": ["x2", "all"]},
        "w": {"class": "softmax_over_spatial", "axis": OTHER_HISTORY, "from": "e"},
        "y": {
            "class": "dot",
            "red1": OTHER_HISTORY,
            "red2": OTHER_HISTORY,
            "var1": None,
            "var2": "F",
            "from": ["w", "all"],
        },
    },
    "sum over cum_concat in the loop": {
        "all": {"class": "cum_concat", "out_spatial_dim": THIRD_HISTORY, "from": "x"},
        "total": {"class": "reduce", "mode": "sum", "axis": THIRD_HISTORY, "from": "all2"},
        "all2": {"class": "combine", "kind": "add", "from": ["all", "prev:y"]},
        "y": {"class": "linear", "activation": "tanh", "n_out": 4, "from": "total"},
    },
    "dot_attention": {"y": {"class": "dot_attention", "base": "base:enc", "base_ctx": "base:ctx", "from": "x"}},
    "concat_attention": {"y": {"class": "concat_attention", "base": "base:enc", "base_ctx": "base:ctx", "from": "x"}},
    "gauss_window_attention": {
        "p": {"class": "linear", "activation": "sigmoid", "n_out": 1, "from": "x"},
        "p4": {"class": "eval", "eval": "source(0) * 4", "from": "p"},
        "y": {"class": "gauss_window_attention", "base": "base:enc", "window_size": 3, "from": "p4"},
    },
    "generic_attention": {
        "e": {"class": "combine", "kind": "mul", "from": ["base:ctx", "x"]},
        "w": {"class": "softmax_over_spatial", "from": "e"},
        "y": {"class": "generic_attention", "weights": "w", "base": "base:enc"},
    },
}


def loop_net(nets: list[dict[str, Any]], moved: bool) -> Any:
    """Return a loop with the layers of each of these, with sources of their own; "output/out_0" etc. sum up y."""
    unit = {
        "x": {"class": "linear", "activation": "tanh", "n_out": 4, "from": "data:source"},
        "output": {"class": "linear", "activation": "tanh", "n_out": 2, "from": ["x", "prev:output"]},
    }
    network = {
        "enc": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "data:other"},
        "ctx": {"class": "linear", "activation": "tanh", "n_out": 4, "from": "data:other"},
        "last": {"class": "reduce", "mode": "mean", "axis": "T", "from": "ctx"},
        "number": {"class": "copy", "from": "data:numbers"},
        "output": {"class": "rec", "unit": unit, "optimize_move_layers_out": moved, "from": "data"},
    }
    for number, layers in enumerate(nets):
        own = {
            "x": unit["x"],
            "c": {"class": "copy", "from": "base:last"},
            "outer": {"class": "split_dims", "axis": "F", "dims": (2, 2), "from": "x"},
            "within": {"class": "combine", "kind": "mul", "from": ["base:ctx", "x"]},
            **layers,
            "out": {"class": "reduce", "mode": "sum", "axis": "except_batch", "from": "y", "is_output_layer": True},
        }
        unit.update(renamed(own, "_%d" % number))
        loss = {"class": "eval", "eval": "source(0) ** 2", "from": "output/out_%d" % number, "loss": "as_is"}
        network["loss_%d" % number] = loss
    return net_of(network)


@pytest.mark.slow
def test_all_steps_at_once() -> None:
    results, params, names = [], None, sorted(NETS)
    for moved in (False, True):
        net = loop_net([NETS[name] for name in names], moved)
        params = net.get_param_values() if params is None else params
        net.set_param_values(params)
        results.append(net.run(feed(), with_grad=True))
    for number, name in enumerate(names):
        value, expected = (r.layers["output/out_%d" % number].value for r in results)
        assert np.abs(expected).max() > 0, name
        for b, n in enumerate(LENS):
            np.testing.assert_allclose(value[b, :n], expected[b, :n], rtol=1e-4, atol=1e-5, err_msg=name)
    for key in params:  # what the loss does not depend on has no gradient or zeros
        first, second = (r.grads.get(key, np.zeros_like(params[key])) for r in results)
        number = key.partition("/rec/")[2].partition("/")[0].rpartition("_")[2]
        name = names[int(number)] if number.isdigit() else ""
        np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-4, err_msg="%s, %s" % (key, name))


def test_masked_history() -> None:
    """The history in a masked unit holds the picked frames only, in the loop and outside of it."""
    layers = {
        "mask": {"class": "compare", "kind": "greater", "value": 0.0, "from": "one"},
        "one": {"class": "reduce", "mode": "sum", "axis": "F", "from": "x"},
        "y": {
            "class": "masked_computation",
            "mask": "mask",
            "from": "x",
            "unit": {"class": "subnetwork", "from": "data", "subnetwork": {"output": {**SELF, "from": "data"}}},
        },
    }
    outside, inside = (loop_net([layers], moved) for moved in (True, False))
    assert outside.params.keys() == inside.params.keys()
    rng = np.random.RandomState(3)
    values = {name: rng.normal(0, 1, param.shape) for name, param in sorted(outside.params.items())}
    results = []
    for net in (outside, inside):
        net.set_param_values(values)
        results.append(net.run(feed()).layers["output/out_0"].value)
    assert results[0].shape == (3, 4)
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)


def test_history_without_its_steps() -> None:
    """For all steps at once the history is one tensor; what it means by step must not get lost."""
    layers = {
        "all": {"class": "cum_concat", "out_spatial_dim": OWN_HISTORY, "from": "x"},
        "y": {"class": "reduce", "mode": "sum", "axis": OWN_HISTORY, "from": "all"},
    }
    with pytest.raises(Exception, match="vary with the frames"):
        loop_net([layers], True).run(feed())


def test_base_is_brought_into_order_once() -> None:
    """In training, the products of the steps get frames of an encoder with the sequences first, whatever it gives."""
    net = Network.from_config(Config({
        "extern_data": {"data": {"dim": 3}, "classes": {"dim": 5, "sparse": True}}, "behavior_version": 21,
        "network": {
            "enc": {"class": "rec", "unit": "lstm", "n_out": 4, "from": "data"},
            "output": {"class": "rec", "from": [], "target": "classes", "unit": {
                "s": {"class": "rnn_cell", "unit": "lstm", "n_out": 4, "from": "prev:att"},
                "e": {"class": "dot", "red1": "F", "red2": "F", "var1": "T", "var2": None, "from": ["base:enc", "s"]},
                "w": {"class": "softmax_over_spatial", "from": "e"},
                "att": {"class": "generic_attention", "weights": "w", "base": "base:enc"},
                "output": {"class": "softmax", "target": "classes", "loss": "ce", "from": "att"},
            }},
        },
    }), train=True)  # fmt: skip
    products: dict[bool, set[bytes]] = {}
    for train in (True, False):
        lower = partial(net.lower, train=train, step=tf.constant(0, "int64"))
        graph = net.feed_function(lambda inputs, lower=lower: lower(inputs).objective).trace().graph
        functions = graph.as_graph_def().library.function
        nodes = [node for function in functions for node in function.node_def if node.op == "Einsum"]
        products[train] = {node.attr["equation"].s for node in nodes if node.name.split("/")[-3] == "att"}
    assert products == {True: {b"ab,abc->ac"}, False: {b"ab,bac->ac"}}
