"""Jobs that run scripts of the root: their command lines, in an environment that has next to nothing."""

from __future__ import annotations

import ast
import os
import pathlib
import subprocess
import sys
from typing import Any

import h5py
import numpy as np
import pytest
from tensorflow.core.protobuf import meta_graph_pb2

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.datasets import Dataset
from tests.compat.jobs.manager import ROOT, config_text, environment

DATA: dict[str, Any] = {"class": "Task12AXDataset", "num_seqs": 3, "fixed_random_seed": 1}
NETWORK = {
    "hidden": {"class": "rec", "from": "data", "n_out": 4, "unit": "lstm"},
    "output": {"class": "softmax", "from": "hidden", "loss": "ce", "target": "classes"},
}


def run(script: str, *args: str, env: Any = None) -> str:
    """Run a script in the current folder, as the job does."""
    command = [sys.executable, str(ROOT / "tools" / script), *args]
    env = environment() if env is None else env
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_copies_of_data() -> None:
    """ReturnnDumpHDFJob: the file exists already, empty, and is moved to the output afterwards."""
    pathlib.Path("dataset.config").write_text("#!rnn.py\ntrain = %r\n" % DATA)
    pathlib.Path("tmp.hdf").touch()
    run("hdf_dump.py", "dataset.config", "tmp.hdf")
    with h5py.File("tmp.hdf") as file:
        assert file["seqLengths"].shape == (3, 2) and file["inputs"].shape[1] == 9
    found = {seq.tag: seq.data for seq in Dataset.from_config("tmp.hdf").sequences()}
    for seq in Dataset.from_config(DATA).sequences():
        np.testing.assert_array_equal(found[seq.tag]["data"], seq.data["data"])
        np.testing.assert_array_equal(found[seq.tag]["classes"], seq.data["classes"])


@pytest.mark.slow
def test_statistics_of_data() -> None:
    """ExtractDatasetMeanStddevJob reads the text files by numpy."""
    pathlib.Path("returnn.config").write_text(config_text({"train": DATA, "use_tensorflow": True}))
    args = "returnn.config --endseq -1 --type null --stats --dump_stats stats --key data"
    run("dump-dataset.py", *args.split())
    frames = np.concatenate([seq.data["data"] for seq in Dataset.from_config(DATA).sequences()])
    np.testing.assert_allclose(np.loadtxt("stats.mean.txt"), frames.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(np.loadtxt("stats.std_dev.txt"), frames.std(axis=0), atol=1e-6)


def test_word_error_rate() -> None:
    pathlib.Path("hyps").write_text("{\n'a': [(-0.5, 'x y z'), (-0.7, 'x')],\n'b': '',\n}\n")
    pathlib.Path("refs").write_text("{\n'a': 'x y',\n'b': 'z z',\n}\n")
    run("calculate-word-error-rate.py", "--expect_full", "--hyps", "hyps", "--refs", "refs", "--out", "wer")
    assert float(pathlib.Path("wer").read_text()) == 75.0


def training_config() -> str:
    config = {
        "behavior_version": 21,
        "extern_data": {"classes": {"dim": 2, "sparse": True}, "data": {"dim": 9}},
        "network": NETWORK,
        "num_epochs": 1,
        "use_tensorflow": True,
    }
    pathlib.Path("returnn.config").write_text(config_text(config))
    return "returnn.config"


@pytest.mark.long
def test_graph_for_decoders() -> None:
    """CompileTFGraphJob: names of inputs and outputs; the list of variables is in the working directory."""
    config = training_config()
    options = "--train=0 --eval=0 --search=0 --verbosity=4 --output_file=graph.meta"
    options += " --output_file_model_params_list=model_params --output_file_state_vars_list=state_vars"
    run("compile_tf_graph.py", config, *options.split())
    params = pathlib.Path("model_params").read_text().split()
    net = Network.from_config(Config.from_file(config))
    assert sorted(params) == sorted(net.stored_params)
    graph = meta_graph_pb2.MetaGraphDef.FromString(pathlib.Path("graph.meta").read_bytes())
    names = {node.name for node in graph.graph_def.node}
    assert {"extern_data/placeholders/data/data", "output/output_batch_major"} <= names and graph.saver_def.version == 2


@pytest.mark.long
def test_native_op() -> None:
    """CompileNativeOpJob moves the files of both lines."""
    run("compile_native_op.py", "--native_op", "NativeLstm2", "--output_file", "compile.out")
    files = pathlib.Path("compile.out").read_text().splitlines()
    assert len(files) == 2
    for path, name in zip(files, ("NativeLstm2.so", "GradOfNativeLstm2.so")):
        os.rename(path, name)
    assert os.path.getsize("NativeLstm2.so") > 1000 and os.path.getsize("GradOfNativeLstm2.so") > 1000


def test_raw_strings() -> None:
    """What the word error rate is computed with."""
    text = {"class": "StaticDataset", "data": [{"raw": np.array("one two")}, {"raw": np.array("three")}]}
    pathlib.Path("set.config").write_text("#!rnn.py\nimport numpy\n\n\neval = %s\n" % _code(text))
    run("dump-dataset-raw-strings.py", "--config", "set.config", "--out", "refs", "--dataset", "config:eval")
    assert ast.literal_eval(pathlib.Path("refs").read_text()) == {"seq-0": "one two", "seq-1": "three"}


def _code(value: Any) -> str:
    return repr(value).replace("array(", "numpy.array(")
