"""The HDF file of an `hdf_dump` layer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from returnn_tf.config import DataError
from returnn_tf.datasets import HDFWriter
from returnn_tf.datasets.vocabulary import vocab_labels
from returnn_tf.graph.after_step.sinks import RunInfo
from returnn_tf.logging.log import log
from returnn_tf.tensor import Data


def path_of_rank(path: str, run: RunInfo) -> str:
    """Return the path of the file that this process writes."""
    if run.size == 1:
        return path
    base, extension = os.path.splitext(path)
    return "%s.rank%d%s" % (base, run.rank, extension)


class HdfSink:
    """Writes batches to an HDF file.

    :param path: must not exist unless it is to be extended; with several processes, each adds its rank
    :param data: template of the main data: batch, axes with lengths, other axes, features
    :param extra: templates of further data
    :param labels: names of the labels or features; default: those of the vocabulary
    :param whole_batches: a batch is one sequence
    :param extend: append to the file
    """

    def __init__(
        self,
        path: str,
        data: Data,
        extra: Mapping[str, Data],
        *,
        labels: Optional[Sequence[str]],
        whole_batches: bool,
        extend: bool,
        run: RunInfo,
        layer: str,
    ) -> None:
        self._layer = layer
        self.path = path_of_rank(path, run)
        if run.size > 1 and run.rank == 0:
            log.write(
                3,
                "Layer %r: each of the %d processes writes its part of the sequences, this one to %s; HDFDataset reads "
                "them together by 'files'." % (layer, run.size, self.path),
            )
        self._extra = dict(extra)
        self._whole = whole_batches
        # a static time axis has lengths as well
        self._axes = max(len(list(data.dynamic_axes)), 1)
        added = 1 if whole_batches else 0
        names = labels if labels is not None else _labels(data)
        types = {key: _type(template, whole_batches) for key, template in extra.items()}
        types["seq_sizes"] = (1, 1 + added, "int32")
        for key, template in extra.items():
            if template.rank > 1 or template.batch_axis is None:
                types[key + "_seq_lens"] = (1, 1 + added, "int32")
        self._options: dict[str, Any] = {
            "dim": data.dim,
            "labels": names,
            "ndim": data.rank - 1 + added,
            "extra_type": types,
            "extend_existing_file": extend,
        }
        self._writer: Optional[HDFWriter] = None

    def _opened(self) -> HDFWriter:
        if self._writer is None:
            try:
                self._writer = HDFWriter(self.path, **self._options)
            except DataError as exc:
                raise DataError("Layer %r (class 'hdf_dump'): %s" % (self._layer, exc)) from exc
        return self._writer

    def write(self, values: Mapping[str, Any], tags: Sequence[str]) -> None:
        """Add a batch.

        :param values: "data" and the keys of the extra data -> [batch, ...]; "<key>:sizes" -> int32 [batch, axes]
        :raises DataError: the batch has parts of several sequences in a row, or writing failed
        """
        inputs, sizes = values["data"], values["data:sizes"]
        if len(inputs) != len(tags):
            raise DataError(
                "Layer %r (class 'hdf_dump'): a batch has %d rows for %d sequences, %s, ..."
                % (self._layer, len(inputs), len(tags), tags[0])
            )
        lengths = sizes[:, : self._axes]
        extra: dict[str, Any] = {"seq_sizes": lengths}
        for key, template in self._extra.items():
            extra[key] = self._joined(values[key], values[key + ":sizes"], template)
            if values[key + ":sizes"].shape[1]:
                extra[key + "_seq_lens"] = values[key + ":sizes"]
        by_axis = {axis: lengths[:, axis] for axis in range(self._axes)}
        names = list(tags)
        if self._whole:
            by_axis = {axis: np.array([inputs.shape[axis]], np.int32) for axis in range(1 + self._axes)}
            inputs, names = inputs[None], ["-".join(names)]
            extra = {key: value if isinstance(value, list) else value[None] for key, value in extra.items()}
        self._opened().insert_batch(inputs, by_axis, names, extra)

    def _joined(self, value: Any, sizes: Any, template: Data) -> Any:
        """Join the axes of further data up to the last dynamic one, as other sequences have other sizes.

        :return: the array; or a list with one array for each sequence, where several axes were cut and joined
        """
        count = _joined_axes(template)
        if self._whole:
            return [value.reshape((-1, *value.shape[count + 1 :]))] if count else value
        if count < 2:
            return value
        cut = [row[tuple(slice(0, size) for size in lens[:count])] for row, lens in zip(value, sizes)]
        return [row.reshape((-1, *row.shape[count:])) for row in cut]

    def close(self) -> None:
        """Complete the file."""
        if self._writer is not None:
            self._writer.close()
            log.write(3, "Wrote %s: %d sequences of layer %r" % (self.path, self._writer.num_seqs, self._layer))

    def abort(self) -> None:
        """Discard the file."""
        if self._writer is not None:
            self._writer.abort()


def _type(data: Data, whole: bool) -> tuple[Optional[int], int, str]:
    """Return (dim, axes without batch, dtype) as `HDFWriter` wants it; a value without axes gets a time axis."""
    axes = data.rank - (0 if data.batch_axis is None else 1)
    joined = _joined_axes(data)
    axes = axes + 1 if whole and not joined else axes - max(joined - 1, 0)
    return data.dim, max(axes, 1), "int32" if data.dtype == "bool" else data.dtype


def _joined_axes(data: Data) -> int:
    """Return the number of axes, not counting batch, up to the last dynamic one."""
    first = 0 if data.batch_axis is None else 1
    return max([axis - first for axis in data.dynamic_axes], default=-1) + 1


def _labels(data: Data) -> Optional[list[str]]:
    """Return the labels of the vocabulary, if there is one."""
    if data.vocab is None or data.sparse_dim is None:
        return None
    names = vocab_labels("data", data.vocab)
    return names if len(names) == data.dim else None
