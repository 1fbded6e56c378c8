"""Reads the recorded facts in tests/data/datasets and compares with them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from returnn_tf.datasets import Dataset, Example

ROOT = Path(__file__).parent.parent / "data" / "datasets"


def load_json(name: str) -> Any:
    """Return the content of a JSON file below tests/data/datasets."""
    return json.loads((ROOT / name).read_text(encoding="utf8"))


def by_name(entries: Any) -> dict[str, Any]:
    """Return cases by name, from a list of dicts with "name" or a dict."""
    return dict(entries) if isinstance(entries, dict) else {entry["name"]: entry for entry in entries}


def array_info(value: np.ndarray) -> dict[str, Any]:
    """Return the shape, dtype and checksum as recorded."""
    content = (
        "\n".join(value.reshape(-1)).encode() if value.dtype.kind == "O" else np.ascontiguousarray(value).tobytes()
    )
    return {"shape": list(value.shape), "dtype": str(value.dtype), "sha256": hashlib.sha256(content).hexdigest()}


def assert_same_array(value: np.ndarray, info: dict[str, Any], place: str) -> None:
    """Check that the array is the recorded one, byte for byte."""
    assert array_info(value) == {key: info[key] for key in ("shape", "dtype", "sha256")}, place


def assert_same_sequences(got: Iterable[Example], expected: list[dict[str, Any]]) -> None:
    """Check that tags, lengths and data of the sequences are the recorded ones."""
    got = list(got)
    assert [seq.tag for seq in got] == [seq["tag"] for seq in expected]
    for seq, info in zip(got, expected):
        for key, array in info["data"].items():
            assert_same_array(seq.data[key], array, "%s of %s" % (key, seq.tag))
            assert seq.lengths[key] == info["seq_len"][key]


def dataset_info(dataset: Dataset) -> dict[str, Any]:
    """Return what is recorded under "dataset"."""
    per_key = {
        key: {"dtype": spec.dtype, "sparse": spec.sparse, "dim": spec.dim, "shape": list(spec.shape)}
        for key, spec in dataset.data_specs.items()
    }
    return {
        "num_inputs": dataset.num_inputs,
        "num_outputs": {key: list(value) for key, value in dataset.num_outputs.items()},
        "labels": dataset.labels,
        "data_keys": dataset.data_keys,
        "target_list": dataset.target_list,
        "total_num_seqs": "inf" if dataset.num_seqs is None else dataset.num_seqs,
        "per_key": per_key,
    }


def check_resumption(dataset: Dataset, epoch: int, **options: Any) -> None:
    """Check that batches from any one on are the same if it is told after which sequence they begin, or not."""
    every = list(dataset.batches(epoch, **options))
    seqs = [0, *(1 + max(position for parts in batch.slices.values() for position, _, _ in parts) for batch in every)]
    for start in range(1, len(every) + 1):
        resume = json.loads(json.dumps(every[start - 1].resume))
        for known in ({}, {"start_seq": seqs[start]}, {"start_seq": seqs[start], "resume": resume}):
            rest = list(dataset.batches(epoch, start_batch=start, **known, **options))
            assert len(rest) == len(every) - start
            for batch, other in zip(rest, every[start:]):
                assert (batch.number, batch.seq_tags, batch.complete) == (other.number, other.seq_tags, other.complete)
                assert (batch.slices, batch.rows) == (other.slices, other.rows)
                for key, value in other.feed.items():
                    np.testing.assert_array_equal(batch.feed[key], value)
