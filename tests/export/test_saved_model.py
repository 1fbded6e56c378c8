"""The target ``saved_model``: what is written computes what the network does, in a process of its own."""

from __future__ import annotations

import json
import os
import platform
import shutil

import numpy as np
import pytest

import returnn_tf
from returnn_tf.config import DataError
from returnn_tf.export.data_facts import feature_settings, label_facts
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.sample import random_batch
from returnn_tf.export.saved_model.exporter import SavedModelExporter
from returnn_tf.export.saved_model.loader import check_machine, load
from returnn_tf.export.saved_model.run import run_in_process
from returnn_tf.export.side_file import read_side_file

EXTERN_DATA = {"data": {"dim": 4}, "classes": {"dim": 5, "sparse": True}}


def network(layers, *, search=False, **settings):
    config = {"network": layers, "extern_data": EXTERN_DATA, "behavior_version": 21, **settings}
    return returnn_tf.Network.from_config(returnn_tf.Config(config), search=search)


LSTM = {
    "lstm": {"class": "rec", "unit": "lstm", "n_out": 6, "from": "data"},
    "output": {"class": "softmax", "n_out": 5, "from": "lstm"},
}


@pytest.mark.slow
@pytest.mark.parametrize("portable", [pytest.param(False, marks=pytest.mark.own_process), True])
def test_lstm_natively_and_portable(tmp_path, portable):
    """The outputs are those of `Network.run`; only the native form needs a library, which lies beside the graph."""
    net = network(LSTM)
    folder = str(tmp_path / "out")
    returnn_tf.export(net, folder, portable=portable)
    facts = read_side_file(folder)
    assert bool(facts["native"]["libraries"]) == (not portable)
    assert all(os.path.getsize(os.path.join(folder, path)) for path in facts["native"]["libraries"])
    feed = {"data": np.random.RandomState(3).normal(0, 1, [2, 7, 4]).astype("float32"),
            "data_size0": np.array([7, 4], "int32")}  # fmt: skip
    got = run_in_process(folder, feed)
    expected = net.run({"data": feed["data"], "data/size0": feed["data_size0"]}).layers["output"]
    np.testing.assert_allclose(got["output"][0], expected.value[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["output"][1, :4], expected.value[1, :4], rtol=1e-5, atol=1e-6)
    assert got["output_size0"].tolist() == [7, 4]
    assert os.listdir(tmp_path) == ["out"]  # nothing is left of the staging folder


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_portable_with_mixed_precision(tmp_path, dtype):
    """TensorFlow's products round their results, too, those of native ops do not; the check allows that alone."""
    layers = {"output": {"class": "self_attention", "num_heads": 4, "total_key_dim": 256, "n_out": 256, "from": "data"}}
    net = network(layers, extern_data={"data": {"dim": 64}}, mixed_precision=dtype)
    returnn_tf.export(net, str(tmp_path / "out"), portable=True)
    feed = {"data": np.random.RandomState(3).normal(0, 1, [1, 7, 64]).astype("float32"), "data/size0": [7]}
    expected, sizes = net.run(feed).layers["output"].value, {"data_size0": np.array([7], "int32")}
    got = run_in_process(str(tmp_path / "out"), {"data": feed["data"], **sizes})["output"]
    difference = np.abs(got - expected).max() / np.abs(expected).max()
    assert difference < (1e-5 if dtype is None else 2e-2)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return the folder of an export of a small network."""
    net = network({"output": {"class": "copy", "from": "data"}})
    folder = str(tmp_path_factory.mktemp("exported") / "out")
    returnn_tf.export(net, folder, portable=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda facts: facts["native"].update(libraries=["/tmp/evil.so"]),
            "names a file outside of the export: '/tmp/evil.so'",
        ),
        (lambda facts: facts["native"].update(libraries=["native/../../evil.so"]), "outside of the export"),
        (lambda facts: facts["native"].update(libraries=[7]), "outside of the export: 7"),
        (lambda facts: facts.pop("native"), "model.json lacks the entry 'native'"),
        (lambda facts: facts["native"].pop("libraries"), "lacks the entry 'libraries'"),
        (lambda facts: facts.update(native=[]), "is not the side file of an export"),
        (lambda facts: facts.pop("signature"), "lacks the entry 'signature'"),
    ],
)
def test_a_side_file_that_is_not_ours(exported, tmp_path, capfd, change, message):
    """Its libraries are those in the folder of the export, and what is missing is one line."""
    folder = tmp_path / "out"
    shutil.copytree(exported, folder)
    facts = read_side_file(str(folder))
    change(facts)
    (folder / "model.json").write_text(json.dumps(facts))
    feed = {"data": np.zeros([1, 2, 4], "float32"), "data_size0": np.array([2], "int32")}
    with pytest.raises(ValueError, match=message):
        load(str(folder))(**feed)
    with pytest.raises(DataError, match=message):
        run_in_process(str(folder), feed)


@pytest.mark.slow
def test_an_output_with_the_name_of_an_input(tmp_path):
    """The side file names the tensors of both."""
    net = network({"output": {"class": "copy", "from": "data"}})
    returnn_tf.export(net, str(tmp_path / "out"), outputs=["data"], portable=True)
    facts = read_side_file(str(tmp_path / "out"))
    assert facts["inputs"]["data"]["tensor"] == "serving_default_data:0"
    assert facts["outputs"]["data"]["tensor"] == "PartitionedCall:0"


DECODER = {
    "enc": {"class": "rec", "unit": "lstm", "n_out": 6, "from": "data"},
    "output": {"class": "rec", "from": [], "target": "classes", "max_seq_len": 4, "unit": {
        "s": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": 5, "from": ["prev:out_emb", "prev:att"]},
        "energy": {"class": "dot", "from": ["base:enc_ctx", "s"], "red1": "F", "red2": "F", "var1": "T", "var2": None},
        "weights": {"class": "softmax_over_spatial", "from": "energy"},
        "att": {"class": "generic_attention", "weights": "weights", "base": "base:enc"},
        "prob": {"class": "softmax", "from": ["s", "att"], "target": "classes", "loss": "ce"},
        "output": {"class": "choice", "target": "classes", "beam_size": 3, "from": "prob", "initial_output": 0},
        "out_emb": {"class": "linear", "activation": None, "n_out": 4, "from": "output", "initial_output": 0},
        "end": {"class": "compare", "from": "output", "value": 0}}},
    "enc_ctx": {"class": "linear", "activation": None, "n_out": 5, "from": "enc"},
    "decision": {"class": "decide", "from": "output", "is_output_layer": True},
}  # fmt: skip


@pytest.mark.slow
def test_search(tmp_path):
    """A search gives labels and lengths of all hypotheses, and their scores; the decision is the best one."""
    config = {"vocab": {"class": "Vocabulary", "labels": list("abcde"), "unknown_label": None}}
    net = network(DECODER, search=True, extern_data={**EXTERN_DATA, "classes": {**EXTERN_DATA["classes"], **config}})
    folder = str(tmp_path / "out")
    returnn_tf.export(net, folder, outputs=["output", "decision"], portable=True)
    facts = read_side_file(folder)
    assert list(facts["inputs"]) == ["data", "data_size0"]  # no targets
    assert facts["outputs"]["output"]["beam"] == 3 and facts["outputs"]["output"]["vocabulary"] == "vocab.classes.txt"
    assert (tmp_path / "out" / "vocab.classes.txt").read_text() == "a\nb\nc\nd\ne\n"
    feed = random_batch(net.extern_data, ["data"], batch=2)
    got = run_in_process(folder, {"data": feed["data"], "data_size0": feed["data/size0"]})
    assert got["output"].shape[0] == got["output_size0"].shape[0] == 6 and got["output_scores"].shape == (2, 3)
    expected = net.run(feed, fetch=["decision"]).layers
    np.testing.assert_allclose(got["output_scores"], expected["output"].beam_scores, rtol=1e-5)
    np.testing.assert_allclose(got["decision_scores"][:, 0], got["output_scores"].max(axis=1))
    best = got["output_scores"].argmax(axis=1) + 3 * np.arange(2)
    for seq in range(2):
        length = got["decision_size0"][seq]
        assert length == got["output_size0"][best[seq]]
        np.testing.assert_array_equal(got["decision"][seq, :length], got["output"][best[seq], :length])


def test_features_and_vocabulary_of_the_training_data(tmp_path):
    """They are those of the dataset inside of others; labels are lines."""
    audio = {"class": "OggZipDataset", "path": "none.zip", "audio": {"features": "log_mel_filterbank"},
             "targets": {"class": "CharacterTargets", "labels": ["a", "b", " ", "\n", "\\"]}}  # fmt: skip
    net = network(LSTM, train={"class": "MetaDataset", "datasets": {"corpus": audio}, "data_map": {}})
    model = InferenceModel(net)
    facts = {"inputs": {"data": {}}, "outputs": {"output": {"vocabulary": "vocab.classes.txt"}}}
    assert label_facts(model, str(tmp_path)) == facts
    assert (tmp_path / "vocab.classes.txt").read_text() == "a\nb\n \n\\n\n\\\\\n"
    features = feature_settings(net.config)
    assert features["features"] == "log_mel_filterbank" and features["step_len"] == 0.01


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"tensorflow": "2.4.1"}, "compiled for TensorFlow 2.4.1, this is 2.16"),
        ({"machine": "vax"}, "are for vax, this is"),
        ({"cpu": "sse2 avx9999"}, "instructions that this CPU lacks: avx9999"),
    ],
)
def test_libraries_of_another_machine(change, text):
    """What differs is named before a library is loaded, which might end the process."""
    native = {"tensorflow": "2.16.2", "machine": platform.machine(), "cpu": "", **change}
    with pytest.raises(ValueError, match=text):
        check_machine(native, "2.16.2")


def test_python_code_is_refused(tmp_path):
    """A graph that calls functions of this process is useless elsewhere; the op begins with the name of its layer."""
    layers = {
        "output": {"class": "eval", "from": "data", "eval": "tf.numpy_function(lambda x: x, [source(0)], tf.float32)"}
    }
    with pytest.raises(returnn_tf.ConfigError, match=r"'output.* calls a Python function"):
        returnn_tf.export(network(layers), str(tmp_path / "out"))
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_a_difference_is_an_error(tmp_path, monkeypatch):
    """An exported graph that computes something else is not published; output, place and values are named."""
    net = network({"output": {"class": "softmax", "n_out": 5, "from": "data"}})
    run = SavedModelExporter.run

    def wrong(self, folder, feed):
        outputs = run(self, folder, feed)
        outputs["output"][1, 2, 3] += 1e-3
        return outputs

    monkeypatch.setattr(SavedModelExporter, "run", wrong)
    with pytest.raises(
        returnn_tf.DataError, match=r"the output 'output' is 0\.\d+ at \[1, 2, 3\], but 0\.\d+ is right"
    ):
        returnn_tf.export(net, str(tmp_path / "out"))
    assert os.listdir(tmp_path) == []
