"""Options that name the step or the axis that a layer works on anyway, and those that this program refuses."""

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.tensor import SpatialDim, batch_dim, single_step_dim
from tests.layers.nets import LENS, TIME, feed, net_of

STEP = {"class": "linear", "activation": None, "n_out": 3, "from": ["prev:output", "data:source"]}
TABLE = {"class": "edit_distance_table", "from": "data:source", "target": "layer:base:data:labels"}


def loop(source="data", **unit):
    return {"output": {"class": "rec", "from": source, "unit": unit}}


def test_positions_of_a_static_axis():
    layers = {
        "wide": {"class": "positional_encoding", "axis": "dim:2", "n_out": 4, "from": "data:wide"},
        "time": {"class": "positional_encoding", "axis": TIME, "n_out": 4, "from": "data", "is_output_layer": True},
        "output": {"class": "copy", "from": "wide"},
    }
    values = net_of(layers).run(feed()).layers
    np.testing.assert_allclose(values["output"].value[0, 0, 1], values["time"].value[0, 1], rtol=1e-6)
    assert (values["output"].value[:, :1] == values["output"].value).all()


def test_positions_of_steps():
    position = {"class": "positional_encoding", "axis": single_step_dim, "n_out": 4, "from": "data:source"}
    plain = {**position}
    del plain["axis"]
    values = [
        net_of(loop(output={"class": "copy", "from": "p"}, p=layer)).run(feed()).layers["output"].value
        for layer in (position, plain)
    ]
    np.testing.assert_array_equal(values[0], values[1])


def test_dims_of_the_edit_distance():
    of = {"class": "edit_distance", "a": "data:labels", "b": "data:labels"}
    net = net_of({"output": {**of, "a_spatial_dim": TIME, "b_spatial_dim": TIME}})
    assert net.run(feed()).layers["output"].value.tolist() == [0] * len(LENS)


def test_axis_of_the_edit_distance_table():
    values = [
        net_of(loop("data:labels", output={**TABLE, **more})).run(feed()).layers["output"].value
        for more in ({}, {"axis": single_step_dim})
    ]
    np.testing.assert_array_equal(values[0], values[1])


OTHER = SpatialDim("other")
MISTAKES = {
    "another dim of the edit distance": (
        {"output": {"class": "edit_distance", "a": "data:labels", "b": "data:labels", "b_spatial_dim": OTHER}},
        "Axis .*other.* means no axis|has no axis",
    ),
    "table over frames": (
        {"output": {**TABLE, "from": "data:labels", "target": "layer:data:labels", "axis": "T"}},
        "computes one step of a loop, so axis must be single_step_dim",
    ),
    "an axis of the step": (
        loop("data:labels", output={**TABLE, "axis": batch_dim}),
        "computes one step of a loop, so axis must be single_step_dim",
    ),
    "step offset": (
        {"output": {"class": "rec", "from": "data", "unit": {"output": STEP}, "use_global_rec_step_offset": True}},
        "'use_global_rec_step_offset' is not supported: ':i' counts the steps of each loop",
    ),
    "scale of lengths": (
        {"output": {"class": "classes_to_length_distribution", "window": 2, "scale": 2.0, "from": "data:labels"}},
        "'scale' is not supported",
    ),
    "scores of a choice": (
        loop(output={"class": "choice", "beam_size": 2, "target": "labels", "from": "p", "add_to_beam_scores": False,
                     "initial_output": 0}, p={"class": "softmax", "n_out": 5, "from": "prev:output"}),
        "'add_to_beam_scores' is not supported: hypotheses are always ranked by all their labels",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_mistakes(name):
    layers, match = MISTAKES[name]
    with pytest.raises(ConfigError, match=match):
        net_of(layers)
