"""Copying a dataset to an HDF file part by part, with several loading processes."""

from __future__ import annotations

import concurrent.futures
import hashlib
import itertools
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional

import h5py
import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.data import source
from returnn_tf.config.errors import FileDataError, FileError
from returnn_tf.config.user_files import is_user_file
from returnn_tf.datasets.core.batches.batch import Batch
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.hdf.file import HDFFile
from returnn_tf.datasets.hdf.writer import HDFWriter
from returnn_tf.datasets.loading.loader import BatchLoader
from returnn_tf.engine.support.atomic_files import write_text

_FACTS = "conversion.json"
_BATCH = 16  # sequences that are sent by a loading process at once
_UNLIMITED = 1 << 60
Progress = Callable[[int, Optional[int]], None]


class Parts:
    """Files 000000.hdf, 000001.hdf, ... in a folder; each gets its name when it is complete.

    :param folder: made if it is not there
    :param facts: what the conversion depends on, as JSON knows it
    :param restart: remove what is there
    :raises DataError: the folder holds parts of another conversion, or can't be written
    """

    def __init__(self, folder: str, facts: Mapping[str, Any], *, restart: bool) -> None:
        self.folder = folder
        self._stream: dict[str, list[Any]] = {}  # number -> epoch, whether it is the last part of it
        try:
            if restart and os.path.isdir(folder):
                shutil.rmtree(folder)
            os.makedirs(folder, exist_ok=True)
            self._check(dict(facts))
        except OSError as exc:
            raise FileDataError("%r can't be written: %s" % (exc.filename or folder, exc.strerror or exc)) from exc

    def _check(self, facts: dict[str, Any]) -> None:
        path = os.path.join(self.folder, _FACTS)
        if not os.path.exists(path):
            self._facts = facts
            self._write()
            return
        with open(path, encoding="utf8") as file:
            try:
                found = json.load(file)
                self._stream = found.pop("stream")
            except (ValueError, KeyError, AttributeError):
                raise FileDataError("%r is damaged; start over with --restart" % path) from None
        other = [name for name in facts if found.get(name) != facts[name]]
        if other:
            raise FileDataError(
                "%r holds parts of another conversion (of other %s). Start over with --restart, or choose another "
                "--output" % (self.folder, ", ".join(other))
            )
        self._facts = facts

    def _write(self) -> None:
        text = json.dumps({**self._facts, "stream": self._stream}, indent=1)
        write_text(os.path.join(self.folder, _FACTS), text)

    def path(self, number: int) -> str:
        """Return the file of a part."""
        return os.path.join(self.folder, "%06d.hdf" % number)

    def is_complete(self, number: int) -> bool:
        """Return whether the part is there."""
        return os.path.exists(self.path(number))

    @property
    def num_complete(self) -> int:
        """Return the number of parts which are there."""
        return len(self.complete_paths())

    def complete_paths(self) -> list[str]:
        """Return the files of all parts, in order."""
        return [os.path.join(self.folder, name) for name in sorted(os.listdir(self.folder)) if name.endswith(".hdf")]

    def note(self, number: int, epoch: int, *, ends_epoch: bool) -> None:
        """Record the epoch of a stream to which a part belongs, and whether the part ends it."""
        self._stream[str(number)] = [epoch, ends_epoch]
        self._write()

    def epoch_of(self, number: int) -> int:
        """Return the epoch of a stream to which a part belongs; 0 if that was not noted."""
        return int(self._stream.get(str(number), [0])[0])

    def ends_epoch(self, number: int) -> bool:
        """Return whether an epoch of a stream ends with this part."""
        return bool(self._stream.get(str(number), [0, False])[1])

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder)


class Conversion:
    """A dataset, the sequences of it to copy, and their division into parts.

    :param found: the dataset
    :param epoch: copy this epoch, in its order; None: one pass over the corpus
    :param part_size: sequences of a part, rounded up to whole batches of the loading processes
    """

    def __init__(self, found: source.CorpusSource, keys: list[str], epoch: Optional[int], part_size: int) -> None:
        dataset = found.dataset
        if dataset.endless:
            raise FileError("data to-hdf: the dataset %r is endless; give it num_seqs" % dataset.name)
        self.keys = keys
        self._factory = found.factory
        self._name = found.title
        self._specs = {key: dataset.data_specs[key] for key in keys}
        self._batches_per_part = -(-part_size // _BATCH)
        self._order = source.corpus_order(dataset, epoch)
        self._epochs = list(source.epochs_of(dataset, epoch))
        if self._order is not None and not len(self._order):
            raise FileDataError("%s has no sequences" % found.title)
        config = found.factory.config
        self._facts = {
            "keys": keys,
            "part": self._part_size,
            "epochs": self._epochs,
            "order": None if self._order is None else _digest(self._order.tobytes()),
            "files": _digest(repr(list(_states([config.recipe().actions, dataset._given]))).encode()),
            "modules": _digest(repr(_modules_beside(config.files)).encode()),
            "dataset": _digest(re.sub(r" at 0x[0-9a-f]+", "", repr(dataset._given)).encode()),
        }

    @property
    def _part_size(self) -> int:
        return self._batches_per_part * _BATCH

    @property
    def num_parts(self) -> Optional[int]:
        """Return the number of parts; None if the number of sequences is not known in advance."""
        return None if self._order is None else -(-len(self._order) // self._part_size)

    def parts(self, output: str, *, restart: bool) -> Parts:
        """Return the folder of the parts, checked to be of this conversion."""
        return Parts(output + ".parts", self._facts, restart=restart)

    def write_parts(self, parts: Parts, processes: int, progress: Progress) -> None:
        """Write all parts which are not there yet."""
        if self._order is None:
            self._write_stream(parts, progress)
        else:
            self._write_chosen(parts, processes, progress)

    def _write_chosen(self, parts: Parts, processes: int, progress: Progress) -> None:
        """Write the parts of a dataset with random access, by several loading processes at the same time."""
        missing = [number for number in range(self.num_parts or 0) if not parts.is_complete(number)]
        pending, lock, stop = iter(missing), threading.Lock(), threading.Event()

        def work() -> None:
            with BatchLoader(self._factory, name=self._name) as loader:
                while not stop.is_set():
                    with lock:
                        number = next(pending, None)
                    if number is None:
                        break
                    assert self._order is not None
                    start = number * self._part_size
                    chosen = [int(index) for index in self._order[start : start + self._part_size]]
                    batches = self._batches(loader, self._epochs[0], seq_order=chosen, by_itself=True)
                    self._write_part(parts.path(number), _unless(stop, batches))
                    with lock:
                        progress(parts.num_complete, self.num_parts)

        with concurrent.futures.ThreadPoolExecutor(max(1, min(processes, len(missing)))) as pool:
            futures = [pool.submit(_until(stop, work)) for _ in range(min(processes, len(missing)))]
            try:
                for future in concurrent.futures.as_completed(futures):
                    future.result()
            finally:
                stop.set()

    def _write_stream(self, parts: Parts, progress: Progress) -> None:
        """Write the parts of a dataset whose sequences come one after the other."""
        number = 0
        with BatchLoader(self._factory, name=self._name) as loader:
            for epoch in self._epochs:
                first = number
                while parts.is_complete(number) and parts.epoch_of(number) == epoch:
                    number += 1
                if number > first and parts.ends_epoch(number - 1):
                    continue
                batches = self._batches(loader, epoch, start_batch=(number - first) * self._batches_per_part)
                following = next(batches, None)
                while following is not None:
                    of_part = itertools.islice(itertools.chain([following], batches), self._batches_per_part)
                    self._write_part(parts.path(number), of_part)
                    following = next(batches, None)
                    parts.note(number, epoch, ends_epoch=following is None)
                    number += 1
                    progress(number, None)
        if not number:
            raise FileDataError("%s has no sequences" % self._name)

    def _batches(self, loader: BatchLoader, epoch: int, **options: Any) -> Iterator[Batch]:
        return iter(
            loader.batches(
                epoch,
                batch_size=_UNLIMITED,
                max_seqs=_BATCH,
                used_data_keys=self.keys,
                chunking=None,
                context_window=None,
                **options,
            )
        )

    def _writer(self, path: str, *, replace: bool) -> HDFWriter:
        main = self._specs.get("data")
        labels = {key: spec.labels for key, spec in self._specs.items() if key != "data" and spec.labels}
        types = {key: _declared(spec) for key, spec in self._specs.items() if key != "data"}
        return HDFWriter(
            path,
            dim=(main.dim or None) if main else None,
            ndim=main.ndim if main else None,
            labels=main.labels if main and main.labels and len(main.labels) == main.dim else None,
            extra_type=types,
            extra_labels=labels,
            replace=replace,
        )

    def _write_part(self, path: str, batches: Iterator[Batch]) -> None:
        with self._writer(path, replace=True) as writer:
            for batch in batches:
                targets = {key: _unpadded(batch, key) for key in self.keys if key != "data"}
                if "data" not in self.keys:
                    writer.insert_sequences(None, batch.seq_tags, targets)
                    continue
                main, lengths = _lengths(batch, "data")
                if len(lengths) > 1:  # is flattened, with the sizes of the axes as a further target
                    writer.insert_batch(main, lengths, batch.seq_tags, targets)
                else:
                    frames = [value if value.ndim else value[None] for value in _unpadded(batch, "data")]
                    writer.insert_sequences(frames, batch.seq_tags, targets)

    def join(self, parts: Parts, output: str, *, replace: bool) -> int:
        """Write all parts to one file, and remove them; return the number of sequences."""
        with self._writer(output, replace=replace) as writer:
            for path in parts.complete_paths():
                _copy(path, writer)
        parts.remove()
        return writer.num_seqs


class _Stopped(Exception):
    """Another thread has failed, so that this one leaves its part unfinished."""


def _states(value: Any) -> Iterator[tuple[str, int, int]]:
    """Yield name, size and time of the files that a config and the options of a dataset name."""
    if isinstance(value, str):
        if len(value) < 4096 and os.path.isfile(value):
            state = os.stat(value)
            yield value, state.st_size, state.st_mtime_ns
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _states(entry)
    elif isinstance(value, dict):
        yield from _states(list(value.values()))


def _modules_beside(config_files: Sequence[str]) -> list[tuple[str, str]]:
    """Return path and digest of the user's Python files in use that lie in the folders of config files, or below."""
    folders = [os.path.dirname(os.path.abspath(path)) + os.sep for path in config_files]
    found = {}
    for module in list(sys.modules.values()):
        path = os.path.abspath(getattr(module, "__file__", None) or "")
        if path.endswith(".py") and any(map(path.startswith, folders)) and is_user_file(path) and os.path.isfile(path):
            with open(path, "rb") as file:
                found[path] = _digest(file.read())
    return sorted(found.items())


def _unless(stop: threading.Event, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Iterate over the batches; raise `_Stopped` once the event is set, so that no part is taken for complete."""
    for batch in batches:
        if stop.is_set():
            raise _Stopped
        yield batch


def _until(stop: threading.Event, work: Callable[[], None]) -> Callable[[], None]:
    """Return the function such that its failure stops the others, too."""

    def run() -> None:
        try:
            work()
        except _Stopped:
            pass
        except BaseException:
            stop.set()
            raise

    return run


def _declared(spec: DataSpec) -> tuple[Optional[int], int, str]:
    return spec.dim or None, max(spec.ndim, 1), "string" if spec.is_text else spec.dtype


def _lengths(batch: Batch, key: str) -> tuple[NDArray[Any], dict[int, NDArray[Any]]]:
    """Return the padded array of a key, and the lengths of its first axes as far as they differ."""
    value = batch.feed[key]
    lengths: dict[int, NDArray[Any]] = {}
    for axis in range(value.ndim - 1):
        size = batch.feed.get("%s/size%d" % (key, axis))
        if size is None:
            break
        lengths[axis] = size
    return value, lengths


def _unpadded(batch: Batch, key: str) -> list[NDArray[Any]]:
    value, lengths = _lengths(batch, key)
    return [
        row[tuple(slice(0, int(size[number])) for _, size in sorted(lengths.items()))]
        if lengths
        else np.asarray(row, value.dtype)
        for number, row in enumerate(value)
    ]


def _copy(path: str, writer: HDFWriter) -> None:
    """Append all sequences of a part."""
    index = HDFFile(path)
    with h5py.File(path, "r", locking=False) as file:
        streams = {key: np.split(file[index.paths[key]][:], index.offsets[key][1:-1]) for key in index.keys}
    writer.insert_sequences(streams.pop("data", None), list(index.tags), streams)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
