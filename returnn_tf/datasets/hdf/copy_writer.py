"""Copies of datasets as HDF files, with the layout of RETURNN's copies."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

import h5py
import numpy as np

from returnn_tf.config.errors import FileDataError
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec, Example
from returnn_tf.datasets.hdf.parallel_text import fixed_strings
from returnn_tf.datasets.hdf.writer import HDFWriter

#: Keys that are not copied: they hold the text that other keys encode.
TEXT_KEYS = ("orth", "raw")
_BLOCK = 32  # sequences that are written at once
_MOST_NAMED = 1 << 22  # labels; their names are kept in memory


class CopyWriter(HDFWriter):
    """Writes the sequences of a dataset: main data without names, targets with names of all labels.

    Tags and names are byte strings of a fixed length, with room for a null byte. A key "data" that is not the input, as
    in a dataset of targets alone, is stored as "classes". An existing file is replaced when all is written.

    :param dataset: the dataset
    :param keys: of the sequences to be written, see `copied_keys`
    """

    def __init__(self, filename: str, dataset: Dataset, keys: list[str]) -> None:
        specs = {key: dataclasses.replace(dataset.data_specs[key], dtype=dataset.stored_dtype(key)) for key in keys}
        self._input = _input_key(dataset, keys)
        self._name_of = {key: _stored_name(key, keys) for key in keys if key != self._input}
        main = specs.get(self._input)
        self._names = {name: _label_names(name, specs[key]) for key, name in self._name_of.items()}
        super().__init__(
            filename,
            dim=main.dim if main is not None else None,
            ndim=main.ndim if main is not None else None,
            extra_type={name: _declared(specs[key]) for key, name in self._name_of.items()},
            replace=True,
        )
        self._dtype = main.numpy_dtype if main is not None else None
        self._num_inputs = dataset.num_inputs or self.dim or 1

    def insert(self, found: list[Example]) -> None:
        """Append sequences."""
        targets = {name: [sequence.data[key] for sequence in found] for key, name in self._name_of.items()}
        frames = None
        if self._input:
            values = [np.asarray(sequence.data[self._input], self._dtype) for sequence in found]
            frames = [value if value.ndim else value.reshape(1) for value in values]
        self.insert_sequences(frames, [sequence.tag for sequence in found], targets)

    def _write_facts(self, file: h5py.File) -> None:
        """Write tags and names in their final form."""
        tags = [tag.decode("utf8") if isinstance(tag, bytes) else str(tag) for tag in file["seqTags"][:]]
        del file["seqTags"]
        file.create_dataset("seqTags", data=fixed_strings(tags))
        for name, labels in self._names.items():
            del file["targets/labels/" + name]
            file.create_dataset("targets/labels/" + name, data=fixed_strings(labels))
        if self._input:
            file.attrs["inputPattSize"] = self._num_inputs


def copied_keys(dataset: Dataset) -> list[str]:
    """Return the keys of a dataset that are copied.

    :raises DataError: there are none
    """
    keys = [key for key in dataset.data_keys if key not in TEXT_KEYS]
    if not keys:
        raise FileDataError("dataset %r has no key to copy, only %s" % (dataset.name, ", ".join(dataset.data_keys)))
    return keys


def write_copy(filename: str, dataset: Dataset, keys: list[str], found: Iterable[Example]) -> int:
    """Write sequences of a dataset to a file; return their number.

    :param keys: which the sequences have
    :raises DataError: there are no sequences, or the file can't be written
    """
    writer = CopyWriter(filename, dataset, keys)
    with writer:
        remaining = iter(found)
        while block := list(itertools.islice(remaining, _BLOCK)):
            writer.insert(block)
        if not writer.num_seqs:
            raise FileDataError("dataset %r: there are no sequences to write to %r" % (dataset.name, filename))
    return writer.num_seqs


def _input_key(dataset: Dataset, keys: list[str]) -> str:
    """Return the key of the main data: the only one that is no target, or "data", or ""."""
    inputs = [key for key in keys if key not in dataset.target_list]
    return inputs[0] if len(inputs) == 1 else "data" if "data" in inputs else ""


def _stored_name(key: str, keys: list[str]) -> str:
    return "classes" if key == "data" and "classes" not in keys else key


def _declared(spec: DataSpec) -> tuple[Any, int, str]:
    return spec.dim, max(spec.ndim, 1), "string" if spec.is_text else spec.dtype


def _label_names(name: str, spec: DataSpec) -> list[str]:
    if spec.labels:
        return list(spec.labels)
    if spec.dim > _MOST_NAMED:
        text = "key %r has %d labels, too many to name all of them in an HDF file. Is the dim right?"
        raise FileDataError(text % (name, spec.dim))
    return ["%s-class-%d" % (name, index) for index in range(max(spec.dim, 1))]
