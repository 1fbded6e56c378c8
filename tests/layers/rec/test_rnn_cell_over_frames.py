"""`rnn_cell` outside of loops: it runs over the frames, as inside of a loop with the same source."""

import numpy as np
import pytest

from tests.layers.nets import LENS, feed, net_of

UNITS = ["lstm", "nativelstm2", "lstmblock", "basiclstm", "zoneoutlstm", "gru", "basicrnn", "rhn"]


@pytest.mark.parametrize("unit", UNITS)
def test_as_in_a_loop(unit):
    cell = {"class": "rnn_cell", "unit": unit, "n_out": 5}
    outside = net_of({"output": {**cell, "from": "data"}})
    inside = net_of({"output": {"class": "rec", "from": "data", "unit": {"output": {**cell, "from": "data:source"}}}})
    params = outside.get_param_values()
    inside.set_param_values({name.replace("output/", "output/rec/output/", 1): v for name, v in params.items()})
    result, expected = outside.run(feed()).layers["output"], inside.run(feed()).layers["output"]
    assert result.axes == expected.axes == ("B", "T", "F")
    assert result.sizes[1].tolist() == LENS.tolist()
    frames = (np.arange(LENS.max())[None] < LENS[:, None])[..., None]
    np.testing.assert_allclose(result.value * frames, expected.value * frames, rtol=1e-5, atol=1e-6)


def test_names_of_parameters():
    net = net_of({"output": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": 5, "from": "data"}})
    shapes = {name: tuple(param.shape) for name, param in net.params.items()}
    assert shapes == {"output/rec/lstm_cell/kernel": (8, 20), "output/rec/lstm_cell/bias": (20,)}
    assert [str(dim) for dim in net.plan.outputs["output"].output.dims][:2] == ["time", "batch"]


def test_last_state():
    net = net_of({
        "cell": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": 5, "from": "data"},
        "output": {"class": "get_last_hidden_state", "key": "h", "n_out": 5, "from": "cell"},
        "last": {"class": "get_last_hidden_state", "key": "h", "n_out": 5, "from": "cell", "is_output_layer": True},
        "frames": {"class": "copy", "from": "cell", "is_output_layer": True},
    })  # fmt: skip
    layers = net.run(feed()).layers
    last = layers["frames"].value[np.arange(len(LENS)), LENS - 1]
    np.testing.assert_allclose(layers["output"].value, last, rtol=1e-5)
