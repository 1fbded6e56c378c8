"""The target ``frozen``: one file, which a session of another process runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf.config import ConfigError
from returnn_tf.export.graph_ops import add_outputs
from returnn_tf.util.lazy_tf import tf
from tests.export.small_nets import DECODER, NETS, network


def _graph_def(folder: Path) -> Any:
    graph_def = tf.compat.v1.GraphDef()
    graph_def.ParseFromString((folder / "model.pb").read_bytes())
    return graph_def


@pytest.mark.slow
@pytest.mark.parametrize("portable", [False, True])
def test_blstm(tmp_path: Path, portable: bool) -> None:
    """The export compares it with `Network.run` in another process; here: names, constants, libraries."""
    net = network(NETS["blstm"])
    folder = tmp_path / "out"
    returnn_tf.export(net, str(folder), "frozen", portable=portable)
    facts = json.loads((folder / "model.json").read_text())
    assert facts["inputs"]["data"]["tensor"] == "data:0" and facts["inputs"]["data_size0"]["tensor"] == "data_size0:0"
    assert facts["outputs"]["output"]["tensor"] == "output:0"
    assert facts["outputs"]["output_size0"]["tensor"] == "output_size0:0"
    graph_def = _graph_def(folder)
    types = {node.op for node in graph_def.node}
    assert not {op for op in types if "Variable" in op} and not graph_def.library.function
    assert ("RtfLstm" in types) == (not portable) == bool(facts["native"]["libraries"])
    assert ("BlockLSTM" in types) == portable and "Enter" not in types  # one op, not a loop, either way
    assert all(os.path.getsize(folder / path) for path in facts["native"]["libraries"])


@pytest.mark.slow
def test_search_with_scores(tmp_path: Path) -> None:
    """A whole beam search: loops without functions, and the scores as an output."""
    net = network(DECODER, search=True)
    folder = tmp_path / "out"
    returnn_tf.export(net, str(folder), "frozen", outputs=["decision"])
    assert {"decision", "decision_size0", "decision_scores"} <= {node.name for node in _graph_def(folder).node}


def test_outputs_have_their_names() -> None:
    """A node that has the name of an output gets another one, and whoever reads it follows."""
    graph_def = tf.compat.v1.GraphDef()
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [], name="x")
        y = tf.add(x, 1.0, name="y")
        with tf.control_dependencies([y]):
            tf.multiply(y, 2.0, name="z")
        graph_def = graph.as_graph_def()
    tensors = add_outputs(graph_def, {"y": "z:0", "x": "y:0"}, ["x"])
    assert tensors == {"y": "y:0", "x": "x_output:0"}
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        assert session.run([tensors["y"], tensors["x"]], {"x:0": np.float32(3)}) == [8, 4]


def test_layer_that_changes_a_variable(tmp_path: Path) -> None:
    """A frozen graph has no variables."""
    layers = {
        "count": {"class": "variable", "shape": [], "init": 0.0, "trainable": False},
        "one": {"class": "constant", "value": 1.0},
        "output": {"class": "variable_assign", "var": "count", "op": "add", "value": "one"},
    }
    with pytest.raises(ConfigError, match=r"'output' \(class 'variable_assign'\) changes a variable.*--to saved_model"):
        returnn_tf.export(network(layers), str(tmp_path / "out"), "frozen")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_layer_normalisation(tmp_path: Path) -> None:
    """TensorFlow takes certain forms of it for one with another epsilon, once its parameters are constants."""
    net = network({"norm": {"class": "layer_norm", "from": "data"}, "output": {"class": "copy", "from": "norm"}})
    returnn_tf.export(net, str(tmp_path / "out"), "frozen")
