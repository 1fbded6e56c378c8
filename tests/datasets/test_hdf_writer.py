"""HDFWriter: files with the recorded layout, and no half files."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset, HDFDataset, HDFWriter
from tests.datasets.recorded import ROOT, assert_same_sequences, load_json
from tests.tiers import usual

# how the recorded files were written: options of the writer, and whether in one padded batch
RECORDED = {
    "simple_dense": {"dim": 4},
    "simple_dense_1d": {"ndim": 1},
    "simple_dense_labels": {"dim": 4, "labels": ["feat-a", "feat-b", "feat-c", "feat-d"]},
    "simple_sparse": {"dim": 6, "ndim": 1, "labels": ["<s>", "</s>", "äpfel", "b", "c d", "e"]},
    "simple_extra": {
        "dim": 4,
        "extra_type": {
            "classes": (6, 1, "int32"),
            "feat2": (3, 2, "float32"),
            "score": (1, 1, "float32"),
            "raw_txt": (None, 1, "string"),
        },
        "extra_labels": {"classes": ["<s>", "</s>", "äpfel", "b", "c d", "e"]},
    },
    "simple_extra_auto": {"dim": 4},
    "simple_no_time": {"dim": 4, "ndim": 1},
    "simple_3d": {"dim": 4, "ndim": 3},
    "simple_2d_dyn_sparse": {"dim": 6, "ndim": 2},
}


def _layout(path):
    """Return the layout of a file as recorded."""
    out = {}

    def attrs(item):
        return {key: np.asarray(value).tolist() for key, value in item.attrs.items()}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            text = h5py.check_string_dtype(item.dtype)
            vlen = text is not None and text.length is None
            dtype = "vlen-utf8-string" if vlen else item.dtype.str if item.dtype.kind == "S" else item.dtype.name
            out["/" + name] = {
                "kind": "dataset",
                "shape": list(item.shape),
                "maxshape": list(item.maxshape),
                "dtype": dtype,
            }
        else:
            out["/" + name] = {"kind": "group"}
        if attrs(item):
            out["/" + name]["attrs"] = attrs(item)

    with h5py.File(path, "r") as file:
        out["/"] = {"attrs": attrs(file)}
        file.visititems(visit)
    return out


def _padded(values):
    shape = np.max([value.shape for value in values], axis=0)
    out = np.full((len(values),) + tuple(shape), 7, values[0].dtype)
    for row, value in zip(out, values):
        row[tuple(slice(0, n) for n in value.shape)] = value
    return out


def _insert(writer, name, seqs):
    """Insert sequences that were read from a recorded file."""
    tags = [seq.tag for seq in seqs]
    values = [seq.data["data"] for seq in seqs]
    if name == "simple_no_time":
        writer.insert_batch(np.concatenate(values), {}, tags)
        return
    lengths = {0: [len(value) for value in values]}
    extra = {key: [seq.data[key] for seq in seqs] for key in seqs[0].data if key not in ("data", "sizes")}
    if "sizes" in seqs[0].data:
        sizes = np.array([seq.data["sizes"] for seq in seqs])
        values = [value.reshape(tuple(size) + value.shape[1:]) for value, size in zip(values, sizes)]
        lengths = {0: sizes[:, 0], 1: sizes[:, 1]}
    for key in ("score", "weight"):
        if key in extra:
            extra[key] = np.concatenate(extra[key])  # [batch]: one number per sequence
    writer.insert_batch(_padded(values), lengths, tags, extra=extra)


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_layout(name, batch, tmp_path):
    facts = load_json("hdf/%s.hdf.json" % name)
    seqs = list(HDFDataset(files=[str(ROOT / "hdf" / (name + ".hdf"))]).sequences(1))
    path = str(tmp_path / "new" / "out.hdf")
    with HDFWriter(path, **RECORDED[name]) as writer:
        for start in range(0, len(seqs), batch):
            _insert(writer, name, seqs[start : start + batch])
    assert _layout(path) == facts["hdf_layout"]
    assert_same_sequences(HDFDataset(files=[path]).sequences(1), facts["seqs"])
    assert os.listdir(tmp_path / "new") == ["out.hdf"]


def test_extend(tmp_path):
    facts = load_json("hdf/simple_dense_extended.hdf.json")
    seqs = list(HDFDataset(files=[str(ROOT / "hdf" / "simple_dense_extended.hdf")]).sequences(1))
    path = str(tmp_path / "out.hdf")
    with HDFWriter(path, dim=4) as writer:
        _insert(writer, "simple_dense", seqs[:5])
    with HDFWriter(path, dim=4, extend_existing_file=True) as writer:
        _insert(writer, "simple_dense", seqs[5:])
    assert _layout(path) == facts["hdf_layout"]
    assert_same_sequences(HDFDataset(files=[path]).sequences(1), facts["seqs"])


def test_failed_extension_leaves_the_file(tmp_path):
    path = tmp_path / "out.hdf"
    with HDFWriter(str(path), dim=2) as writer:
        writer.insert_batch(np.zeros((1, 3, 2)), [3], ["a"])
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError), HDFWriter(str(path), dim=2, extend_existing_file=True) as writer:
        writer.insert_batch(np.zeros((1, 3, 2)), [3], ["b"])
        raise ZeroDivisionError
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["out.hdf"]


@pytest.mark.slow
def test_what_is_no_hdf_file_is_not_extended(tmp_path):
    """Nor does a file stay open, as a warning would tell."""
    (tmp_path / "out.hdf").write_text("mine")
    with pytest.raises(DataError, match="can't be written: .*file signature not found"):
        HDFWriter(str(tmp_path / "out.hdf"), dim=2, extend_existing_file=True)
    gc.collect()
    assert (tmp_path / "out.hdf").read_text() == "mine" and os.listdir(tmp_path) == ["out.hdf"]


def test_refuses_to_overwrite(tmp_path):
    path = tmp_path / "out.hdf"
    path.write_text("mine")
    with pytest.raises(DataError, match="exists already; remove it or choose another name"):
        HDFWriter(str(path), dim=2)
    assert path.read_text() == "mine"
    with pytest.raises(DataError, match="does not exist, so it cannot be extended"):
        HDFWriter(str(tmp_path / "other.hdf"), dim=2, extend_existing_file=True)
    assert os.listdir(tmp_path) == ["out.hdf"]


def test_refuses_to_overwrite_what_came_meanwhile(tmp_path):
    path = tmp_path / "out.hdf"
    writer = HDFWriter(str(path), dim=2)
    writer.insert_batch(np.zeros((1, 3, 2)), [3], ["a"])
    path.write_text("mine")
    with pytest.raises(DataError, match="exists already"):
        writer.close()
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["out.hdf"]


def test_nothing_is_there_before_the_end(tmp_path):
    path = tmp_path / "out.hdf"
    writer = HDFWriter(str(path), dim=2)
    writer.insert_batch(np.zeros((1, 3, 2)), [3], ["a"])
    assert not path.exists()
    writer.abort()
    writer.close()
    assert os.listdir(tmp_path) == []
    with pytest.raises(DataError, match="nothing was written"), HDFWriter(str(path)) as writer:
        writer.insert_batch(np.zeros((0, 3)), [], [])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "inputs, seq_len, extra, text",
    [
        (np.zeros((2, 3)), [3, 3], None, "inputs of shape .2, 3., but expected .2 sequences. and 2 more axes"),
        (np.zeros((3, 3, 2)), [3, 3], None, "expected .2 sequences."),
        (np.zeros((2, 3, 2)), [3, 4], None, "lengths .3, 4. of axis 0 do not fit"),
        (np.zeros((2, 3, 2)), [3], None, "lengths .3. of axis 0 do not fit"),
        (np.zeros((2, 3, 2)), {1: [2, 2]}, None, "it must be the first ones"),
        (np.zeros((2, 3, 5)), [3, 3], None, "frames of shape .5,. for /inputs, but it has .2,."),
        (np.zeros((2, 3, 2)), [3, 3], {"data": [1, 2]}, "'data' cannot be the name of extra data"),
        (np.zeros((2, 3, 2)), [3, 3], {"score": [1]}, "extra 'score' has 1 entries for 2 sequences"),
        (np.zeros((2, 3, 2)), [3, 3], {"score": [1, 2]}, "has the keys .'score'., but began with .."),
    ],
)
def test_batches_which_do_not_fit(inputs, seq_len, extra, text, tmp_path):
    writer = HDFWriter(str(tmp_path / "out.hdf"), dim=2)
    writer.insert_batch(np.zeros((1, 3, 2)), [3], ["first"])
    with pytest.raises(DataError, match=text):
        writer.insert_batch(inputs, seq_len, ["a", "b"], extra=extra)
    writer.abort()


def test_labels_must_fit(tmp_path):
    with pytest.raises(ConfigError, match="2 labels for dim 3"):
        HDFWriter(str(tmp_path / "out.hdf"), dim=3, labels=["a", "b"])


def test_what_a_killed_process_left_behind_is_removed(tmp_path):
    path = tmp_path / "out.hdf"
    code = "from returnn_tf.datasets import HDFWriter; import os; HDFWriter(%r, dim=2); os._exit(1)" % str(path)
    subprocess.run([sys.executable, "-c", code])
    others = ["out.hdf.%d.tmp" % os.getppid(), ".out.hdf.tmp-x", ".other.hdf.tmp-00000000-1-00"]
    for name in others:
        (tmp_path / name).write_text("")
    assert len(os.listdir(tmp_path)) == 4
    HDFWriter(str(path), dim=2).abort()
    assert sorted(os.listdir(tmp_path)) == sorted(others)


@pytest.mark.parametrize("limit", usual([1, 2000, 20000, 40000, 10**6], [1, 20000, 10**6]))
def test_a_limit_on_the_size_of_files(tmp_path, limit):
    """As of ``ulimit -f``. The HDF5 library would crash at the end of the process, were it told of the error."""
    code = """
import resource, sys
import numpy as np
from returnn_tf.config import DataError
from returnn_tf.datasets import HDFWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
try:
    with HDFWriter("out.hdf", dim=40, labels=["label"] * 40) as writer:
        for number in range(100):
            extra = {"text": [np.array(["some words"], object)] * 4}
            writer.insert_batch(np.ones((4, 100, 40), "f"), [100] * 4, ["%i-%i" % (number, i) for i in range(4)], extra)
except DataError as exc:
    print(exc)
"""
    # -B: Python would cut off the bytecode of modules that it imports later
    done = subprocess.run([sys.executable, "-B", "-c", code, str(limit)], cwd=tmp_path, capture_output=True)
    fix = "Raise the limit on the size of files (ulimit -f), or choose another path"
    assert done.stdout.decode() == "HDF file 'out.hdf' can't be written: File too large. %s\n" % fix
    assert (done.returncode, done.stderr, os.listdir(tmp_path)) == (0, b"", [])


def test_an_existing_file_is_replaced_when_all_is_written(tmp_path):
    path = tmp_path / "out.hdf"
    path.write_text("old")
    with HDFWriter(str(path), dim=2, replace=True) as writer:
        writer.insert_batch(np.zeros((1, 3, 2), "float32"), [3], ["a"])
        assert path.read_text() == "old"
    assert Dataset.from_config({"class": "HDFDataset", "files": [str(path)]}).num_seqs == 1
