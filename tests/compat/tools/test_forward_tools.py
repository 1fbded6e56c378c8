"""The tools that run a network: values of layers, their statistics, attention weights; and sizes of batches."""

from __future__ import annotations

import os
import re

import h5py
import numpy as np
import pytest

from returnn_tf.cli.main import main
from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.datasets import Dataset
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.data.batch_table import BatchTable, path_of

CONFIG = """
import numpy
def rows(n):
    rng = numpy.random.RandomState(n)
    return {"class": "StaticDataset", "output_dim": {"data": [3, 2], "classes": [5, 1]}, "seq_ordering": "random",
            "partition_epoch": 2, "data": [
        {"data": rng.normal(size=[3 + i, 3]).astype("float32"),
         "classes": rng.randint(1, 5, [2 + i % 3]).astype("int32")} for i in range(n)]}
train = rows(7)
dev = rows(4)
extern_data = {"data": {"dim": 3}, "classes": {"dim": 5, "sparse": True}}
batch_size = 20
max_seq_length = {"data": 6}
network = {
    "encoder": {"class": "linear", "activation": "tanh", "n_out": 6, "from": "data", "dropout": 0.5},
    "enc_ctx": {"class": "linear", "activation": None, "n_out": 5, "from": "encoder"},
    "output": {"class": "rec", "from": [], "target": "classes", "max_seq_len": 7, "unit": {
        "emb": {"class": "linear", "activation": None, "n_out": 4, "from": "output", "initial_output": 0},
        "s": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": 5, "from": ["prev:emb", "prev:att"]},
        "e_in": {"class": "combine", "kind": "add", "from": ["base:enc_ctx", "s"], "n_out": 5},
        "e_t": {"class": "activation", "activation": "tanh", "from": "e_in"},
        "energy": {"class": "linear", "activation": None, "with_bias": False, "n_out": 1, "from": "e_t"},
        "att_weights": {"class": "softmax_over_spatial", "from": "energy"},
        "att0": {"class": "generic_attention", "weights": "att_weights", "base": "base:encoder"},
        "att": {"class": "merge_dims", "axes": "static", "from": "att0"},
        "prob": {"class": "softmax", "from": ["s", "att"], "target": "classes", "loss": "ce"},
        "output": {"class": "choice", "target": "classes", "beam_size": 4, "from": "prob", "initial_output": 0},
        "end": {"class": "compare", "from": "output", "value": 0}}},
    "decision": {"class": "decide", "from": "output", "target": "classes", "loss": "edit_distance"}}
model = "models/net"
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a folder with a config, and a checkpoint of epoch 3 with large weights, so that all values differ."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "a.config").write_text(CONFIG)
    (folder / "models").mkdir()
    (folder / "empty" / "x").mkdir(parents=True)
    net = Network.from_config(Config.from_file(str(folder / "a.config")), train=True)
    rng = np.random.RandomState(5)
    params = {name: rng.normal(size=value.shape).astype("float32") for name, value in net.stored_params.items()}
    info = checkpoint.CheckpointInfo(epoch=3, step=10, random_seed=1)
    checkpoint.save(str(folder / "models" / "net.003"), params, {}, info)
    return folder, params


@pytest.fixture(autouse=True)
def folder(trained, monkeypatch):
    monkeypatch.chdir(trained[0])


def encoder(params, seq):
    return np.tanh(seq.data["data"] @ params["encoder/W"] + params["encoder/b"])


def corpus(name="train"):
    return list(Dataset.from_config({**Config.from_file("a.config").typed(name), "partition_epoch": 1}).sequences())


def test_values_of_all_layers(trained, capsys):
    assert main(["tool", "dump-forward", "a.config", "--endseq", "1", "--verbosity", "1"]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"^seq (\d+)", out, re.M) == ["0", "1"]
    assert re.findall(r"^  ([\w/]+): \[", out, re.M)[:2] == ["encoder", "enc_ctx"] and "output/prob: [T|" in out
    tag = re.search(r"seq 0 (\S+)", out)[1]
    (seq,) = [seq for seq in corpus() if seq.tag == tag]
    assert "%.5f" % abs(encoder(trained[1], seq)[0, 0]) in out
    command = ["tool", "dump-forward", "a.config", "--layers", "encoder", "--endseq", "-1", "--startseq"]
    assert main([*command, "3"]) == 0 and main([*command, "4"]) == 1  # the first half of the data
    assert "has no sequences from 4 on" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, args", [("train", []), ("dev", ["--dataset", "dev"]), ("dev", ["--dataset", "config:rows(4)"])]
)
def test_statistics_of_a_layer(trained, name, args, capsys):
    """Over all parts of the data, whatever the limits."""
    command = ["tool", "dump-forward-stats", "a.config", "--layer", "encoder", "--dump_stats", "s", "--stats", *args]
    assert main([*command, "--load", "models/net.003", "++model", "other"]) == 0
    frames = np.concatenate([encoder(trained[1], seq) for seq in corpus(name)]).astype("float64")
    for what, value in (("mean", frames.mean(0)), ("std_dev", frames.std(0)), ("min", frames.min(0))):
        np.testing.assert_allclose(np.loadtxt("s.%s.txt" % what), value, atol=1e-5)
    assert "std_dev" in capsys.readouterr().out


def weights(*args):
    return main(["tool", "get-attention-weights", "a.config", *args])


def by_hand(params, seq, labels):
    """Return attention weights [labels, frames] of a sequence for given labels, step by step in numpy."""

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    frames = encoder(params, seq)
    keys = frames @ params["enc_ctx/W"] + params["enc_ctx/b"]
    cell, hidden, attended, previous, rows = np.zeros(5), np.zeros(5), np.zeros(6), np.zeros(4), []
    (kernel,) = [value for name, value in params.items() if name.startswith("output/rec/s/") and value.ndim == 2]
    (bias,) = [value for name, value in params.items() if name.startswith("output/rec/s/") and value.ndim == 1]
    for label in labels:
        gates = np.concatenate([previous, attended, hidden]) @ kernel + bias
        new_in, new, forget, out = np.split(gates, 4)
        cell = sigmoid(forget + 1) * cell + sigmoid(new_in) * np.tanh(new)
        hidden = sigmoid(out) * np.tanh(cell)
        energy = np.tanh(keys + hidden) @ params["output/rec/energy/W"]
        rows.append(np.exp(energy[:, 0]) / np.exp(energy).sum())
        attended = rows[-1] @ frames
        previous = params["output/rec/emb/W"][label] + params["output/rec/emb/b"]
    return np.array(rows)


@pytest.mark.parametrize("search", [False, True])
def test_attention_weights(trained, search, tmp_path):
    """Of each label over the frames; in a search, those of the best hypothesis."""
    args = ["--dump_dir", str(tmp_path), "--batch_size", "30"] + ["--do_search", "--beam_size", "3"] * search
    assert weights(*args) == 0
    found = {path.stem: np.load(path, allow_pickle=True).item() for path in tmp_path.iterdir()}
    assert sorted(found) == sorted(seq.tag for seq in corpus())
    for seq in corpus():
        entry = found[seq.tag]
        assert (entry["tag"], entry["encoder_len"]) == (seq.tag, len(seq.data["data"]))
        assert entry["output_len"] == len(entry["output"])
        if not search:
            assert entry["output"].tolist() == seq.data["classes"].tolist()
        value = entry["rec_att_weights"]
        assert value.shape[:2] == (entry["output_len"], entry["encoder_len"])
        np.testing.assert_allclose(value.reshape(value.shape[:2]), by_hand(trained[1], seq, entry["output"]), atol=1e-5)


@pytest.mark.slow
def test_attention_weights_as_hdf_and_pictures(tmp_path, trained):
    pytest.importorskip("matplotlib")
    path = str(tmp_path / "w.hdf")
    assert weights("--output_file", path, "--data", "dev", "--seq_list", "seq-2", "seq-0", "--batch_size", "1") == 0
    with h5py.File(path, "r") as file:
        assert [tag.decode() for tag in file["seqTags"]] == ["seq-2", "seq-0"]
        sizes = file["targets/data/sizes"][:].reshape(2, 2)
        two, zero = (next(seq for seq in corpus("dev") if seq.tag == tag) for tag in ("seq-2", "seq-0"))
        assert sizes.tolist() == [[len(seq.data["classes"]), len(seq.data["data"])] for seq in (two, zero)]
        wanted = [by_hand(trained[1], seq, seq.data["classes"]).reshape(-1) for seq in (two, zero)]
        np.testing.assert_allclose(file["inputs"][:, 0], np.concatenate(wanted), atol=1e-5)
    folder = str(tmp_path / "png")
    assert weights("--output_format", "png", "--dump_dir", folder, "--num_seqs", "2", "--data", "dev") == 0
    assert len(os.listdir(folder)) == 2 and os.listdir(folder)[0].endswith(".att_weights.png")


def test_attention_weights_outside_of_the_loop(tmp_path):
    """Attention with two heads that depends on earlier labels alone, so that it is computed for all steps at once."""
    heads = """
        "q": {"class": "split_dims", "axis": "F", "dims": (2, 2), "from": "emb"},
        "energy": {"class": "dot", "from": ["base:keys", "q"], "red1": "F", "red2": "F", "var1": "T", "var2": None},
        "att_weights": {"class": "softmax_over_spatial", "axis": "stag:extern_data:data", "from": "energy"},
        "att0": {"class": "generic_attention", "weights": "att_weights", "base": "base:keys"},
        "att": {"class": "merge_dims", "axes": "static", "from": "att0"},
        "prob": {"class": "softmax", "from": "att",
    """
    start, end = CONFIG.index('"s": {"class"'), CONFIG.index('"target": "classes", "loss": "ce"}')
    text = CONFIG[:start] + heads + CONFIG[end:]
    text = text.replace('"from": "output", "initial_output": 0}', '"from": "prev:output"}')
    keys = '"keys": {"class": "split_dims", "axis": "F", "dims": (2, 2), "from": "enc_ctx"},\n    "output": {'
    text = text.replace('"output": {', keys, 1).replace(
        '"activation": None, "n_out": 5', '"activation": None, "n_out": 4'
    )
    path = tmp_path / "heads.config"
    path.write_text(text + "allow_random_model_init = True\nmodel = 'none'\n")
    folder = tmp_path / "out"
    assert main(["tool", "get-attention-weights", str(path), "--dump_dir", str(folder), "--data", "dev"]) == 0
    for seq in corpus("dev"):
        value = np.load(folder / (seq.tag + ".npy"), allow_pickle=True).item()["rec_att_weights"]
        assert value.shape[:3] == (len(seq.data["classes"]), len(seq.data["data"]), 2)
        np.testing.assert_allclose(value.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.slow
def test_attention_weights_with_dropout(tmp_path):
    """Without dropout, training and evaluation are the same; a folder stands for the config in it."""
    found = []
    for number, args in enumerate(([], ["--train_flag", "--dropout", "0"], ["--train_flag", "--dropout", "0.9"])):
        folder = tmp_path / str(number)
        args = [*args, "--dump_dir", str(folder), "--num_seqs", "1", "--epoch", "3"]
        assert main(["tool", "get-attention-weights", ["a.config", ".", "models"][number], *args]) == 0
        (path,) = folder.iterdir()
        found.append(np.load(path, allow_pickle=True).item()["rec_att_weights"])
    np.testing.assert_array_equal(found[0], found[1])
    assert np.abs(found[0] - found[2]).max() > 0.01


@pytest.mark.parametrize(
    "args, code, message",
    [
        (["dump-forward", "a.config", "--layers", "encodr"], 2, "Did you mean 'encoder'?"),
        (["dump-forward", "a.config", "++model", "none"], 2, "There is no checkpoint to load"),
        (["dump-forward", "a.config", "--layer", "x"], 2, "Did you mean '--layers'?"),
        (["dump-forward-stats", "a.config", "--layer", "encoder"], 2, "give --stats, --dump_stats"),
        (["dump-forward-stats", "a.config", "--layer", "none", "--stats"], 2, "none"),
        (["dump-forward-stats", "a.config", "--stats"], 2, "required: --layer"),
        (["dump-forward-stats", "a.config", "--layer", "encoder", "--stats", "--reset_seq_ordering", "x"], 2, "'x'"),
        (["get-attention-weights", "a.config", "--layers", "att_weigths"], 2, "Did you mean 'att_weights'?"),
        (["get-attention-weights", "a.config", "--rec_layer", "decoder"], 2, "there is no layer 'decoder'"),
        (["get-attention-weights", "a.config", "--rec_layer", "encoder"], 2, "is no loop"),
        (["get-attention-weights", "a.config", "--layers", "s"], 2, "not labels and frames"),
        (["get-attention-weights", "a.config", "--output_format", "hdf"], 2, "do not fit"),
        (["get-attention-weights", "a.config", "--output_file", "a.config"], 1, "exists already"),
        (["get-attention-weights", "empty/x"], 2, "there is no *.config in it or beside it"),
        (["get-attention-weights", "a.config", "--epoch", "4"], 2, "there is no checkpoint of epoch 4"),
        (["analyze-dataset-batches", "a.config", "--key", "classs"], 2, "Did you mean 'classes'?"),
        (["analyze-dataset-batches", "{'class': 'Task12AX'}"], 2, "is endless"),
    ],
)
def test_mistakes(args, code, message, capsys):
    before = sorted(os.listdir())
    assert main(["tool", *args]) == code
    error = capsys.readouterr().err
    assert message in error and sorted(os.listdir()) == before


def test_sizes_of_batches(capsys):
    """Of the first half of the data, without what is too long for the config."""
    assert main(["tool", "analyze-dataset-batches", "a.config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    lengths = [
        len(seq.data["data"]) for seq in Dataset.from_config(Config.from_file("a.config").typed("train")).sequences()
    ]
    kept = [length for length in lengths if length <= 6]
    assert lines[0] == "the dataset 'train' of a.config, epoch 1, batches of data, classes:"
    assert "  sequences: %d" % len(kept) in lines[2]
    assert ("  frames of 'data': %d, " % sum(kept)) in lines[3] + ", "
    assert len(kept) < len(lengths) and lines[-1] == "  left out as too long: %d" % (len(lengths) - len(kept))


def test_sizes_of_batches_that_a_training_has_found(tmp_path, capsys):
    table = BatchTable({3: 1, 6: 2}, "CPU:0", 1, {})
    options = ["++batch_size", "'auto'", "++model", str(tmp_path / "net")]
    assert main(["tool", "analyze-dataset-batches", "a.config", *options]) == 2
    assert "where a training keeps what it finds" in capsys.readouterr().err
    table.write(path_of(str(tmp_path / "net")))
    assert main(["tool", "analyze-dataset-batches", "a.config", *options]) == 0
    assert re.search("sequences: [0-9]+, 1 to 2 ", " ".join(capsys.readouterr().out.split()))


def test_padding(capsys):
    data = ", ".join("{'data': %s}" % ([[0.0]] * length) for length in (1, 3, 2, 2))
    spec = "{'class': 'StaticDataset', 'data': [%s]}" % data
    assert main(["tool", "analyze-dataset-batches", spec, "++batch_size", "6"]) == 0
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()[1:]] == [
        "batches: 2",
        "sequences: 4, 2 to 2 (2.0 on average) in a batch",
        "frames of 'data': 8, 4 to 4 (4.0 on average) in a batch",
        "with padding: 10, 4 to 6 (5.0 on average) in a batch",
        "padding: 20.00 %",
    ]
    assert main(["tool", "analyze-dataset-batches", spec, "++batch_size", "6", "--endseq", "1"]) == 0
    assert "batches: 1" in capsys.readouterr().out
