"""StereoHdfDataset and DatasetWithTimeContext: an old form of HDF files, with an array per sequence."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import h5py
import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileDataError, FileError
from returnn_tf.config.options import at_least, option
from returnn_tf.datasets.core import seq_order as orders
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec, stack_frames
from returnn_tf.datasets.core.epoch import Epoch
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.safe_files import check_regular, read_text
from returnn_tf.datasets.core.share import ALL, Chosen
from returnn_tf.datasets.hdf.library import impossible_size
from returnn_tf.datasets.hdf.temporary import Output, not_written
from returnn_tf.logging.log import log

GROUPS = {"data": "inputs", "classes": "outputs"}


def files_of_bundle(path: str) -> list[str]:
    """Return the HDF files that a ``.bundle`` file lists, one per line; another file stands for itself."""
    if not path.endswith(".bundle"):
        return [path]
    files = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    if not files:
        raise FileDataError("bundle %r lists no HDF files" % path)
    return files


def read_normalization(path: str, key: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation [dim] of "data" or "classes".

    :raises DataError: the file is missing, lacks them, or has a variance that is not positive
    """
    try:
        check_regular(path)
        with h5py.File(path, "r") as file:
            group = file[GROUPS[key]]
            for name in ("mean", "variance"):
                claims = impossible_size(group[name])
                if claims:
                    raise FileDataError("normalization file %r: %s/%s %s" % (path, GROUPS[key], name, claims))
            mean, variance = (np.asarray(group[name][()], np.float64).reshape(-1) for name in ("mean", "variance"))
    except (OSError, KeyError, ValueError, TypeError) as exc:
        raise FileDataError(
            "normalization file %r has no mean and variance of %s: %s" % (path, GROUPS[key], exc)
        ) from None
    if mean.shape != variance.shape or not (variance > 0).all() or not np.isfinite(mean).all():
        raise FileDataError("normalization file %r: mean and variance of %s don't fit" % (path, GROUPS[key]))
    return mean, np.sqrt(variance)


def create_normalization_file(
    bundle: str, output: str, dtype: str = "float64", flag_include_outputs: bool = True
) -> None:
    """Write mean, mean of squares, variance and number of frames of all sequences of a bundle.

    :param dtype: of the sums
    :param flag_include_outputs: also those of the targets
    """
    names = list(GROUPS.values()) if flag_include_outputs else ["inputs"]
    sums: dict[str, Optional[NDArray[np.float64]]] = dict.fromkeys(names)
    counts = dict.fromkeys(names, 0)
    for path in files_of_bundle(bundle):
        with h5py.File(path, "r") as file:
            for name in names:
                for entry in file[name].values():
                    frames = np.asarray(entry[()], dtype)
                    found = np.stack([frames.sum(axis=0), (frames**2).sum(axis=0)])
                    old = sums[name]
                    sums[name] = found if old is None else old + found
                    counts[name] += len(frames)
    try:
        target = Output(output)
    except OSError as exc:
        raise not_written(output, exc) from exc
    try:
        assert target.file is not None
        with target.reporting():
            for name in names:
                total = sums[name]
                if total is None or not counts[name]:
                    raise FileDataError("bundle %r has no frames of %s" % (bundle, name))
                mean, squares = total / counts[name]
                values = {"mean": mean, "meanOfSquares": squares, "variance": squares - mean**2}
                for key, value in {**values, "totalNumberOfFrames": counts[name]}.items():
                    target.file["%s/%s" % (name, key)] = value
        target.complete()
        target.publish()
    finally:
        target.abort()


@register_dataset()
class StereoHdfDataset(Dataset):
    """Pairs of frames, such as noisy and clean ones: arrays ``inputs/<name>`` and ``outputs/<name>`` in HDF files.

    The corpus has the order of the names as text. Targets of one column are labels. With ``partition_epoch``, each part
    has the same number of sequences and its own order; the remainder is not read.
    """

    @dataclass
    class Options(Dataset.Options):
        hdfFile: str = option(help="HDF file, or a .bundle file that lists some, one per line")
        num_outputs: Optional[int] = option(None, help="number of labels, needed if the targets are labels")
        normalizationFile: Optional[str] = option(None, help="mean and variance, by which the frames are normalized")
        flag_normalizeInputs: bool = option(True, help="normalize the inputs")
        flag_normalizeTargets: bool = option(True, help="normalize the targets")

    def setup(self) -> None:
        """List the sequences, and read their lengths."""
        self._seqs: list[tuple[str, str]] = []
        lengths: list[int] = []
        with self._wanted_by("hdfFile"):
            for path in files_of_bundle(self.opts.hdfFile):
                self._index(path, lengths)
        if not self._seqs:
            raise FileDataError("%s: %r has no sequences" % (self._owner(), self.opts.hdfFile))
        self._lengths = np.array(lengths, np.int64)
        first = {key: self._array(0, key) for key in GROUPS}
        self._norms: dict[str, Any] = {}
        flags = {"data": self.opts.flag_normalizeInputs, "classes": self.opts.flag_normalizeTargets}
        for key in [key for key, flag in flags.items() if flag and self.opts.normalizationFile]:
            with self._wanted_by("normalizationFile"):
                self._norms[key] = read_normalization(self.opts.normalizationFile, key)
            if len(self._norms[key][0]) != first[key].shape[1]:
                raise FileDataError(
                    "%s: normalizationFile %r has %d dims for %s, but the frames have %d"
                    % (self._owner(), self.opts.normalizationFile, len(self._norms[key][0]), key, first[key].shape[1])
                )
        self._labels = first["classes"].shape[1] == 1
        if self._labels and not self.opts.num_outputs:
            raise FileError("%s: option 'num_outputs' must give the number of labels" % self._owner())
        if self.opts.partition_epoch > len(self._seqs):
            raise FileError(
                "%s: partition_epoch=%d, but there are %d sequences"
                % (self._owner(), self.opts.partition_epoch, len(self._seqs))
            )
        lost = len(self._seqs) % self.opts.partition_epoch
        if lost:
            log.warn(
                "%s: the last %d sequences are not read, since all parts have the same size" % (self._owner(), lost)
            )
        self.data_specs = self._make_specs(first)

    def _index(self, path: str, lengths: list[int]) -> None:
        try:
            check_regular(path)
            with h5py.File(path, "r") as file:
                for name in GROUPS.values():
                    if not isinstance(file.get(name), h5py.Group):
                        raise FileDataError("HDF file %r has no group %r with an array per sequence" % (path, name))
                for name in file["inputs"]:
                    if name not in file["outputs"] or file["inputs"][name].ndim != 2 or file["outputs"][name].ndim != 2:
                        raise FileDataError(
                            "HDF file %r: inputs/%s and outputs/%s must be [time, dim]" % (path, name, name)
                        )
                    for group in GROUPS.values():
                        claims = impossible_size(file[group][name])
                        if claims:
                            raise FileDataError("HDF file %r: %s/%s %s" % (path, group, name, claims))
                    self._seqs.append((path, name))
                    lengths.append(len(file["inputs"][name]))
        except FileNotFoundError:
            raise FileDataError("HDF file %r does not exist (current directory: %s)" % (path, os.getcwd())) from None
        except OSError as exc:
            raise FileDataError("HDF file %r cannot be read: %s" % (path, exc.strerror or exc)) from None

    def _make_specs(self, first: dict[str, NDArray[Any]]) -> dict[str, DataSpec]:
        dims = {key: int(value.shape[1]) for key, value in first.items()}
        classes = DataSpec(dim=dims["classes"], ndim=2, dtype="float32", shape=(dims["classes"],))
        if self._labels:
            classes = DataSpec(dim=self.opts.num_outputs, ndim=1, dtype="int32")
        data = DataSpec(dim=dims["data"], ndim=2, dtype="float32", shape=(dims["data"],))
        return self.windowed({"classes": classes, "data": data})

    @property
    def num_outputs(self) -> dict[str, tuple[int, int]]:
        """Return (dim, number of axes with time) of the targets."""
        return {"classes": self._dims_by_key()["classes"]}

    @property
    def num_inputs(self) -> int:
        """Return the dim of "data", before ``window``."""
        return self._dims_by_key()["data"][0]

    @property
    def num_seqs(self) -> int:
        """Return the number of sequences in all files."""
        return len(self._seqs)

    def file_of(self, index: int) -> str:
        """Return the HDF file."""
        return self._seqs[index][0]

    def seq_lengths(self) -> NDArray[Any]:
        """Return lengths [num_seqs] of the inputs."""
        return self._lengths

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return corpus indices in the order of this epoch: each part is ordered by itself."""
        parts = self.opts.partition_epoch
        if parts == 1:
            return super().seq_order(epoch)
        size, part = len(self._seqs) // parts, (max(epoch, 1) - 1) % parts
        lengths = self._lengths[part * size : (part + 1) * size]
        ordering = self.ordering(epoch)
        order = part * size + orders.order_sequences(
            ordering, size, lambda: lengths, self.epoch_seed(epoch, nth=ordering.nth)
        )
        shards = self.opts._num_shards
        return orders.partition(order, num_parts=shards, part=self.opts._shard_index)

    def open_epoch(self, epoch: int, keys: list[str], chosen: Chosen = ALL) -> Epoch:
        """Return the sequences of an epoch by position, whose tags are numbers within the epoch."""
        order = self.chosen_order(epoch, chosen)
        return (Epoch if chosen.is_explicit else _NumberedEpoch)(self, epoch, order, keys)

    def _array(self, index: int, key: str) -> NDArray[Any]:
        path, name = self._seqs[index]
        try:
            with h5py.File(path, "r") as file:
                return np.asarray(file[GROUPS[key]][name][()])
        except (OSError, KeyError) as exc:
            raise FileDataError("HDF file %r: %s/%s cannot be read: %s" % (path, GROUPS[key], name, exc)) from None

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Read and normalize the frames of one sequence."""
        return {key: self._frames(index, key) for key in keys}

    def _frames(self, index: int, key: str) -> NDArray[Any]:
        value = self._array(index, key)
        if key in self._norms:
            mean, deviation = self._norms[key]
            value = (value - mean) / deviation
        if key == "classes" and self._labels:
            return value[:, 0].astype(np.int32)
        return value.astype(np.float32)


@register_dataset("DatasetWithTimeContext")
class StereoWithTimeContext(StereoHdfDataset):
    """StereoHdfDataset whose inputs have the frames around each frame joined to it, zeros outside of the sequence."""

    @dataclass
    class Options(StereoHdfDataset.Options):
        tau: int = option(1, help="number of frames on each side", check=at_least(0))

    def _make_specs(self, first: dict[str, NDArray[Any]]) -> dict[str, DataSpec]:
        specs = super()._make_specs(first)
        dim = specs["data"].dim * (2 * self.opts.tau + 1)
        return {**specs, "data": dataclasses.replace(specs["data"], dim=dim, dtype="float64", shape=(dim,))}

    def _frames(self, index: int, key: str) -> NDArray[Any]:
        value = super()._frames(index, key)
        return value if key != "data" else stack_frames(value.astype(np.float64), 2 * self.opts.tau + 1)


class _NumberedEpoch(Epoch):
    """An epoch whose tags are the positions in it."""

    def tag(self, position: int) -> str:
        """Return "seq-<position>"."""
        return "seq-%d" % position
