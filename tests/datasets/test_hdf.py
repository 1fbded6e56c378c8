"""HDFDataset: all recorded files and options, and files which are not what they should be."""

from __future__ import annotations

import errno
import os
import pickle
import random

import h5py
import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset, HDFDataset
from returnn_tf.datasets.hdf.dataset import max_open_files
from tests.datasets.recorded import ROOT, assert_same_sequences, by_name, dataset_info, load_json

FILES = sorted(path.name for path in (ROOT / "hdf").glob("*.hdf"))
READING = by_name(load_json("hdf/reading_options.json"))

# recorded oddities which are not followed, with the reason
QUIRKS = {"handmade_3d.hdf": "the shape of 3-D data is recorded as (None, dim), here it is that of the data"}


def _path(name):
    return str(ROOT / "hdf" / name)


def _compare_info(dataset, expected, name):
    got = dataset_info(dataset)
    if name in QUIRKS:
        assert got["per_key"]["data"]["shape"] == [2, 3]
        expected["per_key"]["data"]["shape"] = [2, 3]
    assert got == expected


@pytest.mark.parametrize("name", FILES)
def test_recorded_files(name):
    facts = load_json("hdf/%s.json" % name)
    dataset = Dataset.from_config({"class": "HDFDataset", "files": [_path(name)]})
    _compare_info(dataset, facts["dataset"], name)
    assert_same_sequences(dataset.sequences(1), facts["seqs"])


@pytest.mark.parametrize("name", READING)
def test_recorded_options(name):
    case = READING[name]
    files = [_path(file) for file in case["files"]]
    dataset = Dataset.from_config({"class": "HDFDataset", "files": files, **case.get("options", {})})
    if "seq_list" in case:
        assert [seq.tag for seq in dataset.sequences(1, seq_list=case["seq_list"])] == case["tags_read"]
        return
    _compare_info(dataset, case["dataset"], name)
    for epoch, expected in case["epochs"].items():
        assert_same_sequences(dataset.sequences(int(epoch)), expected)


def test_reads_only_what_is_used(monkeypatch):
    dataset = HDFDataset(files=[_path("simple_extra.hdf")])
    keys = []
    stream = dataset.files[0]._stream
    monkeypatch.setattr(dataset.files[0], "_stream", lambda key: keys.append(key) or stream(key))
    list(dataset.batches(epoch=1, batch_size=1000, used_data_keys=["classes"]))
    assert set(keys) == {"classes"}


def test_planning_reads_no_data(monkeypatch):
    dataset = HDFDataset(files=[_path("simple_dense.hdf")], seq_ordering="laplace:.2", chunking="4:2")
    monkeypatch.setattr(dataset, "read", None)
    assert list(dataset.batches(epoch=1, batch_size=8, start_batch=1000)) == []


@pytest.mark.parametrize("size", [-1, 10**6, 150])
def test_cache(size, monkeypatch):
    dataset = HDFDataset(files=[_path("simple_dense.hdf")], cache_byte_size=size)
    first = [seq.data["data"].copy() for seq in dataset.sequences(1)]
    reads = []
    read = dataset.files[0].read
    monkeypatch.setattr(dataset.files[0], "read", lambda key, index: reads.append(index) or read(key, index))
    for seq, expected in zip(dataset.sequences(2), first):
        np.testing.assert_array_equal(seq.data["data"], expected)
    assert len(reads) == {-1: 0, 10**6: 0, 150: 3}[size]


def test_pickled_dataset_reads_the_same():
    dataset = HDFDataset(files=[_path("simple_dense.hdf")], seq_ordering="random", name="train")
    list(dataset.sequences(1))
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.name == "train"
    for one, other in zip(dataset.sequences(3), copy.sequences(3)):
        np.testing.assert_array_equal(one.data["data"], other.data["data"])


def test_no_open_file_is_left():
    dataset = HDFDataset(files=[_path("simple_dense.hdf")])
    assert not dataset.files[0].is_open
    list(dataset.sequences(1))
    assert dataset.files[0].is_open
    dataset.close()
    assert not dataset.files[0].is_open


@pytest.mark.parametrize("allowed, expected", [(1024, 512), (1 << 20, 1024), (-1, 1024), (100, 50), (8, 4), (2, 1)])
def test_as_many_files_stay_open_as_the_system_allows(allowed, expected, tmp_path, monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda kind: (allowed, allowed))
    for number in range(6):
        _write(tmp_path / ("%d.hdf" % number))
    dataset = HDFDataset(files=[str(tmp_path / ("%d.hdf" % number)) for number in range(6)])
    assert max_open_files() == expected
    list(dataset.sequences(1))
    assert sum(file.is_open for file in dataset.files) == min(expected, 6)


# ---- bad files


def _write(path, *, lengths=((3, 0), (2, 0)), tags=(b"a", b"b"), frames=5, **extra):
    with h5py.File(path, "w") as file:
        file["inputs"] = np.zeros((frames, 2), "float32")
        file["seqLengths"] = np.array(lengths, "int32")
        file["seqTags"] = np.array(tags)
        for key, value in extra.items():
            file[key.replace("__", "/")] = value


def _without(name):
    def make(path):
        _write(path)
        with h5py.File(path, "a") as file:
            del file[name]

    return make


def _truncated(path):
    content = (ROOT / "hdf" / "simple_dense.hdf").read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])


def _flat_inputs(path):
    _without("inputs")(path)
    with h5py.File(path, "a") as file:
        file["inputs"] = np.zeros(5, "int32")


def _scalar_inputs(path):
    _without("inputs")(path)
    with h5py.File(path, "a") as file:
        file["inputs"] = 3


def _external_link(path):
    _without("inputs")(path)
    other = path.with_name("other.hdf")
    _write(other)
    with h5py.File(path, "a") as file:
        file["inputs"] = h5py.ExternalLink(str(other), "/inputs")


def _external_storage(path):
    _without("inputs")(path)
    secret = path.with_name("secret")
    secret.write_bytes(bytes(40))
    with h5py.File(path, "a") as file:
        file.create_dataset("inputs", shape=(5, 2), dtype="float32", external=[(str(secret), 0, 40)])


def _huge_claim(path):
    _without("seqLengths")(path)
    with h5py.File(path, "a") as file:
        file.create_dataset("seqLengths", shape=(10**9, 2), dtype="int32", chunks=(1024, 2))


def _huge_inputs(layout, shape=(300_000_000, 5)):
    def make(path):
        _write(path)
        with h5py.File(path, "a") as file:
            del file["inputs"], file["seqLengths"]
            file["seqLengths"] = np.array([[shape[0] // 2, 0]] * 2, "i8")
            file.create_dataset("inputs", shape=shape, dtype="f4", **layout)

    return make


def _huge_tags(path):
    _without("seqTags")(path)
    with h5py.File(path, "a") as file:
        file.create_dataset("seqTags", shape=(2,), dtype="S1000000000", chunks=(1,))


def _huge_labels(path):
    _write(path)
    with h5py.File(path, "a") as file:
        file.create_dataset("labels", shape=(10**9,), dtype="S4", chunks=(1024,))


def _declared_target(path):
    _write(path)
    with h5py.File(path, "a") as file:
        file.create_group("targets/size").attrs["classes"] = [3, 1]


def _sized(size, targets=None):
    def make(path):
        targets_ = np.zeros(5, "int32") if targets is None else targets
        _write(path, lengths=((3, 3), (2, 2)), targets__data__classes=targets_)
        with h5py.File(path, "a") as file:
            file.create_group("targets/size").attrs["classes"] = np.array(size)

    return make


def _input_size(size):
    def make(path):
        _flat_inputs(path)
        with h5py.File(path, "a") as file:
            file.attrs["inputPattSize"] = size

    return make


BAD_FILES = {
    "negative_dim": (_sized([-3, 1]), "attribute classes of /targets/size is -3, but must be a number of classes"),
    "huge_dim": (_sized([2**62, 1]), "attribute classes of /targets/size is 4611686018427387904, but must be"),
    "huge_scalar_dim": (_sized(2**62), "attribute classes of /targets/size is 4611686018427387904, but must be"),
    "text_dim": (_sized(b"many"), "attribute classes of /targets/size is .*many.*, but must be"),
    "other_axes": (_sized([3, 5]), r"says .dim, ndim. = .3, 5., but the array has the shape .5."),
    "other_dim": (_sized([4, 2], np.zeros((5, 3), "f4")), r"= .4, 2., but the array has the shape .5, 3.; write it"),
    "float_size": (_sized([3.5, 1.0]), r"is .3.5, 1.0., but must be .dim, ndim."),
    "negative_input_dim": (_input_size(-1), "attribute inputPattSize is -1, but must be"),
    "huge_input_dim": (_input_size(2**62), "attribute inputPattSize is 4611686018427387904, but must be"),
    "list_as_input_dim": (_input_size([1, 2]), r"attribute inputPattSize is .1, 2., but must be"),
    "missing": (lambda path: None, "does not exist"),
    "directory": (lambda path: path.mkdir(), "is a directory"),
    "pipe": (os.mkfifo, "is a pipe or a device"),
    "empty": (lambda path: path.write_bytes(b""), "not an HDF5 file|truncated"),
    "text": (
        lambda path: path.write_text("hello " * 200),
        "not an HDF5 file; HDFDataset needs files as",
    ),
    "truncated": (_truncated, "truncated.*copy it again"),
    "no_seq_lengths": (_without("seqLengths"), "'/seqLengths' is missing"),
    "no_tags": (_without("seqTags"), "'/seqTags' is missing"),
    "no_data": (_without("inputs"), "neither /inputs nor /targets/data"),
    "lengths_too_short": (lambda p: _write(p, frames=6), "add up to 5 frames, but /inputs has 6; it was damaged"),
    "lengths_too_long": (
        lambda p: _write(p, frames=4),
        "in /seqLengths add up to 5 frames, but /inputs has 4",
    ),
    "negative": (lambda p: _write(p, lengths=((7, 0), (-2, 0))), "negative length, in row 1"),
    "tags_missing": (lambda p: _write(p, tags=(b"a",)), "/seqTags has shape .1,., but /seqLengths has 2 rows"),
    "old_lengths": (lambda p: _write(p, lengths=(3, 2)), "must be integers of shape .num_seqs, streams."),
    "columns": (lambda p: _write(p, lengths=((3, 0, 0), (2, 0, 0))), "has 3 columns, but there are 1 streams .data."),
    "target_named_data": (lambda p: _write(p, targets__data__data=np.zeros(5)), "also a target key 'data'"),
    "target_lengths": (
        lambda p: _write(p, lengths=((3, 1), (2, 2)), targets__data__classes=np.zeros(2)),
        "key 'classes' in /seqLengths add up to 3 frames, but /targets/data/classes has 2",
    ),
    "target_without_data": (_declared_target, "/targets/data/classes is missing"),
    "scalar_inputs": (
        _scalar_inputs,
        "is a single value, not an array of frames",
    ),
    "no_dim": (_flat_inputs, "attribute inputPattSize must give the number of classes"),
    "external_link": (_external_link, "a link to another file"),
    "external_storage": (_external_storage, "refers to other files"),
    "huge_claim": (
        _huge_claim,
        r"/seqLengths claims the shape .1000000000, 2. .8 GB., but the file has only \d+ bytes",
    ),
    "huge_inputs": (_huge_inputs({}), "/inputs claims the shape .300000000, 5. .6 GB., but the file has only"),
    "huge_chunks": (_huge_inputs({"chunks": (1000, 5)}), "/inputs claims the shape .300000000, 5. .6 GB., but the"),
    "huge_tags": (_huge_tags, r"/seqTags claims the shape .2. .2 GB., but"),
    "huge_labels": (_huge_labels, r"/labels claims the shape .1000000000. .4 GB., but"),
    "beyond_64_bits": (
        _huge_inputs({"chunks": (1, 1)}, (2**62, 2**60)),
        "/inputs claims the shape .4611686018427387904",
    ),
    "beyond_floats": (_huge_inputs({"chunks": (1,) * 18}, (2**60,) * 18), r"/inputs claims the shape .*inf GB"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(name, tmp_path):
    make, text = BAD_FILES[name]
    path = tmp_path / "bad.hdf"
    make(path)
    with pytest.raises(DataError, match=text) as error:
        Dataset.from_config({"class": "HDFDataset", "files": [str(path)]})
    assert "HDF file %r" % str(path) in str(error.value)


def test_a_file_without_permission_to_read_it(tmp_path, monkeypatch):
    """It is not called damaged. (Root may read all files, so the library's error is made here.)"""
    path = tmp_path / "a.hdf"
    path.write_bytes(b"x")

    def refuse(*_args, **_options):
        raise PermissionError(errno.EACCES, "Unable to determine if file is accessible as HDF5")

    monkeypatch.setattr("returnn_tf.datasets.hdf.file.open_unlocked", refuse)
    monkeypatch.setattr("h5py.is_hdf5", refuse)
    with pytest.raises(DataError, match="HDF file .*a.hdf': it can't be read: Permission denied$"):
        list(HDFDataset(files=[str(path)]).sequences(1))


def test_damage_inside_the_data_names_the_sequence(tmp_path):
    path = tmp_path / "a.hdf"
    with h5py.File(path, "w") as file:
        file.create_dataset("inputs", data=np.arange(4000.0).reshape(2000, 2), chunks=(500, 2), compression="gzip")
        file["seqLengths"] = np.array([(1000, 0), (1000, 0)], "int32")
        file["seqTags"] = np.array([b"first", b"second"])
        offset = file["inputs"].id.get_chunk_info(3).byte_offset
    content = bytearray(path.read_bytes())
    content[offset : offset + 200] = b"x" * 200
    path.write_bytes(content)
    dataset = Dataset.from_config({"class": "HDFDataset", "files": [str(path)], "name": "train"})
    with pytest.raises(DataError, match="'train', sequence 'second' .*HDF file .* cannot be read .damaged"):
        list(dataset.sequences(1))


def test_several_files_must_fit(tmp_path):
    _write(tmp_path / "a.hdf", lengths=((3, 1), (2, 1)), targets__data__classes=np.zeros(2, "int32"))
    _write(tmp_path / "b.hdf")
    with h5py.File(tmp_path / "c.hdf", "w") as file:
        file["inputs"] = np.zeros((5, 3), "float32")
        file["seqLengths"] = np.array([(5, 0)], "int32")
        file["seqTags"] = np.array([b"c"])
    a, b, c = (str(tmp_path / name) for name in ("a.hdf", "b.hdf", "c.hdf"))
    with pytest.raises(DataError, match="b.hdf' lacks the key 'classes' which .*a.hdf' has"):
        HDFDataset(files=[a, b])
    with pytest.raises(DataError, match="c.hdf': key 'data' has dim 3 and 2 axes, but dim 2 and 2 axes in .*b.hdf"):
        HDFDataset(files=[b, c])
    assert HDFDataset(files=[b, a]).data_keys == ["data"]  # further keys of later files are left out


def test_bad_options():
    with pytest.raises(ConfigError, match="option 'files' is missing"):
        HDFDataset()
    with pytest.raises(ConfigError, match="option 'files' is empty"):
        HDFDataset(files=[])
    with pytest.raises(ConfigError, match="partition_epoch > 1 needs cache_byte_size = 0"):
        HDFDataset(files=[_path("simple_dense.hdf")], cache_byte_size=100, partition_epoch=2)
    with pytest.raises(ConfigError, match="unknown option 'file'. Did you mean 'files'"):
        HDFDataset(file="a.hdf")


def test_empty_file(tmp_path):
    path = tmp_path / "empty.hdf"
    with h5py.File(path, "w") as file:
        file["inputs"] = np.zeros((0, 2), "float32")
        file["seqLengths"] = np.zeros((0, 2), "int32")
        file["seqTags"] = np.zeros((0,), "S3")
    with pytest.raises(DataError, match="is empty: it has no sequences"):
        HDFDataset(files=[str(path)]).batches(epoch=1)


def test_many_files_do_not_stay_open(tmp_path, monkeypatch):
    monkeypatch.setattr("returnn_tf.datasets.hdf.dataset.max_open_files", lambda: 3)
    files = []
    for number in range(8):
        files.append(str(tmp_path / ("%d.hdf" % number)))
        _write(files[-1])
    dataset = HDFDataset(files=files)
    assert len(list(dataset.sequences(1))) == 16
    assert sum(file.is_open for file in dataset.files) == 3


def test_missing_file_names_the_directory():
    with pytest.raises(DataError, match="does not exist .current directory: "):
        HDFDataset(files=["nowhere.hdf"])
    assert not os.path.exists("nowhere.hdf")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simple_extra.hdf", "tool_translation.hdf", "handmade_targets_only.hdf"])
def test_damaged_bytes_never_lead_to_other_errors(name, tmp_path):
    content = (ROOT / "hdf" / name).read_bytes()
    rng = random.Random(name)
    path = tmp_path / "damaged.hdf"
    outcomes = []
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 4, 30])):
            damaged[rng.randrange(min(len(damaged), 6000))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            list(HDFDataset(files=[str(path)]).sequences(1))
            outcomes.append("read")
        except (ConfigError, DataError) as exc:
            assert "damaged.hdf" in str(exc) or "is empty" in str(exc)
            outcomes.append("refused")
    assert outcomes.count("refused") > 10
