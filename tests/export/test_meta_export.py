"""The target ``meta``: graph, checkpoint and libraries, run by a process that knows only these."""

from __future__ import annotations

import json
import os
import shutil
import tempfile

import numpy as np
import pytest
import tensorflow as tf

import returnn_tf
from returnn_tf import DataError
from returnn_tf.export.meta import exporter, process
from returnn_tf.export.meta.exporter import MetaExporter
from returnn_tf.native.library import libraries_with
from tests.export.meta_session import MetaSession
from tests.export.test_meta import BLSTM, config_of
from tests.export.test_meta_states import ATTENTION, LSTM, language_model
from tests.export.test_meta_states import config_of as config_of_words


def facts_of(folder):
    with open(os.path.join(folder, "model.json"), encoding="utf8") as file:
        return json.load(file)


@pytest.mark.slow
def test_what_is_written(tmp_path):
    """A classical checkpoint with its graph, and the libraries of native ops."""
    net = returnn_tf.Network.from_config(config_of(BLSTM))
    folder = str(tmp_path / "out")
    returnn_tf.export(net, folder, "meta", outputs=["fwd", "output"])
    facts = facts_of(folder)
    assert facts["native"]["libraries"]
    assert {"graph.meta", "graph.index", "graph.data-00000-of-00001", "parameters.txt", "states.txt"} <= set(
        os.listdir(folder)
    )
    assert facts["inputs"]["data_size0"]["tensor"] == "extern_data/placeholders/data/data_dim0_size:0"
    assert facts["outputs"]["fwd"]["tensor"] == "outputs/fwd:0"
    assert facts["layers"]["fwd"]["tensor"] == "fwd/rec/output_batch_major:0"
    assert facts["parameters"][:2] == ["fwd/rec/W", "fwd/rec/W_re"] and facts["states"] == []
    with open(os.path.join(folder, "graph.meta"), "rb") as file:
        meta = tf.compat.v1.MetaGraphDef.FromString(file.read())
    with MetaSession(meta, os.path.join(folder, "graph")) as session:
        expected = net.get_param_values()["output/W"]
        np.testing.assert_array_equal(session.run(["output/W/read"], {})[0], expected)


def run_here(folder, feed, *, program):
    """Return the same as in another process, but quicker; no library can be loaded twice."""
    assert program == process.__file__
    with tempfile.TemporaryDirectory() as temp:
        np.savez(os.path.join(temp, "feed.npz"), **feed)
        assert process.main(folder, os.path.join(temp, "feed.npz"), os.path.join(temp, "result.npz")) == 0
        with np.load(os.path.join(temp, "result.npz")) as arrays:
            return dict(arrays)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["keep_over_epoch", "placeholder"])
def test_language_models(state, tmp_path, monkeypatch):
    """The check after writing begins with zeros, in whatever way the state gets there."""
    monkeypatch.setattr(exporter, "run_in_process", run_here)
    layers = [{**layer, "initial_state": state} for layer in (LSTM, ATTENTION)]
    net = returnn_tf.Network.from_config(config_of_words(language_model(*layers)))
    returnn_tf.export(net, str(tmp_path / "lm"), "meta", portable=True)
    facts = facts_of(str(tmp_path / "lm"))
    assert facts["native"]["libraries"] == []
    if state == "placeholder":
        assert facts["fed"]["lstm0/rec/initial_state_placeholder_c:0"] == {"shape": [None, 5], "dtype": "float32"}
        assert not facts["states"]
    else:
        assert list(facts["fed"]) == ["epoch_step:0"]
        assert facts["states"][0] == "lstm0/rec/keep_state_c" and len(facts["states"]) == 4


@pytest.mark.slow
def test_a_missing_library_is_an_error(tmp_path, monkeypatch):
    """The process that checks what was written loads no other; nothing is left."""
    net = returnn_tf.Network.from_config(config_of(BLSTM))
    run = MetaExporter.run

    def without_library(self, folder, feed):
        shutil.rmtree(os.path.join(folder, "native"))
        return run(self, folder, feed)

    monkeypatch.setattr(MetaExporter, "run", without_library)
    with pytest.raises(DataError, match="can't be run"):
        returnn_tf.export(net, str(tmp_path / "out"), "meta")
    assert not os.listdir(tmp_path)


def test_only_own_ops_ask_for_a_library():
    """The module of a library also has the name Any, which is the type of TensorFlow's reduce_any."""
    returnn_tf.Network.from_config(config_of(BLSTM)).run({"data": np.zeros([1, 2, 4]), "data/size0": [2],
                                                          "classes": [[0, 0]], "classes/size0": [2]})  # fmt: skip
    assert libraries_with(["RtfLstm"]) and not libraries_with(["Any", "List", "MatMul"])
