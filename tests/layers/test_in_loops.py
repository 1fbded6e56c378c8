"""Layers inside of a loop: computed for all steps at once they give what they give step by step."""

import numpy as np
import pytest

from returnn_tf.tensor import FeatureDim
from tests.layers.nets import LENS, STATIC, feed, net_of, renamed

KEYS = FeatureDim("keys", 3)
X = {"from": "x"}
LAYERS = {
    "window over steps": {"class": "window", "window_size": 3, "window_right": 0, **X},
    "window": {"class": "window", "window_size": 3, "axis": STATIC, **X},
    "window of a constant": {"class": "window", "window_size": 3, "window_right": 0, "from": "base:last"},
    "window of swapped axes": {"class": "window", "window_size": 2, "window_right": 0, "from": "swapped"},
    "cumsum over steps": {"class": "cumsum", **X},
    "cumsum of a constant": {"class": "cumsum", "from": "base:last"},
    "cumsum": {"class": "cumsum", "axis": STATIC, **X},
    "reduce": {"class": "reduce", "mode": "max", "axis": STATIC, **X},
    "reduce spatial": {"class": "reduce", "mode": "mean", "axis": "spatial", **X},
    "math_norm": {"class": "math_norm", "p": 2, "axis": "F", **X},
    "softmax": {"class": "softmax_over_spatial", "axis": STATIC, **X},
    "layer_norm": {"class": "layer_norm", **X},
    "norm": {"class": "norm", "axis": [STATIC, "F"], **X},
    "conv": {"class": "conv", "filter_size": 2, "padding": "same", "n_out": 2, **X},
    "pool": {"class": "pool", "mode": "max", "pool_size": 2, "in_spatial_dims": [STATIC], **X},
    "transposed_conv": {"class": "transposed_conv", "filter_size": 2, "n_out": 2, **X},
    "dot with keys": {
        "class": "dot",
        "red1": "F",
        "red2": "F",
        "var1": "T",
        "var2": STATIC,
        "from": ["base:keys", "x"],
    },
    "dot with queries": {
        "class": "dot",
        "red1": "F",
        "red2": "F",
        "var1": STATIC,
        "var2": "T",
        "from": ["x", "base:keys"],
    },
    "dot without var2": {
        "class": "dot",
        "red1": "F",
        "red2": "F",
        "var1": "T",
        "var2": "T?",
        "from": ["base:keys", "r"],
    },
    "dot of itself": {"class": "dot", "red1": "F", "red2": "F", "var1": STATIC, "var2": STATIC, "from": ["x", "x"]},
    "top_k": {"class": "top_k", "axis": STATIC, "k": 1, **X},
    "batch_softmax": {"class": "batch_softmax", **X},
    "softmax from the step on": {"class": "softmax_over_spatial", "start": "at", "from": "base:keys"},
    "softmax in a window": {
        "class": "softmax_over_spatial",
        "window_start": "at",
        "window_size": 2,
        "from": "base:keys",
    },
    "mask from the step on": {"class": "seq_len_mask", "mask_value": 0, "start": "at", "from": "base:keys"},
    "mask of a length": {"class": "seq_len_mask", "mask_value": 0, "seq_len_source": "at", "from": "base:keys"},
    "resize": {"class": "resize", "axis": STATIC, "factor": 2, **X},
    "gather_nd of the frame": {"class": "gather_nd", "position": "one", **X},
    "gather_nd of a constant": {"class": "gather_nd", "position": "at", "from": "base:last"},
    "gather_nd by step": {"class": "gather_nd", "position": "parity", **X},
}


def net_with(layers, moved, version=21):
    """Return a loop with all these layers, each with sources of its own: its results are "output/all_0" and so on."""
    x = {"class": "linear", "activation": "tanh", "out_dim": KEYS, "from": "data:source"}
    unit = {
        "x": x,
        "r": {"class": "reduce", "mode": "sum", "axis": STATIC, "from": "x"},
        "output": {"class": "linear", "activation": "tanh", "n_out": 2, "from": ["r", "prev:output"]},
    }
    network = {
        "keys": {"class": "linear", "activation": "tanh", "out_dim": KEYS, "from": "data:other"},
        "last": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data:wide"},
        "output": {"class": "rec", "unit": unit, "optimize_move_layers_out": moved, "from": "data:wide"},
    }
    for number, layer in enumerate(layers):
        all_axes = {"class": "reduce", "mode": "sum", "axis": "except_batch", "from": "y", "is_output_layer": True}
        own = {"x": x, "r": unit["r"], "y": layer, "all": all_axes}
        own["swapped"] = {"class": "swap_axes", "axis1": STATIC, "axis2": "F", "from": "x"}
        own["at"] = {"class": "eval", "eval": "source(0) // 2", "from": ":i"}
        own["parity"] = {"class": "eval", "eval": "source(0) % 2", "from": ":i"}
        own["one"] = {"class": "constant", "value": 1, "with_batch_dim": True}
        unit.update(renamed(own, "_%d" % number))
        loss = {"class": "eval", "eval": "source(0) ** 2", "from": "output/all_%d" % number, "loss": "as_is"}
        network["loss_%d" % number] = loss
    return net_of(network, behavior_version=version)


@pytest.mark.slow
@pytest.mark.parametrize("names,version", [(sorted(LAYERS), 21), (["window over steps"], 0)], ids=["all", "old window"])
def test_all_steps_at_once(names, version):
    results, params = [], None
    for moved in (False, True):
        net = net_with([LAYERS[name] for name in names], moved, version)
        params = net.get_param_values() if params is None else params
        net.set_param_values(params)
        results.append(net.run(feed(), with_grad=True))
    for number, name in enumerate(names):
        value, expected = (r.layers["output/all_%d" % number].value for r in results)
        for b, n in enumerate(LENS):
            np.testing.assert_allclose(value[b, :n], expected[b, :n], rtol=1e-4, atol=1e-5, err_msg=name)
    for key in params:  # what the loss does not depend on has no gradient or zeros
        first, second = (r.grads.get(key, np.zeros_like(params[key])) for r in results)
        number = key.partition("/rec/")[2].partition("/")[0].rpartition("_")[2]
        name = names[int(number)] if number.isdigit() else ""
        np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-4, err_msg="%s, %s" % (key, name))


@pytest.mark.parametrize(
    "layer,match",
    [
        ({"class": "window", "window_size": 3, **X}, "set window_right to 0"),
        ({"class": "cumsum", "reverse": True, **X}, "does not know yet"),
    ],
)
def test_steps_to_come_are_unknown(layer, match):
    with pytest.raises(Exception, match=match):
        net_with([layer], False)
