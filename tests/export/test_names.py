"""Inputs and outputs with unusual names and types."""

from __future__ import annotations

import json

import numpy as np
import pytest

import returnn_tf
from returnn_tf.export.exporters import EXPORTERS
from returnn_tf.export.saved_model.loader import load
from returnn_tf.export.side_file import text_of, write_side_file
from returnn_tf.export.tensor_info import graph_name

LABELS = {"dim": 3, "sparse": True}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("output", "output"), ("sub/lstm-1", "sub_lstm_1"), ("data_size0", "data_size0"), ("1", "x_1"),
        ("_hidden", "x_hidden"), ("été", "x_t_"), ("class", "x_class"), ("self", "x_self"), ("Class", "Class"),
    ],
)  # fmt: skip
def test_graph_name(name, expected):
    """Names are those of ops and arguments."""
    assert graph_name(name) == expected


@pytest.mark.parametrize("target", ["saved_model", "frozen"])
def test_unusual_names(tmp_path, target):
    """Layers and keys that begin with a digit or "_", a key that is a keyword, a layer with the name of a key."""
    network = {
        "1": {"class": "linear", "activation": "tanh", "n_out": 4, "from": ["data:class", "data:_speaker"]},
        "classes": {"class": "linear", "activation": None, "n_out": 2, "from": "data:classes", "is_output_layer": True},
        "_out": {"class": "linear", "activation": None, "n_out": 3, "from": "1", "is_output_layer": True},
    }
    labels = tmp_path / "labels"
    labels.write_text("{'a': 0, 'b': 1, 'c': 2}")
    data = {"class": {"dim": 3}, "_speaker": {"dim": 2, "shape": (2,)},
            "classes": {**LABELS, "vocab": {"vocab_file": str(labels), "unknown_label": None}}}  # fmt: skip
    config = returnn_tf.Config({"network": network, "extern_data": data, "behavior_version": 21})
    net = returnn_tf.Network.from_config(config)
    exporter = EXPORTERS.get(target, "test")()
    model = exporter.model(net)
    exporter.write(model, str(tmp_path))
    write_side_file(str(tmp_path), exporter, model)

    facts = json.loads((tmp_path / "model.json").read_text())
    assert set(facts["inputs"]) == {"x_class", "x_class_size0", "x_speaker", "classes", "classes_size0"}
    assert set(facts["outputs"]) == {"classes", "classes_size0", "x_out", "x_out_size0"}
    tensors = [entry["tensor"] for part in ("inputs", "outputs") for entry in facts[part].values()]
    assert len(set(tensors)) == len(tensors)
    assert facts["inputs"]["classes"]["vocabulary"] == "vocab.classes.txt"
    assert "vocabulary" not in facts["outputs"]["classes"]
    sample = model.sample()
    found = load(str(tmp_path))(**sample)
    for name, value in model.expected(sample).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["frozen", pytest.param("meta", marks=pytest.mark.long)])
def test_unusual_types(tmp_path, target):
    """Strings and bfloat16 get through the files by which an export is checked, in a folder that is made for it."""
    network = {
        "tag": {"class": "copy", "from": "data:tag", "is_output_layer": True},
        "short": {"class": "cast", "dtype": "bfloat16", "from": "data", "is_output_layer": True},
    }
    data = {"data": {"dim": 3}, "tag": {"shape": (), "dtype": "string"}}
    net = returnn_tf.Network.from_config(
        returnn_tf.Config({"network": network, "extern_data": data, "behavior_version": 21})
    )
    returnn_tf.export(net, str(tmp_path / "new" / "out"), to=target)
    assert json.loads((tmp_path / "new" / "out" / "model.json").read_text())["outputs"]["short"]["dtype"] == "bfloat16"


def test_strings_in_onnx(tmp_path):
    """They are text there."""
    pytest.importorskip("tf2onnx")
    network = {"output": {"class": "copy", "from": "data:tag"}}
    config = {"network": network, "extern_data": {"tag": {"shape": (), "dtype": "string"}}, "behavior_version": 21}
    returnn_tf.export(returnn_tf.Network.from_config(returnn_tf.Config(config)), str(tmp_path / "out"), to="onnx")


def test_no_folder_after_an_error(tmp_path):
    """The folders that the output is in are made with it."""
    network = {"output": {"class": "eval", "eval": "tf.numpy_function(abs, [source(0)], tf.float32)", "from": "data"}}
    config = {"network": network, "extern_data": {"data": {"dim": 3}}, "behavior_version": 21}
    net = returnn_tf.Network.from_config(returnn_tf.Config(config))
    with pytest.raises(returnn_tf.ConfigError, match="calls a Python function"):
        returnn_tf.export(net, str(tmp_path / "deep" / "er" / "out"))
    assert not list(tmp_path.iterdir())


def test_the_side_file_keeps_strings_as_they_are():
    """Lists stand in one line, but what looks like one within a string is no list."""
    content = {
        "shape": [None, 3],
        "names": ["a", "b, \\"],
        "text": "[ x,\n y ]",
        "deep": [[1, 2], {"k": ["[ 1 ]"]}],
        "e": [],
    }
    text = text_of(content)
    assert json.loads(text) == content
    assert '"shape": [null, 3]' in text and '"[ x,\\n y ]"' in text and '["[ 1 ]"]' in text
