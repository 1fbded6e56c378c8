"""The layer hdf_dump in every task: what the files hold, when they appear, and what is left after a failure."""

from __future__ import annotations

import os
import pathlib
from typing import Any, Callable, Optional

import h5py
import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.datasets import HDFDataset
from returnn_tf.engine.monitoring.status_file import path_of, read_status
from returnn_tf.engine.training.engine import Engine
from returnn_tf.graph.after_step.sinks import RunInfo
from returnn_tf.tensor import FeatureDim, SpatialDim, batch_dim
from tests.layers.nets import fails, feed, net_of
from tests.run_tasks import run_task

LENS = (3, 5, 2, 4)
DATA = [
    {"data": np.random.RandomState(i).normal(size=(n, 4)).astype("float32"), "classes": np.arange(n) % 3}
    for i, n in enumerate(LENS)
]
SET = {"class": "StaticDataset", "data": DATA, "output_dim": {"data": (4, 2), "classes": (3, 1)}}
SETTINGS: dict[str, Any] = {
    "train": {**SET, "seq_ordering": "reverse"},
    "dev": {**SET, "seq_ordering": "default"},
    "eval": {**SET, "seq_ordering": "default"},
    "extern_data": {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True, "vocab": {"labels": ["a", "b", "c"]}}},
    "batch_size": 100,
    "max_seqs": 3,
    "num_epochs": 2,
    "model": "net/m",
    "in_python": lambda: None,  # so that the data is loaded in this process
}
DUMP = {"class": "hdf_dump", "filename": "d.hdf", "is_output_layer": True}


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(task: str, dump: dict[str, Any], others: Optional[dict[str, Any]] = None, **changes: Any) -> None:
    network = {
        "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"},
        "dump": {**DUMP, "from": "data", **dump},
        **(others or {}),
    }
    assert run_task(Config({**SETTINGS, "task": task, "network": network, **changes})) == 0


def hdf_files() -> list[str]:
    return sorted(name for name in os.listdir(".") if ".hdf" in name)


def sequences(path: str = "d.hdf") -> list[tuple[str, dict[str, np.ndarray]]]:
    """Return (tag, data) as HDFDataset reads them."""
    return [(seq.tag, seq.data) for seq in HDFDataset(files=[path]).sequences(1)]


def test_training_writes_all_passes_into_one_file() -> None:
    run("train", {"extra": {"p": "output", "n": "length"}}, {"length": {"class": "length", "from": "data"}})
    assert hdf_files() == ["d.hdf"]
    found = sequences()
    # epochs with train, dev and eval each
    assert [tag for tag, _ in found] == ["seq-%d" % i for i in ([3, 2, 1, 0] + [0, 1, 2, 3] * 2) * 2]
    for tag, values in found:
        wanted = DATA[int(tag[-1])]["data"]
        np.testing.assert_array_equal(values["data"], wanted)
        assert values["seq_sizes"].tolist() == [len(wanted)] and values["n"].tolist() == [len(wanted)]
        assert values["p_seq_lens"].tolist() == [len(wanted), 3] and "n_seq_lens" not in values
        assert len(values["p"]) >= len(wanted)  # with the padding of its batch
        np.testing.assert_allclose(values["p"].sum(axis=1), 1, rtol=1e-5)


@pytest.mark.slow
def test_forward_and_search_write_too_and_keep_to_the_outputs() -> None:
    run("train", {"is_output_layer": False})
    assert hdf_files() == []
    run("forward", {"from": "output"}, forward_data="eval", output_file="out.h5")
    found = sequences()
    assert [tag for tag, _ in found] == ["seq-0", "seq-1", "seq-2", "seq-3"]
    with h5py.File("out.h5", "r") as other:
        np.testing.assert_array_equal(np.concatenate([values["data"] for _, values in found]), other["inputs"][:])
    run("eval", {"filename": "e.hdf"})
    assert len(sequences("e.hdf")) == 8
    labels = {"class": "reduce", "mode": "argmax", "axis": "F", "from": "output"}
    settings = {"search_data": "eval", "search_output_layer": "labels", "search_output_file": "hyps.txt"}
    run(
        "search",
        {"filename": "s.hdf", "from": "labels"},
        {"labels": {**labels, "is_output_layer": True}},
        search_do_eval=False,
        **settings,
    )
    assert sorted(tag for tag, _ in sequences("s.hdf")) == ["seq-0", "seq-1", "seq-2", "seq-3"]
    for tag, values in sequences("s.hdf"):
        assert values["data"].dtype.kind == "i" and len(values["data"]) == LENS[int(tag[-1])]


@pytest.mark.parametrize(
    "filename",
    ["{dataset_name}.{epoch:02d}.hdf", lambda dataset_name, epoch, **_: "%s.%02d.hdf" % (dataset_name, epoch)],
)
def test_one_file_for_each_run(filename: Any) -> None:
    run("train", {"filename": filename, "dump_per_run": True})
    assert hdf_files() == ["%s.%02d.hdf" % (name, epoch) for name in ("dev", "eval", "train") for epoch in (1, 2)]
    assert [tag for tag, _ in sequences("train.02.hdf")] == ["seq-3", "seq-2", "seq-1", "seq-0"]


def test_labels_and_extended_files() -> None:
    run("eval", {"from": "data:classes"}, allow_random_model_init=True, eval=None)
    with h5py.File("d.hdf", "r") as file:
        assert [label.decode() for label in file["labels"][:]] == ["a", "b", "c"]
        assert file.attrs["numLabels"] == 3
    with pytest.raises(DataError, match="Layer 'dump' .*'d.hdf' exists already. Remove it"):
        run("eval", {"from": "data:classes"}, allow_random_model_init=True, eval=None)
    extended = {"from": "data:classes", "extend_existing_file": True}
    run("eval", extended, allow_random_model_init=True, eval=None)
    assert [tag for tag, _ in sequences()] == ["seq-0", "seq-1", "seq-2", "seq-3"] * 2
    with pytest.raises(DataError, match="does not exist, so it cannot be extended"):
        run("eval", {**extended, "filename": "new.hdf"}, allow_random_model_init=True, eval=None)


def test_whole_batches() -> None:
    run("eval", {"dump_whole_batches": True, "extra": {"c": "data:classes"}}, allow_random_model_init=True, eval=None)
    found = sequences()
    assert [tag for tag, _ in found] == ["seq-0-seq-1-seq-2", "seq-3"]
    values = found[0][1]
    assert values["sizes"].tolist() == [3, 5] and values["data"].shape == (15, 4)
    np.testing.assert_array_equal(values["data"].reshape(3, 5, 4)[1], DATA[1]["data"])
    assert values["seq_sizes"].tolist() == [[3], [5], [2]] and values["c_seq_lens"].tolist() == [[3], [5], [2]]
    assert values["c"].tolist() == [0, 1, 2, 0, 0] + [0, 1, 2, 0, 1] + [0, 1, 0, 0, 0]


@pytest.mark.parametrize("dump_per_run", [False, True])
def test_a_failure_leaves_no_file(dump_per_run: bool) -> None:
    def fail(source: Callable[..., Any], **_: Any) -> Any:
        import tensorflow as tf

        x = source(0)
        with tf.control_dependencies([tf.debugging.Assert(tf.shape(x)[0] > 1, ["a single sequence"])]):
            return tf.identity(x)

    others = {"e": {"class": "eval", "from": "data", "eval": fail, "is_output_layer": True}}
    with pytest.raises(DataError, match="a single sequence"):
        run("train", {"dump_per_run": dump_per_run}, others)  # the second batch
    assert hdf_files() == []


def test_a_file_that_cannot_be_completed_ends_the_training() -> None:
    """The status tells why, and another run may have the model."""
    network = {
        "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"},
        "dump": {**DUMP, "from": "data"},
    }
    config = Config({**SETTINGS, "network": network})
    with pytest.raises(DataError, match="d.hdf"):
        with Engine(config) as engine:
            engine.train()
            os.makedirs("d.hdf/in the way")
    assert "DataError" in read_status(path_of("net/m"))["ended"]["reason"]
    os.removedirs("d.hdf/in the way")
    with Engine(config):
        pass


def test_two_layers_with_the_same_file() -> None:
    others = {"other": {**DUMP, "from": "output"}}
    with pytest.raises(ConfigError, match="The layers 'dump' and 'other' write the same file 'd.hdf'"):
        run("eval", {}, others, allow_random_model_init=True)
    assert hdf_files() == []


def test_a_function_that_fails() -> None:
    for function, message in ((lambda **_: 3, "must return a path, not 3"), (lambda: "x", "TypeError")):
        with pytest.raises(ConfigError, match=message):
            run("eval", {"filename": function, "dump_per_run": True}, allow_random_model_init=True)


def test_planning_and_run_touch_no_file() -> None:
    net = net_of({"output": {**DUMP, "from": "data"}})
    out = net.run(feed()).layers["output"]
    np.testing.assert_array_equal(out.value, feed()["data"])
    assert hdf_files() == []


def _dumped(layer: dict[str, Any], extern: dict[str, Any], arrays: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the first of two sequences."""
    net = Network.from_config(Config({"extern_data": extern, "network": {"output": {**DUMP, **layer}}}))
    graph = net.lower(net.convert_feed(arrays))
    with net.sinks, net.sinks.run(RunInfo("dev", 1)):
        net.sinks.write(graph.sinks, ["x", "y"])
    found = sequences()
    assert [tag for tag, _ in found] == ["x", "y"]
    return found[0][1]


def test_several_axes_and_other_orders() -> None:
    time, other, f, s = SpatialDim("time"), SpatialDim("other"), FeatureDim("f", 2), SpatialDim("s", 3)
    x = np.arange(2 * 2 * 3 * 4 * 5).reshape(2, 3, 2, 5, 4).astype("float32")  # batch, s, f, other, time
    lens = {"data/size2": np.array([4, 5], "int32"), "data/size3": np.array([3, 4], "int32")}
    extern = {"data": {"dim_tags": [batch_dim, s, f, other, time], "feature_dim_axis": 2, "time_dim_axis": 4}}
    values = _dumped({"from": "data"}, extern, {"data": x, **lens})
    wanted = np.moveaxis(x[0, :, :, :4, :3], (0, 1), (2, 3)).reshape(12, 3, 2)
    np.testing.assert_array_equal(values["data"], wanted)
    assert values["sizes"].tolist() == values["seq_sizes"].tolist() == [4, 3]


def test_static_time_bool_and_data_without_batch() -> None:
    time, f = SpatialDim("time", 4), FeatureDim("f", 2)
    extern = {"data": {"dim_tags": [batch_dim, time, f], "time_dim_axis": 1}}
    network = {
        "k": {"class": "constant", "value": np.arange(3.0), "from": []},
        "pos": {"class": "compare", "kind": "greater", "value": 0.0, "from": "data"},
        "output": {**DUMP, "from": "data", "extra": {"k": "k", "pos": "pos"}},
    }
    net = Network.from_config(Config({"extern_data": extern, "network": network}))
    x = np.random.RandomState(1).normal(size=(2, 4, 2)).astype("float32")
    with net.sinks, net.sinks.run(RunInfo("dev", 1)):
        net.sinks.write(net.lower(net.convert_feed({"data": x})).sinks, ["x", "y"])
    values = sequences()[1][1]
    np.testing.assert_array_equal(values["data"], x[1])
    np.testing.assert_array_equal(values["pos"], x[1] > 0)
    assert values["k"].tolist() == [0, 1, 2] and values["k_seq_lens"].tolist() == [3]


def test_further_data_with_several_axes_is_cut_and_joined() -> None:
    """Else the values of sequences could not be found again, as the sizes of the batch are unknown."""
    time, other = SpatialDim("time"), SpatialDim("other")
    extern = {"data": {"dim": 2}, "m": {"dim_tags": [batch_dim, time, other], "feature_dim_axis": None}}
    m = np.arange(2 * 4 * 5).reshape(2, 4, 5).astype("float32")
    lens = {"m/size0": np.array([4, 3], "int32"), "m/size1": np.array([2, 5], "int32")}
    data = {"data": np.zeros([2, 3, 2], "float32"), "data/size0": np.array([3, 2], "int32")}
    values = _dumped({"from": "data", "extra": {"m": "data:m"}}, extern, {**data, "m": m, **lens})
    np.testing.assert_array_equal(values["m"], m[0, :4, :2].reshape(-1))
    assert values["m_seq_lens"].tolist() == [4, 2]


def test_each_process_has_its_own_file() -> None:
    net = net_of({"output": {**DUMP, "from": "data"}})
    graph = net.lower(net.convert_feed(feed()))
    with net.sinks, net.sinks.run(RunInfo("dev", 1, rank=1, size=2)):
        net.sinks.write(graph.sinks, [])  # no batch of its own
        assert hdf_files() == []
        net.sinks.write(graph.sinks, ["a", "b", "c"])
    assert hdf_files() == ["d.rank1.hdf"] and len(sequences("d.rank1.hdf")) == 3


@pytest.mark.parametrize(
    "options,message",
    [
        ({"filename": None}, "filename"),
        ({"filename": ""}, "filename is empty"),
        ({"filename": lambda **_: "x"}, "needs dump_per_run"),
        ({"filename": "{dataset}.hdf", "dump_per_run": True}, "no field {dataset}. Did you mean 'dataset_name'"),
        ({"filename": "{epoch.hdf", "dump_per_run": True}, "is no text with fields"),
        ({"extra": {"data": "data"}}, "extra: 'data' can't be a data key"),
        ({"extra": "data"}, "extra must be a dict from data key to layer"),
        ({"extra": {"a/b": "data"}}, "extra: 'a/b' can't be a data key"),
        ({"extra": {"x": "nothing"}}, "there is no layer 'nothing'"),
        ({"labels": ["a"]}, "there are 1 labels, but the source"),
        ({"from": "data:numbers"}, "must have a batch axis and a time axis"),
        ({"filenam": "x"}, "unknown option 'filenam'"),
    ],
)
def test_mistakes(options: dict[str, Any], message: str) -> None:
    fails({"class": "hdf_dump", "filename": "d.hdf", "from": "data", **options}, message)


def test_in_a_loop() -> None:
    """The values of all steps, where the layer is computed for all of them at once: before or after the loop."""
    unit = {
        "before": {**DUMP, "filename": "b.hdf", "from": "data:source"},
        "sum": {"class": "combine", "kind": "add", "from": ["before", "prev:sum"]},
        "dump": {**DUMP, "from": "sum", "extra": {"b": "before"}},
        "output": {"class": "copy", "from": "sum"},
    }
    run("eval", {"from": "loop", "filename": "l.hdf"}, {"loop": {"class": "rec", "from": "data", "unit": unit}},
        allow_random_model_init=True, eval=None)  # fmt: skip
    assert hdf_files() == ["b.hdf", "d.hdf", "l.hdf"]
    for tag, values in sequences():
        wanted = DATA[int(tag[-1])]["data"].cumsum(axis=0)
        np.testing.assert_allclose(values["data"], wanted, rtol=1e-5)
    for (tag, values), (_, other) in zip(sequences("b.hdf"), sequences("l.hdf")):
        np.testing.assert_array_equal(values["data"], DATA[int(tag[-1])]["data"])
        np.testing.assert_allclose(other["data"], values["data"].cumsum(axis=0), rtol=1e-5)
    unit["output"]["from"] = "dump"
    unit["sum"]["from"] = ["before", "prev:output"]
    with pytest.raises(ConfigError, match="Layer 'output/dump' .*can't run step by step in a loop.*put it outside"):
        net_of({"output": {"class": "rec", "from": "data", "unit": unit}})


@pytest.mark.slow
def test_resumed_training(capsys: pytest.CaptureFixture[str]) -> None:
    """The log says that the file lacks the epochs before; an old file is refused before the first batch."""
    run("train", {}, num_epochs=1)
    assert "its file will lack" not in capsys.readouterr().out
    with pytest.raises(DataError, match="'d.hdf' exists already"):
        run("train", {}, num_epochs=2)
    capsys.readouterr()
    os.remove("d.hdf")
    run("train", {}, num_epochs=2)
    text = capsys.readouterr().out
    assert "Layer 'dump': its file will lack what was done before this start in epoch 2." in text
    assert len(sequences()) == 8 + 12  # the evaluation of epoch 1 again, of which there is no file with scores
    run("train", {"filename": "{epoch}.{dataset_name}.hdf", "dump_per_run": True}, num_epochs=3)
    assert "its file will lack" not in capsys.readouterr().out
