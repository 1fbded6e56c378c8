"""The target ``saved_model``: what is written computes what the network does, in a process of its own."""

from __future__ import annotations

import json
import os

import numpy
import pytest

import returnn_tf
from returnn_tf.export.saved_model.run import run_in_process

EXTERN_DATA = {"data": {"dim": 4}, "classes": {"dim": 5, "sparse": True}}


def network(layers, *, search=False, **settings):
    config = {"network": layers, "extern_data": EXTERN_DATA, "behavior_version": 21, **settings}
    return returnn_tf.Network.from_config(returnn_tf.Config(config), search=search)


LSTM = {
    "lstm": {"class": "rec", "unit": "lstm", "n_out": 6, "from": "data"},
    "output": {"class": "softmax", "n_out": 5, "from": "lstm"},
}


@pytest.mark.parametrize("portable", [False, True])
def test_lstm_natively_and_portable(tmp_path, portable):
    """The outputs are those of `Network.run`; only the native form needs a library, which lies beside the graph."""
    net = network(LSTM)
    folder = str(tmp_path / "out")
    returnn_tf.export(net, folder, portable=portable)
    with open(os.path.join(folder, "model.json"), encoding="utf8") as file:
        facts = json.load(file)
    assert bool(facts["native"]["libraries"]) == (not portable)
    assert all(os.path.getsize(os.path.join(folder, path)) for path in facts["native"]["libraries"])
    feed = {"data": numpy.random.RandomState(3).normal(0, 1, [2, 7, 4]).astype("float32"),
            "data_size0": numpy.array([7, 4], "int32")}  # fmt: skip
    got = run_in_process(folder, feed)
    expected = net.run({"data": feed["data"], "data/size0": feed["data_size0"]}).layers["output"]
    numpy.testing.assert_allclose(got["output"][0], expected.value[0], rtol=1e-5, atol=1e-6)
    numpy.testing.assert_allclose(got["output"][1, :4], expected.value[1, :4], rtol=1e-5, atol=1e-6)
    assert got["output_size0"].tolist() == [7, 4]
    assert os.listdir(tmp_path) == ["out"]  # nothing is left of the staging folder
