"""Programs in C++ and C, without Python, run what was exported and compute what the network does."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest

import returnn_tf
from returnn_tf.config import Config
from tests.export.decoders import build, cut, outputs

pytestmark = pytest.mark.skipif(
    not (shutil.which("make") and shutil.which("g++") and shutil.which("cc")), reason="needs make and C compilers"
)

BLSTM = {
    "fw": {"class": "rec", "unit": "lstm", "n_out": 6, "from": "data"},
    "bw": {"class": "rec", "unit": "lstm", "n_out": 6, "direction": -1, "from": "data"},
    "output": {"class": "softmax", "n_out": 4, "from": ["fw", "bw"]},
}
LENGTHS = [9, 4, 7]


@pytest.fixture(scope="module")
def c_decoder(tmp_path_factory):
    return build("c", str(tmp_path_factory.mktemp("c")))


@pytest.fixture(scope="module")
def cpp_decoder(tmp_path_factory):
    return build("cpp", str(tmp_path_factory.mktemp("cpp")))


LM = {
    "words": {"class": "linear", "activation": None, "with_bias": False, "n_out": 5, "from": "data"},
    "lstm0": {"class": "rec", "unit": "lstm", "n_out": 6, "from": "words"},
    "lstm1": {"class": "rec", "unit": "lstm", "n_out": 6, "from": "lstm0"},
    "output": {"class": "linear", "activation": "log_softmax", "n_out": 11, "from": "lstm1"},
}


def make_network(layers, extern_data):
    net = returnn_tf.Network.from_config(Config({"extern_data": extern_data, "network": layers}))
    random = np.random.RandomState(3)
    net.set_param_values({name: random.normal(0, 0.4, var.shape) for name, var in net.params.items()})
    return net


def expected(net, feed, lengths):
    out = net.run({"data": feed, "data/size0": np.array(lengths, "int32")})
    return cut(out.layers["output"].value, lengths)


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for tag, value in wanted.items():
        np.testing.assert_allclose(found[tag], value, rtol=1e-5, atol=1e-6, err_msg=tag)


def side_file(folder):
    with open(os.path.join(folder, "model.json"), encoding="utf8") as file:
        return json.load(file)


@pytest.mark.parametrize("portable", [False, True], ids=["native", "portable"])
def test_c_forwards_ragged_batches(c_decoder, tmp_path, portable):
    net = make_network(BLSTM, {"data": {"dim": 5}})
    folder = str(tmp_path / "model")
    returnn_tf.export(net, folder, portable=portable)
    facts = side_file(folder)
    libraries = facts.get("native", {}).get("libraries", [])
    assert bool(libraries) is not portable
    batch = np.random.RandomState(1).normal(0, 1, (3, max(LENGTHS), 5)).astype("float32")
    names = {name: entry["tensor"] for name, entry in {**facts["inputs"], **facts["outputs"]}.items()}
    program = [c_decoder, "forward", folder, "--batch", "3", "--input", names["data"], "--sizes", names["data_size0"]]
    program += ["--output", names["output"]]
    program += [word for library in libraries for word in ("--library", os.path.join(folder, library))]
    assert_same(outputs(program, cut(batch, LENGTHS)), expected(net, batch, LENGTHS))


def test_c_carries_the_states_of_a_language_model(c_decoder, tmp_path):
    """Blocks of two words, with the states handed in and out, give what whole sentences do."""
    net = make_network(LM, {"data": {"dim": 11, "sparse": True}})
    folder = str(tmp_path / "model")
    returnn_tf.export(net, folder, state=True, portable=True)
    facts = side_file(folder)
    assert len(facts["states"]) == 4
    batch = np.random.RandomState(1).randint(0, 11, (3, max(LENGTHS)))
    inputs, values = facts["inputs"], facts["outputs"]
    program = [c_decoder, "forward", folder, "--batch", "3", "--block", "2", "--input", inputs["data"]["tensor"]]
    program += ["--sizes", inputs["data_size0"]["tensor"], "--output", values["output"]["tensor"]]
    for name, state in facts["states"].items():
        program += ["--state", inputs[name]["tensor"], values[state["next"]]["tensor"]]
    assert_same(outputs(program, cut(batch, LENGTHS)), expected(net, batch, LENGTHS))
