"""Jobs that train: what they find in their folders, again after an interruption, and what further jobs do with it."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

import h5py
import numpy as np
import pytest
import tensorflow as tf

from returnn_tf.cli.main import main
from returnn_tf.datasets import Dataset
from tests.compat.jobs.manager import (
    STAGED,
    Job,
    best_checkpoint,
    config_text,
    delete_other_epochs,
    learning_rates,
    write_networks,
)

DATA = {"class": "Task12AXDataset", "num_seqs": 6, "fixed_random_seed": 1}
LAYER = {"class": "softmax", "from": "hidden", "loss": "ce", "target": "classes"}
CONFIG: dict[str, Any] = {
    "batch_size": 400,
    "behavior_version": 21,
    "cleanup_old_models": {"keep": {1, 2}},
    "dev": DATA,
    "device": "cpu",
    "extern_data": {"classes": {"dim": 2, "sparse": True}, "data": {"dim": 9}},
    "learning_rate": 0.01,
    "learning_rate_control": "newbob",
    "learning_rate_file": "learning_rates",
    "log": ["./returnn.log"],
    "log_verbosity": 3,
    "max_seqs": 4,
    "network": {
        "hidden": {"class": "rec", "from": "data", "n_out": 4, "unit": "lstm"},
        "output": LAYER,
    },
    "num_epochs": 2,
    "optimizer": {"class": "nadam"},
    "save_interval": 1,
    "target": "classes",
    "task": "train",
    "tf_session_opts": {"allow_soft_placement": True, "log_device_placement": False},
    "train": DATA,
    "use_tensorflow": True,
}
#: What `average` has to make, as links to files that do not exist yet.
SUFFIXES = ("index", "meta", "data-00000-of-00001")


@pytest.fixture(autouse=True)
def with_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RETURNN_TF_META_GRAPH", raising=False)


def training(job: Job, *, prolog: str = "", **changes: Any) -> Job:
    config = {**CONFIG, "model": str(job.output / "models" / "epoch"), **changes}
    job.write(config_text({key: value for key, value in config.items() if value is not None}, prolog=prolog))
    return job


def check_outputs(job: Job, epochs: int) -> dict[int, Any]:
    """Check the files of a training job; return its learning rates."""
    for epoch in range(1, epochs + 1):
        for suffix in SUFFIXES:
            assert (job.output / "models" / ("epoch.%03d.%s" % (epoch, suffix))).stat().st_size > 0
    numbers = range(1, epochs + 1)
    assert delete_other_epochs(job.output / "models", kept=numbers) == set(numbers)
    rates = learning_rates(job.work / "learning_rates")
    assert list(rates) == list(range(1, epochs + 1))
    assert {"train_score", "train_error", "dev_score", "dev_error"} <= set(rates[1]["error"])
    return rates


def run_graph(prefix: pathlib.Path, **arrays: Any) -> Any:
    """Return the output of a checkpoint's own graph, as a program with TensorFlow's older API computes it."""
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph, v1.Session() as session:
        saver = v1.train.import_meta_graph("%s.meta" % prefix)
        saver.restore(session, str(prefix))
        feed = {graph.get_tensor_by_name("extern_data/placeholders/data/%s:0" % name): a for name, a in arrays.items()}
        return session.run("output/output_batch_major:0", feed)


@pytest.mark.slow
def test_training_and_what_follows(tmp_path: pathlib.Path) -> None:
    """Train, be interrupted and resume, take the best epoch and averages, forward; one in a process of its own."""
    job = training(Job(tmp_path / "train"), num_epochs=1)
    assert "Saved" in job.run()
    first = check_outputs(job, 1)
    rates_file = os.stat(job.work / "learning_rates")
    job.in_process = True
    training(job, num_epochs=2)
    assert "Loaded" in job.run()
    rates = check_outputs(job, 2)
    assert rates[1] == first[1] and rates[2]["error"]["train_score"] < rates[1]["error"]["train_score"]
    assert rates_file.st_ino != os.stat(job.work / "learning_rates").st_ino  # written anew, not changed in place
    assert sorted(os.listdir(job.work)) == ["learning_rates", "returnn.log"]

    models = job.output / "models"
    best = best_checkpoint(models, job.work / "learning_rates", "dev_score", tmp_path / "best")
    assert best == 2

    # the average: links are made before their targets
    average = tmp_path / "average"
    average.mkdir()
    for suffix in SUFFIXES:
        (average / ("average." + suffix)).symlink_to(average / ("epoch.001." + suffix))
    arguments = ["--prefix", str(models / "epoch."), "--output_path", str(average / "epoch.001")]
    assert main(["tool", "tf_avg_checkpoints", "--checkpoints", "001,002", *arguments]) == 0
    reader = tf.train.load_checkpoint(str(average / "average"))
    readers = [tf.train.load_checkpoint(str(models / ("epoch.%03d" % epoch))) for epoch in (1, 2)]
    mean = (readers[0].get_tensor("output/W") + readers[1].get_tensor("output/W")) / 2
    np.testing.assert_allclose(reader.get_tensor("output/W"), mean, rtol=1e-6)

    # forwarding, in a temporary folder, with a second file from a layer
    forward = Job(tmp_path / "forward", in_process=True)
    dump = {"class": "hdf_dump", "filename": "hidden.hdf", "from": "hidden", "is_output_layer": True}
    config = {key: CONFIG[key] for key in ("extern_data", "target", "device", "log", "max_seqs", "use_tensorflow")}
    config.update(network={**CONFIG["network"], "dump": dump}, eval=DATA, task="forward", forward_batch_size=400)
    config.update(
        load=str(tmp_path / "best" / "checkpoint"), output_file="output.hdf", forward_override_hdf_output=True
    )
    forward.write(config_text(config))
    forward.run()
    assert sorted(os.listdir(forward.work)) == ["hidden.hdf", "output.hdf", "returnn.log"]
    written = {seq.tag: seq.data["data"] for seq in Dataset.from_config(str(forward.work / "output.hdf")).sequences()}
    with h5py.File(forward.work / "hidden.hdf") as file:
        assert file["inputs"].shape == (sum(map(len, written.values())), 4)
    # the same numbers as those of the graph beside the checkpoint, which needs no library
    for seq in Dataset.from_config(DATA).sequences():
        values = run_graph(
            models / "epoch.002", data=seq.data["data"][None], data_dim0_size=np.array([len(seq.data["data"])])
        )
        np.testing.assert_allclose(written[seq.tag], values[0], rtol=1e-4, atol=1e-5)
        break


@pytest.mark.slow
def test_staged_networks(tmp_path: pathlib.Path) -> None:
    """In a folder beside the config; parameters of another shape start anew, with a warning."""
    job = training(Job(tmp_path / "train", in_process=True), prolog=STAGED, network=None)
    small = {"output": {**LAYER, "from": "data"}}
    write_networks(job.output, {1: small, 2: CONFIG["network"]})
    text = job.run()
    check_outputs(job, 2)
    assert "parameters with another shape are initialised again: output/W ([9, 2] -> [4, 2])" in text
    assert "1 copied, 3 new" in text and "1 reinitialised (output/W)" in text
    for name in [name for name in sys.modules if name.split(".")[0] == "networks"]:
        del sys.modules[name]


@pytest.mark.slow
def test_pretraining_names_its_checkpoints(tmp_path: pathlib.Path) -> None:
    """The file .meta of each has the same name."""
    code = (
        "def construct(idx, net_dict):\n"
        "    if idx > 0:\n        return None\n"
        "    net_dict['hidden'] = {'class': 'linear', 'activation': 'tanh', 'n_out': 4, 'from': 'data'}\n"
        "    return net_dict\n"
        "pretrain = {'construction_algo': construct, 'repetitions': 1}\n"
    )
    job = training(Job(tmp_path / "train", in_process=True), prolog=code, num_epochs=3, cleanup_old_models=None)
    job.run()
    names = sorted(name for name in os.listdir(job.output / "models") if name.endswith((".index", ".meta")))
    assert delete_other_epochs(job.output / "models", kept=[3]) == {1, 2, 3}
    assert [name for name in names if ".state" not in name] == [
        "epoch.003.index",
        "epoch.003.meta",
        "epoch.pretrain.001.index",
        "epoch.pretrain.001.meta",
        "epoch.pretrain.002.index",
        "epoch.pretrain.002.meta",
    ]


CONFIG_V2 = """#!returnn/rnn.py
import os
import sys
sys.path.insert(0, "{folder}")
from returnn.tensor import Dim, batch_dim
from returnn.util.file_cache import CachedFile

time_dim = Dim(None, name="time")
feature_dim = Dim(9, name="feature", kind=Dim.Types.Feature)
classes_dim = Dim(2, name="classes")
use_tensorflow = True
behavior_version = 21
extern_data = {{
    "data": {{"dim_tags": [batch_dim, time_dim, feature_dim], "dtype": "float32"}},
    "classes": {{"dim_tags": [batch_dim, time_dim], "sparse_dim": classes_dim, "dtype": "int32"}},
}}
data = CachedFile("{folder}/train.hdf")
train = {{"class": "HDFDataset", "files": [data]}}
dev = {{"class": "HDFDataset", "files": [data]}}
hidden_dim = Dim(7, name="hidden", kind=Dim.Types.Feature)
network = {{
    "hidden": {{"class": "linear", "activation": "tanh", "out_dim": hidden_dim, "from": "data"}},
    "output": {{"class": "softmax", "loss": "ce", "target": "classes", "out_dim": classes_dim, "from": "hidden"}},
}}
batch_size, num_epochs, learning_rate = 400, 1, 0.01
model = "{folder}/output/models/epoch"
task, device, log, learning_rate_file = "train", "cpu", ["./returnn.log"], "learning_rates"
"""


def test_a_config_of_the_second_kind(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its objects are made by imports."""
    monkeypatch.setenv("RETURNN_TF_FILE_CACHE", str(tmp_path / "cache"))
    with h5py.File(tmp_path / "train.hdf", "w") as file:
        file["inputs"] = np.random.RandomState(1).normal(size=(7, 9)).astype("float32")
        file["seqLengths"] = np.array([[4, 4], [3, 3]], "int32")
        file["seqTags"] = np.array([b"a", b"b"])
        file["targets/data/classes"] = np.arange(7, dtype="int32") % 2
        file.create_group("targets/size").attrs["classes"] = [2, 1]
        file.create_group("targets/labels")
    job = Job(tmp_path, in_process=True)
    job.write(CONFIG_V2.format(folder=tmp_path))
    job.run()
    check_outputs(job, 1)


FROM_FILE = """#!rnn.py
model = config.value("ext_model", None) + "/epoch"
learning_rate_file = config.value("ext_learning_rate_file", None)
num_epochs = config.int("ext_num_epochs", 5)
assert config.int("ext_offset", 0) == -1 and config.int_list("ext_sizes") == [3, 4]
train = dev = {"class": "Task12AXDataset", "num_seqs": 3, "fixed_random_seed": 1}
extern_data = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
network = {"output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}}
options = {"a": 1}
learning_rates = [0.1]
batch_size = 400
"""


def test_a_config_of_the_user_with_options(tmp_path: pathlib.Path) -> None:
    """The options are sorted; negative numbers begin with "+", lists and dicts are text without blanks."""
    job = Job(tmp_path, in_process=True)
    job.write(FROM_FILE)
    options = {
        "device": "cpu",
        "ext_learning_rate_file": "learning_rates",
        "ext_model": str(job.output / "models"),
        "ext_num_epochs": "1",
        "ext_offset": "+-1",
        "ext_sizes": "[3,4]",
        "learning_rates": "[0.5,0.25]",
        "log": "['./returnn.log']",
        "log_verbosity": "4",
        "options": "{'a':2,'b':[1,2]}",
    }
    job.run(*[part for key, value in sorted(options.items()) for part in ("++" + key, value)])
    assert check_outputs(job, 1)[1]["learning_rate"] == 0.5


def test_initial_parameters_have_a_graph_too(tmp_path: pathlib.Path) -> None:
    job = training(Job(tmp_path, in_process=True), task="initialize_model")
    job.run()
    models = job.output / "models"
    assert all((models / ("epoch." + suffix)).stat().st_size > 0 for suffix in SUFFIXES)
    inputs = np.ones([1, 3, 9], "float32")
    assert run_graph(models / "epoch", data=inputs, data_dim0_size=np.array([3])).shape == (1, 3, 2)
    job = training(job, task="initialize_model", write_meta_graph=False, model=str(job.output / "other"))
    job.run()
    assert not (job.output / "other.meta").exists() and (job.output / "other.index").exists()
