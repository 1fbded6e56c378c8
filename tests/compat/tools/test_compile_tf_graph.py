"""``tools/compile_tf_graph.py``: all options, all formats, and what is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format

from returnn_tf.cli.main import main
from returnn_tf.export.meta import graph_files
from tests.export.meta_session import MetaSession, inputs

SCRIPT = Path(__file__).parents[3] / "tools" / "compile_tf_graph.py"
CONFIG = """
use_tensorflow = True
device, log, log_verbosity = "gpu", ["./returnn.log"], 5
extern_data = {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True}}
behavior_version = 21
network = {
    "lstm": {"class": "rec", "unit": "nativelstm2", "n_out": 5, "from": "data"},
    "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "lstm"},
}
"""
LOOP = """
network = {
    "output": {"class": "rec", "from": "data", "target": "classes", "unit": {
        "emb": {"class": "linear", "activation": None, "n_out": 3, "from": "prev:label"},
        "prob": {"class": "softmax", "from": ["data:source", "emb"], "target": "classes"},
        "label": {"class": "choice", "from": "prob", "target": "classes", "beam_size": 2, "initial_output": 0},
        "output": {"class": "copy", "from": "label"}}}}
"""
ENCODER = 'network = {"encoder": {"class": "linear", "activation": "tanh", "n_out": 4, "from": "data"},'
EPOCHS = """
def get_network(epoch):
    return {"output": {"class": "linear", "activation": None, "n_out": epoch, "from": "data"}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return an empty working directory with a config."""
    monkeypatch.chdir(tmp_path)
    write(CONFIG)


def write(text):
    Path("my.config").write_text("#!rnn.py\n" + text)


def tool(*args):
    return main(["tool", "compile-tf-graph", "my.config", "--verbosity=2", *args])


def read(path, cls=tf.compat.v1.MetaGraphDef):
    content = Path(path).read_bytes()
    return text_format.Parse(content.decode("utf8"), cls()) if path.endswith("txt") else cls.FromString(content)


def node(graph, name):
    return next((node for node in graph.node if node.name == name), None)


@pytest.mark.slow
def test_as_jobs_call_it(tmp_path):
    """From another folder, in an empty environment; both lists have no ":0"; the log of the config is not written."""
    command = [sys.executable, str(SCRIPT), str(tmp_path / "my.config"), "--train=0", "--eval=1", "--search=0",
               "--verbosity=4", "--output_file=graph.meta", "--output_file_model_params_list=model_params",
               "--output_file_state_vars_list=state_vars"]  # fmt: skip
    elsewhere = tmp_path / "work"
    elsewhere.mkdir()
    Path(elsewhere, "graph.meta").write_text("of an earlier run, to be replaced")
    done = subprocess.run(command, cwd=elsewhere, env={}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Wrote graph.meta" in done.stdout + done.stderr
    assert sorted(os.listdir(elsewhere)) == ["graph.meta", "model_params", "state_vars"]
    expected = ["lstm/rec/W", "lstm/rec/W_re", "lstm/rec/b", "output/W", "output/b"]
    assert Path(elsewhere, "model_params").read_text().splitlines() == expected
    assert Path(elsewhere, "state_vars").read_text() == ""
    assert node(read(str(elsewhere / "graph.meta")).graph_def, "losses/output/loss") is not None
    assert done.stdout.count("Traceback") + done.stderr.count("Traceback") == 0


@pytest.mark.parametrize("extension", ["pb", "pbtxt", "metatxt"])
def test_formats(extension):
    """The graph alone has shapes and no saver."""
    assert tool("--output_file", "graph." + extension) == 0
    whole = extension.startswith("meta")
    message = read("graph." + extension, tf.compat.v1.MetaGraphDef if whole else tf.compat.v1.GraphDef)
    graph = message.graph_def if whole else message
    assert "_output_shapes" in node(graph, "output/output_batch_major").attr
    assert (node(graph, "save/restore_all") is not None) == whole


def test_for_tensorboard():
    assert tool("--output_file", "graph.logdir") == 0
    (file,) = Path("graph.logdir").iterdir()
    events = list(tf.compat.v1.train.summary_iterator(str(file)))
    graph = tf.compat.v1.GraphDef.FromString(next(event.graph_def for event in events if event.graph_def))
    assert node(graph, "output/output_batch_major") is not None


@pytest.mark.slow
def test_train_flag_search_and_portable():
    """--train -1 has a placeholder, --search 1 hypotheses; --portable needs no library."""
    assert tool("--train", "-1", "--output_file", "train.meta") == 0
    assert node(read("train.meta").graph_def, "global_tensor_train_flag/train_flag").op == "Placeholder"
    assert tool("--portable", "--output_file", "portable.meta") == 0
    types = {file: {n.op for n in read(file).graph_def.node} for file in ("train.meta", "portable.meta")}
    assert "RtfLstm" in types["train.meta"] and "RtfLstm" not in types["portable.meta"]
    write(CONFIG + LOOP)
    assert tool("--search", "1", "--output_file", "search.meta", "--output_file_model_params_list", "params") == 0
    assert "output/rec/emb/W" in Path("params").read_text().splitlines()
    data = np.ones([3, 4, 4], "float32")
    feed = inputs({"data": data, "data/size0": np.array([4, 4, 2], "int32")})
    with MetaSession(read("search.meta")) as session:
        (labels,) = session.run(["output/rec/output_batch_major"], feed)
    assert labels.shape == (6, 4)


def test_summaries():
    """One op has them all: scores, and statistics of the parameters, which need no feed."""
    assert tool("--eval", "1", "--summaries_tensor_name", "all/summaries", "--output_file", "graph.meta") == 0
    feed = inputs({"data": np.ones([1, 3, 4], "float32"), "data/size0": np.array([3], "int32"),
                   "classes": np.zeros([1, 3], "int32"), "classes/size0": np.array([3], "int32")})  # fmt: skip
    with MetaSession(read("graph.meta")) as session:
        (text,) = session.run(["all/summaries"], feed)
    tags = {value.tag: value.simple_value for value in tf.compat.v1.Summary.FromString(text).value}
    assert tags["output/loss"] > 0 and tags["output/W_stddev"] > 0


def test_single_steps(capsys):
    """The description is printed, or written to a file."""
    write(CONFIG + LOOP.replace('"from": "data",', '"from": "encoder",').replace("network = {", ENCODER))
    assert tool("--rec_step_by_step", "output", "--output_file", "steps.meta") == 0
    assert node(read("steps.meta").graph_def, "encoder/output_batch_major") is not None
    printed = json.loads(capsys.readouterr().out)
    assert tool("--rec_step_by_step=output", "--rec_step_by_step_output_file=steps.json", "--update_i_in_graph") == 0
    assert capsys.readouterr().out == ""
    written = json.loads(Path("steps.json").read_text())
    assert written["stochastic_var_order"] == printed["stochastic_var_order"] == ["label"]
    assert read("steps.meta").collection_def["encode_ops"].node_list.value == ["rec_step_by_step_init_op"]


def test_network_of_an_epoch():
    """get_network is called only with --epoch."""
    write(CONFIG.partition("network =")[0] + EPOCHS)
    for epoch in (2, 3):
        assert tool("--epoch", str(epoch), "--output_file", "graph.pb") == 0
        graph = read("graph.pb", tf.compat.v1.GraphDef)
        assert node(graph, "output/W").attr["shape"].shape.dim[1].size == epoch
    write(CONFIG + EPOCHS)
    assert tool("--output_file", "graph.pb") == 0
    assert node(read("graph.pb", tf.compat.v1.GraphDef), "lstm/rec/W") is not None


NO_NETWORK = CONFIG.partition("network =")[0]


@pytest.mark.parametrize(("config", "args", "message"), [
    (CONFIG, ["--trian", "1"], "unrecognized arguments: --trian.*Did you mean '--train'"),
    (CONFIG, ["--train", "2"], "argument --train: invalid choice: 2"),
    (CONFIG, ["++train", "1"], "unrecognized arguments"),
    (CONFIG, ["--output_file", "graph.onnx"], "extension of 'graph.onnx' names no format of graphs.*.meta"),
    (CONFIG, ["--output_file", "there/graph.meta"], "there is no folder .*there for graph.meta"),
    (CONFIG, ["--output_file", ".."], "names no format"),
    (CONFIG, ["--output_file_state_vars_list", "."], r"\. must be a file, but it is a folder"),
    (NO_NETWORK, [], "no network. Add a network"),
    (NO_NETWORK + EPOCHS, [], "no network. Give --epoch"),
    (CONFIG + "pretrain = 'default'", ["--epoch", "1"], "pretrain.*Omit --epoch"),
    (CONFIG, ["--epoch", "0"], "argument --epoch"),
    (CONFIG, ["--search", "1", "--train", "1"], "--search 1 needs --train 0"),
    (CONFIG, ["--rec_step_by_step", "output", "--search", "1"], "needs --search 0"),
    (CONFIG, ["--rec_step_by_step", "output", "--eval", "1"], "needs --train 0 and --eval 0"),
    (CONFIG, ["--rec_step_by_step_output_file", "x"], "needs --rec_step_by_step LAYER"),
    (CONFIG, ["--update_i_in_graph"], "needs --rec_step_by_step LAYER"),
    (CONFIG, ["--summaries_tensor_name", "a b"], "'a b' can't be the name of an op"),
    (CONFIG, ["--device", "gpu"], "TensorFlow sees 0 GPUs"),
    (CONFIG, ["--verbosity", "x"], "--verbosity"),
    (CONFIG.replace('"from": "lstm"', '"from": "lsmt"'), [], "no layer 'lsmt'. Did you mean 'lstm'"),
])  # fmt: skip
def test_refused(config, args, message, capsys):
    """One message, exit code 2, and no file."""
    write(config)
    files = args if "--output_file" in args else [*args, "--output_file", "graph.meta"]
    assert tool(*files) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "Traceback" not in error
    assert re.search(message, error, re.S), error
    assert os.listdir() == ["my.config"]


def test_nothing_is_left_of_what_can_not_be_written(monkeypatch):
    """Not the first file either."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(graph_files, "publish", full)
    assert tool("--output_file", "graph.meta", "--output_file_model_params_list", "params") == 1
    assert os.listdir() == ["my.config"]
