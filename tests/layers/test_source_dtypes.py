"""Complex numbers, integers and bools as sources: computed where that is defined, else refused while planning."""

import numpy as np
import pytest

from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import ConfigError
from returnn_tf.tensor import FeatureDim, SpatialDim, batch_dim
from tests.layers.nets import LENS, config_of, run

Z = (np.random.default_rng(1).normal(size=(3, 4, 6)).astype("float32")).view("complex64")
STATIC = FeatureDim("f", 2)
MASK = np.arange(4)[None, :, None] < LENS[:, None, None]


def result(layer):
    settings = {"extern_data": {"data": {"dim": 3, "dtype": "complex64"}}}
    return run({"output": {"from": "data", **layer}}, {"data": Z, "data/size0": LENS}, **settings)["output"].value


@pytest.mark.parametrize(
    "layer,expected",
    [
        ({"class": "reduce", "mode": "mean", "axis": "T"}, (Z * MASK).sum(axis=1) / LENS[:, None].astype("float32")),
        ({"class": "reduce", "mode": "prod", "axis": "F"}, Z.prod(axis=2)),
        ({"class": "math_norm", "p": 1, "axis": "F"}, abs(Z).sum(axis=2)),
        ({"class": "combine", "kind": "*", "from": ["data", "data"]}, Z * Z),
        ({"class": "dot", "red1": "F", "red2": "F", "var1": (), "var2": (), "from": ["data"] * 2}, (Z * Z).sum(axis=2)),
        ({"class": "eval", "eval": "tf.abs(source(0)) ** 2", "out_type": {"dtype": "float32"}}, abs(Z) ** 2),
        ({"class": "seq_len_mask", "mask_value": 0}, Z * MASK),
        ({"class": "dropout", "dropout": 0.5}, Z),
        ({"class": "copy", "from": ["data", "data"]}, np.concatenate([Z, Z], axis=2)),
        ({"class": "shift_axis", "axis": "T", "amount": 1, "pad": True, "pad_value": 0}, None),
        ({"class": "pad", "axes": "F", "padding": 1}, np.pad(Z, [(0, 0), (0, 0), (1, 1)])),
        ({"class": "cumsum", "axis": "T"}, np.cumsum(Z, axis=1)),
        ({"class": "activation", "activation": "abs"}, np.abs(Z)),
        ({"class": "activation", "activation": "angle"}, np.angle(Z)),
        ({"class": "activation", "activation": "real"}, Z.real),
        ({"class": "activation", "activation": "imag|relu"}, np.maximum(Z.imag, 0)),
    ],
)
def test_computed(layer, expected):
    value = result(layer)
    if expected is not None:
        assert value.dtype == expected.dtype
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "layer,message",
    [
        ({"class": "linear", "activation": None, "n_out": 2}, "needs real numbers, but 'data' is"),
        ({"class": "conv", "filter_size": 2, "padding": "same", "n_out": 2}, "needs real numbers"),
        ({"class": "rec", "unit": "lstm", "n_out": 2}, "needs real numbers"),
        ({"class": "layer_norm"}, "needs real numbers"),
        ({"class": "activation", "activation": "relu"}, "needs real numbers"),
        ({"class": "activation", "activation": "relu|abs"}, "needs real numbers"),
        ({"class": "compare", "value": 1.0}, "needs real numbers"),
        ({"class": "pool", "mode": "max", "pool_size": 2}, "needs real numbers"),
        ({"class": "top_k", "k": 2, "axis": "F"}, "needs real numbers"),
        ({"class": "softmax_over_spatial"}, "energies must be floats"),
        ({"class": "reduce", "mode": "max", "axis": "T"}, "mode 'max' needs real numbers"),
        ({"class": "reduce_out", "mode": "max", "num_pieces": 3}, "mode 'max' needs real numbers"),
        ({"class": "copy", "loss": "as_is"}, "the loss 'as_is' needs real numbers"),
        ({"class": "search_sorted", "sorted_sequence": "data", "values": "data", "from": []}, "numbers in an order"),
    ],
)
def test_refused(layer, message):
    with pytest.raises(ConfigError, match=message) as info:
        result(layer)
    assert "could not be built" not in str(info.value)


@pytest.mark.parametrize(
    "layer,message",
    [
        ({"class": "linear", "activation": None, "n_out": 2, "in_dim": "T"}, None),
        ({"class": "layer_norm", "in_dim": STATIC}, "needs floats, but 'data' is"),
        ({"class": "rec", "unit": "lstm", "n_out": 2}, "needs floats, but 'data' is"),
        ({"class": "math_norm", "p": 2, "axis": "F"}, "needs floats"),
        ({"class": "gating", "activation": "tanh"}, "needs floats"),
        ({"class": "fold", "mode": "mean", "window_dim": STATIC}, "mode 'mean' needs numbers of another type"),
        ({"class": "switch", "condition": "flag", "true_from": 0.5, "false_from": "data"}, "true_from is 0.5, but the"),
        ({"class": "reduce_out", "mode": "any", "num_pieces": 2}, "modes 'any' and 'all' are for bools"),
        ({"class": "compare", "kind": "less", "value": 1.0}, None),
        ({"class": "switch", "condition": "flag", "true_from": 2.0, "false_from": "data"}, None),
        ({"class": "relative_positional_encoding", "n_out": 2}, None),
    ],
)
def test_integers(layer, message):
    data = {"dim_tags": [batch_dim, SpatialDim("time"), STATIC], "dtype": "int32"}
    network = {"flag": {"class": "constant", "value": True}, "output": {"from": "data", **layer}}
    if layer["class"] == "switch":
        network["output"]["from"] = []
    if layer["class"] == "linear":
        data = {"dim": 3, "sparse": True}
        del network["output"]["in_dim"]
    arrays = {"data": np.zeros([3, 4] + [2] * ("dim_tags" in data), "int32"), "data/size0": LENS}
    if message is None:
        run(network, arrays, extern_data={"data": data})
        return
    with pytest.raises(ConfigError, match=message):
        run(network, arrays, extern_data={"data": data})


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32"])
@pytest.mark.parametrize(
    "layer,needs",
    [
        ({"class": "activation", "activation": "relu"}, "numbers"),
        ({"class": "activation", "activation": "abs|square"}, "numbers"),
        ({"class": "activation", "activation": "tanh"}, "floats"),
        ({"class": "activation", "activation": "relu|tanh"}, "floats"),
        ({"class": "activation", "activation": "identity * 2"}, "numbers"),
        ({"class": "activation", "activation": "softmax"}, "floats"),
        ({"class": "activation", "activation": "logical_not"}, "bools"),
        ({"class": "activation", "activation": "identity|logical_not"}, "bools"),
        ({"class": "activation", "activation": "identity"}, "anything"),
        ({"class": "activation", "activation": None}, "anything"),
        ({"class": "cumsum", "axis": "T"}, "numbers"),
        ({"class": "rec", "unit": {"output": {"class": "cumsum", "from": "data:source"}}}, "numbers"),
        ({"class": "pool", "mode": "max", "pool_size": 2}, "numbers"),
        ({"class": "pool", "mode": "avg", "pool_size": 2}, "floats"),
        ({"class": "positional_encoding"}, "anything"),
        ({"class": "positional_encoding", "add_to_input": True}, "floats"),
        (
            {"class": "scatter_nd", "position": "at", "position_axis": "T", "output_dim_via_time_from": "data"},
            "numbers",
        ),
    ],
)
def test_what_is_needed(layer, needs, dtype):
    """Everything else is refused while planning, with what to do."""
    data = {"dim_tags": [batch_dim, SpatialDim("time"), STATIC], "dtype": dtype}
    network = {"at": {"class": "range_in_axis", "axis": "T", "from": "data"}, "output": {"from": "data", **layer}}
    arrays = {"data": np.ones([3, 4, 2], dtype), "data/size0": LENS}
    allowed = {"anything": ["bool", "int32", "float32"], "numbers": ["int32", "float32"], "floats": ["float32"]}
    if dtype in allowed.get(needs, ["bool"]):
        run(network, arrays, extern_data={"data": data})
        return
    how = "'compare' to make them" if needs == "bools" else "by a layer of class 'cast'"
    with pytest.raises(ConfigError, match="%s.* the source is|is for bools" % needs) as info:
        plan_from_config(config_of(network, extern_data={"data": data}))
    assert how in str(info.value)
