"""Checkpoints: TensorFlow V2 bundles keyed by parameter names, written atomically.

``<model>.012.index`` and ``.data-00000-of-00001`` hold the parameters and ``global_step``; whatever reads TensorFlow
checkpoints reads them. ``<model>.012.state.*`` hold what else an exact resume needs: optimizer slots, counters,
accumulated gradients. ``<model>.012.manifest.json``, written last, has sizes and checksums of these files, the epoch,
the step, the seed from which all random numbers follow, the learning rates so far, the position in the epoch, and the
settings. A checkpoint without manifest, as other programs write it, is valid if TensorFlow can read it all. One that
several processes have written together, see `Shares`, has several files of data.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import re
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Callable, Optional, TypeVar

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import CheckpointDataError, DataError
from returnn_tf.datasets.core.safe_files import check_regular
from returnn_tf.engine.checkpoints.bundle import Values, bundle_suffixes, write_bundle
from returnn_tf.engine.checkpoints.bundle_index import stored_places
from returnn_tf.engine.checkpoints.shares import Shares
from returnn_tf.engine.support import atomic_files as files
from returnn_tf.engine.support.disk_errors import RETRY_WAITS, may_pass
from returnn_tf.util.lazy_tf import tf

GLOBAL_STEP = "global_step"
_FORMAT = 1
T = TypeVar("T")
#: Suffix of the bundle of what is no parameter.
STATE = ".state"
_MANIFEST = ".manifest.json"
_SUFFIX = re.compile(r"(\.state)?\.(index|data-\d{5}-of-\d{5})|\.meta|\.manifest\.json")
_OP_MARKS = re.compile(r"\{\{function_node [^}]*\}\} ?|\{\{node [^}]*\}\} ?| ?\[Op:\w+\]")


@dataclass(frozen=True)
class CheckpointInfo:
    """Contents of a manifest apart from the list of files."""

    epoch: int  # last epoch which is complete in it; with a position in an epoch: that one
    step: int  # number of updates done
    random_seed: int  # with the step it determines all random numbers that follow
    config_sha256: str = ""
    learning_rates: str = ""  # text of the learning-rate file
    settings: dict[str, str] = field(default_factory=dict)  # see `fingerprint.settings`
    progress: Optional[dict[str, Any]] = None  # position within the epoch, see `Progress.as_json`


def save(
    prefix: str,
    params: Mapping[str, Any],
    state: Mapping[str, Any],
    info: CheckpointInfo,
    *,
    shares: Optional[Shares] = None,
    retry_waits: Sequence[float] = RETRY_WAITS,
) -> None:
    """Write a checkpoint; on failure, leave nothing of it behind and an earlier one untouched.

    :param prefix: path without suffix, e.g. ``out/net.012``; its folder must exist
    :param params: name -> variable or array
    :param state: further variables, by name
    :param shares: the processes that write it together; ``params`` and ``state`` are the share of this one
    :param retry_waits: seconds to wait before each further attempt
    :raises DataError: it could not be written, e.g. because the disk is full
    """
    bundles = {STATE: state, "": {**params, GLOBAL_STEP: tf.constant(info.step, "int64")}}
    if shares is None:
        _retried(prefix, lambda: _write(prefix, bundles, info), retry_waits)
    else:
        _write_together(prefix, bundles, info, shares, retry_waits)


def save_share(
    prefix: str,
    params: Mapping[str, Any],
    state: Mapping[str, Any],
    shares: Shares,
    *,
    retry_waits: Sequence[float] = RETRY_WAITS,
) -> None:
    """Write the share of a process that is not the chief, as in `save`.

    :raises DataError: it could not be written
    """
    _retried(prefix, lambda: shares.write(prefix, {"": params, STATE: state}), retry_waits)


def _retried(prefix: str, write: Callable[[], T], retry_waits: Sequence[float]) -> T:
    for wait in [*retry_waits, None]:
        try:
            return write()
        except (OSError, tf.errors.OpError) as exc:
            if wait is None or not _may_pass(exc):
                raise CheckpointDataError("The checkpoint %s can't be written: %s" % (prefix, _reason(exc))) from exc
        time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def _write(prefix: str, bundles: Mapping[str, Values], info: CheckpointInfo) -> None:
    folder, name = os.path.split(os.path.abspath(prefix))
    with files.staging(folder, name) as temp:
        suffixes = [suffix for suffix, values in bundles.items() if values]
        for suffix in suffixes:
            write_bundle(os.path.join(temp, name + suffix), bundles[suffix])
        names = [name + suffix + end for suffix in suffixes for end in bundle_suffixes()]
        _publish(temp, folder, name, files.describe(temp, names), info)


def _write_together(
    prefix: str, bundles: Mapping[str, Values], info: CheckpointInfo, shares: Shares, retry_waits: Sequence[float]
) -> None:
    folder, name = os.path.split(os.path.abspath(prefix))
    with files.staging(folder, name) as temp:
        own = _retried(prefix, lambda: shares.write_into(temp, bundles), retry_waits)

        def finish() -> None:
            _publish(temp, folder, name, shares.merge(prefix, own, list(bundles), os.path.join(temp, name)), info)

        _retried(
            prefix, finish, ()
        )  # merging moves the files of the others, so that nothing is left for a second attempt


def _publish(temp: str, folder: str, name: str, described: Mapping[str, Any], info: CheckpointInfo) -> None:
    """Write the manifest, and move all files from the staging folder into place."""
    manifest = {"format": _FORMAT, **asdict(info), "files": described}
    with open(os.path.join(temp, name + _MANIFEST), "w", encoding="utf8") as file:
        json.dump(files.with_checksum(manifest), file, indent=1)
        file.write("\n")
    files.publish(temp, folder, [*described, name + _MANIFEST])


def validate(prefix: str) -> Optional[str]:
    """Return the defect of a checkpoint, or None if it is complete and intact. Reads all of it."""
    if not os.path.exists(prefix + ".index"):
        return "%s.index is missing" % os.path.basename(prefix)
    try:
        manifest = files.read_manifest(prefix + _MANIFEST)
        if manifest is not None:
            return files.diff(os.path.dirname(os.path.abspath(prefix)), manifest["files"])
        for _ in StoredValues(prefix).values():
            pass
    except DataError as exc:
        return str(exc)
    return None


def unfinished(prefix: str) -> bool:
    """Return whether the process was killed while it moved this checkpoint into place."""
    return os.path.exists(prefix + STATE + ".index") and not os.path.exists(prefix + _MANIFEST)


def info(prefix: str) -> Optional[CheckpointInfo]:
    """Return the contents of the manifest of a checkpoint, or None if it has no manifest."""
    manifest = files.read_manifest(prefix + _MANIFEST)
    if manifest is None:
        return None
    try:
        return CheckpointInfo(
            epoch=int(manifest["epoch"]),
            step=int(manifest["step"]),
            random_seed=int(manifest["random_seed"]),
            config_sha256=str(manifest.get("config_sha256", "")),
            learning_rates=str(manifest.get("learning_rates", "")),
            settings={str(key): str(value) for key, value in manifest.get("settings", {}).items()},
            progress=manifest.get("progress"),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        raise CheckpointDataError(
            "%s%s lacks an entry or has one of the wrong kind: %s" % (prefix, _MANIFEST, exc)
        ) from None


@dataclass(frozen=True)
class StoredSpec:
    """The type and shape of a stored value."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class StoredValues(Mapping[str, NDArray[Any]]):
    """The values of a bundle by name, each read when it is asked for, so that not all are in memory at a time.

    TensorFlow compares checksums while it reads, in memory that it keeps for later: as much as the largest value takes.
    What was checked before is read without it, also if the checkpoint is deleted meanwhile.

    :param prefix: path without suffix; a suffix such as ``.index`` is ignored
    :param checked: the files were found to be intact, see `validate`
    :raises DataError: no such checkpoint, or it is damaged; also when a value is read
    """

    def __init__(self, prefix: str, *, checked: bool = False) -> None:
        self._prefix = strip_suffix(prefix)
        if not os.path.exists(self._prefix + ".index"):
            raise CheckpointDataError("There is no checkpoint %s (file %s.index)." % (self._prefix, self._prefix))
        with self._damage_as_error():
            for path in _bundle_files(self._prefix):
                check_regular(path)
            self._reader = reader = tf.train.load_checkpoint(self._prefix)
            shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
            self._names = {_name_now(name, dtypes[name]): name for name in shapes}
            self.specs = {
                now: StoredSpec(tuple(shapes[name]), np.dtype(dtypes[name].as_numpy_dtype))
                for now, name in sorted(self._names.items())
            }
            self._data = _DataFiles(self._prefix) if checked else None

    def renamed(self, names: Mapping[str, str]) -> StoredValues:
        """Return some of the values under other names: name there -> name here."""
        other = copy.copy(self)
        other._names = {new: self._names[name] for new, name in names.items()}
        other.specs = {new: self.specs[name] for new, name in names.items()}
        return other

    def __getitem__(self, name: str) -> NDArray[Any]:
        stored = self._names[name]
        with self._damage_as_error():
            if self._data is not None and stored in self._data.places:
                return self._data.read(stored)
            value: NDArray[Any] = self._reader.get_tensor(stored)
        return value.copy() if isinstance(value, np.ndarray) else value  # of which TensorFlow has the memory

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    def __contains__(self, name: object) -> bool:
        return name in self.specs

    @contextlib.contextmanager
    def _damage_as_error(self) -> Iterator[None]:
        try:
            yield
        except Exception as exc:  # what comes out of the reader's parsing: OpError, IndexError, RuntimeError, ...
            raise CheckpointDataError("The checkpoint %s is damaged: %s" % (self._prefix, _reason(exc))) from exc


class _DataFiles:
    """The open files of data of a bundle.

    :raises OSError: one can't be read
    """

    def __init__(self, prefix: str) -> None:
        self.places = stored_places(prefix + ".index")
        found = sorted(path for path in _bundle_files(prefix) if not path.endswith(".index"))
        self._files = [open(path, "rb", buffering=0) for path in found]
        weakref.finalize(self, _close, self._files)

    def read(self, name: str) -> NDArray[Any]:
        """Return a value."""
        place = self.places[name]
        value = np.empty(place.shape, place.dtype)
        left, file = value.reshape(-1).view("uint8").data, self._files[place.file]
        file.seek(place.offset)
        while left:
            count = file.readinto(left)
            if not count:
                raise OSError("%s ends too early" % os.path.basename(str(file.name)))
            left = left[count:]
        return value


def _close(files: Sequence[io.FileIO]) -> None:
    for file in files:
        file.close()


def read(prefix: str, names: Optional[Sequence[str]] = None) -> dict[str, NDArray[Any]]:
    """Return the values of a bundle by name.

    :param prefix: path without suffix; a suffix such as ``.index`` is ignored
    :param names: names to read, those missing are skipped; default: all
    :raises DataError: no such checkpoint, or it is damaged
    """
    values = StoredValues(prefix)
    return {name: values[name] for name in values if names is None or name in names}


def _name_now(name: str, dtype: tf.DType) -> str:
    """Return the name of a stored variable; the states of `random` layers had another one in earlier releases."""
    scope, _, last = name.rpartition("/")
    if last != "state_var" or dtype != tf.int64:
        return name
    return scope + "/random_generator/StateVar"


def _bundle_files(prefix: str) -> list[str]:
    folder, name = os.path.split(os.path.abspath(prefix))
    pattern = re.compile(re.escape(name) + r"\.(index|data-\d+-of-\d+)")
    return [os.path.join(folder, found) for found in os.listdir(folder) if pattern.fullmatch(found)]


def step_of(values: Mapping[str, Any]) -> int:
    """Return the number of training steps stored with the values of a bundle; 0 if it is not stored."""
    return int(values.get(GLOBAL_STEP, 0))


def read_state(prefix: str) -> dict[str, NDArray[Any]]:
    """Return the state stored beside the parameters; empty if the checkpoint has none."""
    prefix = strip_suffix(prefix) + STATE
    return read(prefix) if os.path.exists(prefix + ".index") else {}


def strip_suffix(path: str) -> str:
    """Return the prefix of a checkpoint, given the name of one of its files."""
    suffix = re.search(r"\.(index|data-\d{5}-of-\d{5}|meta|manifest\.json)$", path)
    return path[: suffix.start()] if suffix else path


def file_names(prefix: str) -> list[str]:
    """Return all existing files of a checkpoint, the one which makes it valid first; also links that lead nowhere."""
    folder, name = os.path.split(os.path.abspath(prefix))
    found = [entry[len(name) :] for entry in _entries(folder) if entry.startswith(name)]
    first = {_MANIFEST: 0, ".index": 1}
    suffixes = sorted(filter(_SUFFIX.fullmatch, found), key=lambda suffix: (first.get(suffix, 2), suffix))
    return [prefix + suffix for suffix in suffixes]


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def delete(prefix: str) -> int:
    """Delete all files of a checkpoint; return the number of bytes freed."""
    freed = 0
    for path in file_names(prefix):
        freed += os.lstat(path).st_size
        os.remove(path)
    return freed


def _may_pass(exc: Exception) -> bool:
    """Return whether the error may be transient, see `disk_errors.may_pass`."""
    if isinstance(exc, OSError):
        return may_pass(exc)
    return not isinstance(exc, (tf.errors.InvalidArgumentError, tf.errors.PermissionDeniedError))


def _reason(exc: Exception) -> str:
    """Return the first line of an error, without the marks of TensorFlow: which op, in which function."""
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror
    text = _OP_MARKS.sub("", str(exc)).strip()
    return text.splitlines()[0] if text else type(exc).__name__
