"""Recorded cases of datasets that combine others: tests/data/combining."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np

from returnn_tf.datasets import Dataset
from tests.datasets.recorded import array_info, assert_same_sequences

ROOT = Path(__file__).parent.parent / "data" / "combining"


def all_cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return cases by name: (folder, case)."""
    found = {}
    for folder, file in (("meta", "meta.json"), ("more", "more.json"), ("more", "distribute.json")):
        for case in json.loads((ROOT / folder / file).read_text(encoding="utf8"))["cases"]:
            found[case["name"]] = (folder, case)
    return found


def cases(*classes: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return cases of the given classes by name."""
    return {name: entry for name, entry in all_cases().items() if entry[1]["options"].get("class") in classes}


def with_paths(value: Any, folder: str) -> Any:
    """Replace the names of recorded files by paths."""
    if isinstance(value, dict):
        return {key: with_paths(entry, folder) if key != "data_map" else entry for key, entry in value.items()}
    if isinstance(value, list):
        return [with_paths(entry, folder) for entry in value]
    if isinstance(value, str) and value and (ROOT / folder / value).exists():
        return str(ROOT / folder / value)
    return value


def literal_keys(value: dict[str, Any]) -> dict[Any, Any]:
    """Return the dict whose keys are tuples, written as text."""
    return {ast.literal_eval(key): entry for key, entry in value.items()}


def compare(dataset: Dataset, folder: str, case: dict[str, Any], features: str = "") -> None:
    """Format, tags and sequences are the recorded ones.

    :param features: key of features of audio, which differ in the last digits
    """
    compare_format(dataset, case["dataset"])
    arrays = np.load(ROOT / folder / ("%s.npz" % case["name"])) if case.get("npz") else None
    if arrays is None and "'features'" in repr(case["options"]):
        arrays = {}  # the first values are recorded
    for epoch, expected in case.get("epochs", {}).items():
        sequences = [seq for seq, _ in zip(dataset.sequences(int(epoch)), [*expected, None])]
        if features:
            _compare_features(sequences, expected, features)
        if arrays is not None:
            _compare_arrays(sequences, expected, arrays, epoch)
        else:
            assert_same_sequences(sequences, expected)
    for run in case.get("runs", []):
        assert_same_sequences(dataset.sequences(**run["args"]), run["seqs"])


def _compare_features(sequences: Any, expected: Any, key: str) -> None:
    """Compare the recorded first values of a key, and the text of "raw"; the comparison of the rest follows."""
    for seq, info in zip(sequences, expected):
        if "raw" in info["data"]:
            assert [str(seq.data["raw"])] == info["data"].pop("raw")["first"]
        facts = info["data"].pop(key)
        assert list(seq.data[key].shape) == facts["shape"]
        first = seq.data[key].reshape(-1)[: len(facts["first"])]
        np.testing.assert_allclose(first, facts["first"], rtol=1e-4, atol=1e-4)


def _compare_arrays(sequences: Any, expected: Any, arrays: Any, epoch: str) -> None:
    assert [seq.tag for seq in sequences] == [seq["tag"] for seq in expected]
    for number, (seq, info) in enumerate(zip(sequences, expected)):
        for key, facts in info["data"].items():
            name = "ep%s/%d/%s" % (epoch, number, key)
            if name in arrays:
                np.testing.assert_allclose(seq.data[key], arrays[name], rtol=1e-4, atol=1e-4)
                assert seq.data[key].dtype == facts["dtype"]
            elif facts["dtype"] == "float32":
                assert (list(seq.data[key].shape), seq.data[key].dtype) == (facts["shape"], facts["dtype"])
                first = seq.data[key].reshape(-1)[: len(facts["first"])]
                np.testing.assert_allclose(first, facts["first"], rtol=1e-4, atol=1e-4)
            else:
                assert array_info(seq.data[key])["sha256"] == facts["sha256"]


def compare_format(dataset: Dataset, expected: dict[str, Any]) -> None:
    """Compare keys, dims, labels, number and tags with the recorded ones, where the recording has them."""
    got: dict[str, Any] = {
        "num_outputs": {
            key: dict(value, shape=list(value["shape"])) if isinstance(value, dict) else list(value)
            for key, value in dataset.num_outputs.items()
        },
        "labels": dataset.labels,
        "data_keys": dataset.data_keys,
        "target_list": dataset.target_list,
    }
    if isinstance(expected.get("total_num_seqs"), int):
        got["total_num_seqs"] = dataset.num_seqs
    if isinstance(expected.get("all_tags"), list):
        got["all_tags"] = [dataset.tag(index) for index in range(dataset.num_seqs or 0)]
    for name, value in got.items():
        if name in expected and "exception" not in str(expected[name]):
            assert value == expected[name], name
    for key, facts in expected.get("per_key", {}).items():
        if key in dataset.data_specs:
            spec = dataset.data_specs[key]
            own = {"dtype": spec.dtype, "sparse": spec.sparse, "dim": spec.dim, "shape": list(spec.shape)}
            for name, value in facts.items():
                assert "exception" in str(value) or own[name] == value, "%s of %s" % (name, key)
