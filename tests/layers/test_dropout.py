"""Which entries share a dropout mask, and which layers do."""

import numpy as np
import pytest

from tests.layers.nets import LENS, fails, feed, run

WIDE = feed()["wide"]


def dropped(options, train=True, source="data:wide", **more):
    """Return where entries were dropped: bool in the shape of the source."""
    layer = {"class": "dropout", "from": source, "dropout": 0.5, **options}
    arrays = feed(wide=np.ones([3, 4, 2, 3]), data=np.ones([3, 4, 3]))
    return run({"output": layer, **more}, arrays, train=train)["output"].value == 0


def shared(mask):
    """Return the axes along which a mask is constant."""
    return [axis for axis in range(mask.ndim) if (mask == mask.take([0], axis=axis)).all()]


@pytest.mark.parametrize(
    "options,axes",
    [
        ({}, [0, 1]),
        ({"dropout_noise_shape": {"*": None}}, []),
        ({"dropout_noise_shape": (None, None, None, None)}, []),
        ({"dropout_noise_shape": [1, None, 1, None]}, [0, 2]),
        ({"dropout_noise_shape": (None, 1, 2, 1)}, [1, 3]),
        ({"dropout_noise_shape": {"B": -1, "except_time": -1, "T": 1}}, [1]),
        ({"dropout_noise_shape": {"*": 1, "B": None, "F": None}}, [1, 2]),
        ({"dropout_axis": "B"}, [1, 2, 3]),
        ({"dropout_axis": ["T", "F"]}, [0, 2]),
    ],
)
def test_axes_that_share_the_mask(options, axes):
    assert shared(dropped(options)) == axes


def test_no_dropout_outside_of_training():
    assert not dropped({}, train=False).any()
    assert dropped({"dropout_on_forward": True}, train=False).any()


@pytest.mark.parametrize("name", ["subnetwork", "rec"])
def test_options_of_layers_with_a_network(name):
    options = {"dropout": 0.5, "dropout_on_forward": True, "dropout_axis": ["B", "T"]}
    if name == "subnetwork":
        layer = {"class": "subnetwork", "subnetwork": {"output": {"class": "copy", "from": "data"}}}
    else:
        layer = {"class": "rec", "unit": {"output": {"class": "copy", "from": "data:source"}}}
    mask = dropped({**layer, **options}, train=False, source="data")
    if name == "rec":  # a frame at a time
        assert mask.shape == (3, 4, 3)
    assert shared(mask) == [2]


@pytest.mark.parametrize("moved", [True, False])
def test_entries_count_the_axes_of_a_step(moved):
    unit = {
        "output": {"class": "dropout", "dropout": 0.5, "dropout_noise_shape": (None, 1, None), "from": "data:source"}
    }
    layer = {"class": "rec", "unit": unit, "optimize_move_layers_out": moved}
    mask = dropped({**layer, "dropout": 0.0}, source="data:wide")
    assert 2 in shared(mask) and 0 not in shared(mask)


def test_layers_with_the_same_source_and_options_share_the_mask():
    arrays = feed(data=np.ones([3, 4, 3]))
    layer = {"class": "dropout", "from": "data", "dropout_noise_shape": {"*": None}, "is_output_layer": True}
    network = {
        "a": {**layer, "dropout": 0.5},
        "b": {**layer, "dropout": 0.5},
        "c": {**layer, "dropout": 0.4},
        "output": {**layer, "dropout": 0.5, "from": "data:other"},
    }
    layers = run(network, {**arrays, "other": arrays["data"], "other/size0": LENS}, train=True)
    masks = {name: layers[name].value == 0 for name in network}
    assert (masks["a"] == masks["b"]).all()
    assert (masks["a"] != masks["c"]).any() and (masks["a"] != masks["output"]).any()


@pytest.mark.parametrize(
    "options,message",
    [
        ({"dropout_noise_shape": (None, 1)}, "dropout_noise_shape has 2 entries, but the source is"),
        ({"dropout_noise_shape": {"F": 2}}, "dropout_noise_shape has the size 2 for an axis of"),
        ({"dropout_noise_shape": {"stag:nothing": 1}}, "stag:nothing"),
        ({"dropout_noise_shape": "F"}, "option 'dropout_noise_shape' must be"),
        ({"dropout_axis": "stag:nothing"}, "stag:nothing"),
    ],
)
def test_messages(options, message):
    fails({"class": "dropout", "from": "data", "dropout": 0.5, **options}, message)
