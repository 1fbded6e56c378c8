"""Data which contradicts ``extern_data``: named with file, sequence, key and value, before it can be trained."""

from __future__ import annotations

import pathlib
from typing import Any, Optional

import h5py
import numpy as np
import pytest

from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.datasets import Dataset, HDFDataset
from returnn_tf.datasets.core.declared import Declared
from returnn_tf.engine.data.data_source import DataSource
from returnn_tf.engine.distributed.world import World
from returnn_tf.tensor.extern_data import parse_data_key

LABELS = {"dim": 4, "sparse": True}
INTS, TEXT, FLOATS = ({"shape": (None,), "dtype": dtype} for dtype in ("int32", "string", "float32"))


def batches(values: list[Any], options: Any, *, output_dim: Optional[int] = None, **batch_options: Any) -> list[Any]:
    seqs = [{"data": np.zeros((3, 1), "float32"), "classes": value} for value in values]
    dataset = Dataset.from_config({"class": "StaticDataset", "name": "train", "data": seqs, "input_dim": 1})
    declared = {"classes": Declared.of(parse_data_key("classes", options))}
    found = dataset.batches(1, batch_size=1000, declared=declared, **batch_options)
    return [batch.feed["classes"] for batch in found]


def same(values: list[Any], dtype: str) -> list[Any]:
    return [np.array(value, dtype) for value in values]


@pytest.mark.parametrize(
    "values, options",
    [
        (same([[0, 3], [1, 2]], "int32"), LABELS),
        (same([[0, 3], [1, 2]], "uint64"), LABELS),
        (same([[0, 3], [1, 2]], "uint8"), LABELS),
        (same([[0, 3], []], "int64"), LABELS),
        (same([[0.5, 3], [1, 2]], "float64"), FLOATS),
        (same([[0, 3], [1, 2]], "int16"), FLOATS),
        (same([[0, 3], [1, 2]], "int64"), INTS),
        (same([[0, 1], [1, 0]], "uint8"), {"shape": (None,), "dtype": "bool"}),
        (same([["a", "b"], ["c", "d"]], "O"), TEXT),
        (same([2, 3], "int32"), {"shape": (), **LABELS}),
        (same([[[1, 2]], [[3, 4]]], "float32"), {"dim": 2, "dtype": "float16"}),
    ],
)
def test_good_data_passes(values: list[Any], options: Any) -> None:
    (feed,) = batches(values, options)
    assert feed.shape[0] == 2


@pytest.mark.parametrize(
    "values, options, message",
    [
        (
            same([[0, 3, 0], [1, 8, 2]], "int32"),
            LABELS,
            "dataset 'train', sequence 'seq-1' (position 1 of epoch 1): data key 'classes': frame 1, label 8, but "
            "extern_data declares the labels 0 to 3 (dim 4). Correct the data, or declare a larger dim.",
        ),
        (
            same([[4, 3], [1, 2]], "int32"),
            LABELS,
            "label 4, but extern_data declares the labels 0 to 3 (dim 4). If your labels begin at 1, subtract 1 when",
        ),
        (same([[0, 3], [1, -1]], "int8"), LABELS, "frame 1, label -1, but extern_data declares the labels 0 to 3"),
        (same([[0, 3], [1, 2**63]], "uint64"), LABELS, "label 9223372036854775808, but"),
        (
            same([[0.0, 1.0], [1.0, 2.0]], "float32"),
            LABELS,
            "it is float32, but extern_data declares label indices (int32). Write integers, or declare it with dtype "
            "'float32' and without 'sparse'",
        ),
        (
            same([[1.5]], "float64"),
            INTS,
            "it is float64, but extern_data declares int32",
        ),
        (same([[1], [2**40]], "int64"), INTS, "is outside of what int32 holds"),
        (
            same([[1j]], "complex64"),
            FLOATS,
            "it is complex64, but extern_data declares",
        ),
        (same([[0, 2]], "int32"), {"shape": (None,), "dtype": "bool"}, "frame 1, 2 is outside of what bool holds"),
        (
            [np.array(["a" * 60000, "b"], object)],
            LABELS,
            "it is text, but extern_data declares label indices (int32). Turn text into label indices when",
        ),
        (
            same([[1, 2]], "int32"),
            TEXT,
            "it is int32, but extern_data declares string",
        ),
        (same([[[1.0, 2.0, 3.0]]], "float32"), {"dim": 2}, "the shape is [1, 3], but extern_data declares [time, 2]"),
        (
            same([[[1.0, 2.0]], [[1.0]]], "float32"),
            {"dim": 2},
            "sequence 'seq-1' (position 1 of epoch 1): data key 'classes': the shape is [1, 1], but extern_data",
        ),
        (
            same([[1, 2]], "int32"),
            {"shape": (None, None), **LABELS},
            "the shape is [2], but extern_data declares",
        ),
        (same([[1], [1, 2]], "int32"), {"shape": (), **LABELS}, "there are 2 frames, but extern_data declares no time"),
    ],
)
def test_bad_data_is_named(values: list[Any], options: Any, message: str) -> None:
    with pytest.raises(DataError) as info:
        batches(values, options)
    assert message in str(info.value)
    assert len(str(info.value)) < 400


def test_the_frame_is_that_of_the_sequence_not_of_the_chunk() -> None:
    with pytest.raises(DataError, match="frame 5, label 9"):
        seqs = [{"data": np.zeros((6, 1), "float32"), "classes": np.array([0, 1, 2, 3, 0, 9])}]
        dataset = Dataset.from_config({"class": "StaticDataset", "data": seqs, "input_dim": 1})
        declared = {"classes": Declared.of(parse_data_key("classes", LABELS))}
        list(dataset.batches(1, batch_size=100, chunking="2:2", declared=declared))


def test_one_frame_per_sequence_becomes_a_value_without_time_axis() -> None:
    (feed,) = batches(same([[2], [3]], "int32"), {"shape": (), **LABELS})
    assert feed.tolist() == [2, 3]


def write_hdf(path: pathlib.Path, targets: Any, *, dim: int, ndim: int = 1) -> None:
    with h5py.File(path, "w") as file:
        file["inputs"] = np.zeros((4, 2), "float32")
        file["seqLengths"] = np.array([[2, len(targets) // 2]] * 2, "int32")
        file["seqTags"] = np.array([b"a", b"b"])
        file["targets/data/classes"] = targets
        file.create_group("targets/size").attrs["classes"] = [dim, ndim]


def source(path: pathlib.Path, options: Any) -> DataSource:
    extern_data = {"data": {"dim": 2}, "classes": options}
    config = Config({"train": HDFDataset(files=[str(path)], name="train"), "batch_size": 100})
    return DataSource(config, "train", {key: parse_data_key(key, value) for key, value in extern_data.items()}, World())


@pytest.mark.parametrize(
    "targets, dim, message",
    [
        (np.zeros(4, "int32"), 9, "has 9 labels for data key 'classes', but extern_data declares 4. Write extern_data"),
        (np.zeros(4, "float32"), 1, "data key 'classes': it is float32, but extern_data declares label indices"),
        (np.array([b"x"] * 4), 4, "data key 'classes': it is text, but extern_data declares label indices"),
    ],
)
def test_what_a_dataset_declares_is_compared_before_anything_is_read(
    tmp_path: pathlib.Path, targets: Any, dim: int, message: str
) -> None:
    write_hdf(tmp_path / "a.hdf", targets, dim=dim)
    with pytest.raises(ConfigError) as info:
        source(tmp_path / "a.hdf", LABELS)
    assert message in str(info.value)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"dim": 6, "sparse": True},
            "The dataset 'train' has only 4 labels for data key 'classes', but extern_data declares 6. "
            "Write extern_data['classes'] = {'dim': 4, 'sparse': True}",
        ),
        (
            {"dim": 4, "sparse": True, "vocab": {"class": "CharacterTargets", "vocab_file": "letters"}},
            "extern_data['classes'] has dim 4, but its vocab has 3 labels.",
        ),
        ({"dim": 4, "sparse": True, "vocab": {"class": "CharacterTargets", "vocab_file": "is_not_here"}}, ""),
        (LABELS, ""),
    ],
)
def test_more_labels_than_there_are_is_told(
    options: Any,
    message: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters").write_text("a\nb\nc\n")
    write_hdf(tmp_path / "a.hdf", np.zeros(4, "int32"), dim=4)
    (batch,) = source(tmp_path / "a.hdf", options).batches(1)
    assert batch.feed["classes"].shape == (2, 2)
    assert message in capsys.readouterr().out


def test_a_source_checks_its_batches_and_names_the_file(tmp_path: pathlib.Path) -> None:
    write_hdf(tmp_path / "a.hdf", np.array([0, 1, 2, 8], "int32"), dim=4)
    with pytest.raises(DataError) as info:
        list(source(tmp_path / "a.hdf", LABELS).batches(1))
    assert "a.hdf', sequence 'b' " in str(info.value) and "frame 1, label 8" in str(info.value)


@pytest.mark.parametrize("ndim", [0, 1])
def test_one_label_per_sequence_in_an_hdf(tmp_path: pathlib.Path, ndim: int) -> None:
    write_hdf(tmp_path / "a.hdf", np.array([3, 1], "int32"), dim=4, ndim=ndim)
    (batch,) = source(tmp_path / "a.hdf", {"shape": (), **LABELS}).batches(1)
    assert batch.feed["classes"].tolist() == [3, 1]


def test_bool_is_no_label() -> None:
    with pytest.raises(DataError, match="sequence 'seq-0' .*'classes': it is bool, but extern_data declares label ind"):
        batches(same([[True], [False]], "bool"), LABELS)


@pytest.mark.slow
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("whole", [False, True])
def test_numbers_that_are_not_finite(tmp_path: pathlib.Path, bad: float, whole: bool) -> None:
    value = np.zeros((6, 2), "float32")
    value[4, 1] = bad
    with h5py.File(tmp_path / "a.hdf", "w") as file:
        file["inputs"] = value
        file["seqLengths"] = np.full((2, 2), 3, "int32")
        file["seqTags"] = np.array([b"a", b"b"])
    config = Config({"forward_data": {"class": "HDFDataset", "files": [str(tmp_path / "a.hdf")]}, "batch_size": 100})
    used = {"data": parse_data_key("data", {"dim": 2})}
    assert len(list(DataSource(config, "forward_data", used, World()).batches(1))) == 1
    changes = {} if whole else {"chunking": "2:2"}
    with pytest.raises(DataError) as info:
        list(DataSource(config, "forward_data", used, World(), finite=True).batches(1, **changes))
    text = "a.hdf', sequence 'b' (position 1 of epoch 1): data key 'data': frame 1, entry 1 is %s (1 of " % bad
    assert text in str(info.value)


def test_large_numbers_are_finite() -> None:
    declared = {"classes": Declared.of(parse_data_key("classes", FLOATS), finite=True)}
    seqs = [{"data": np.zeros((2, 1), "float32"), "classes": np.full(2, 3e38, "float32")}]
    dataset = Dataset.from_config({"class": "StaticDataset", "data": seqs, "input_dim": 1})
    assert len(list(dataset.batches(1, batch_size=10, declared=declared))) == 1
