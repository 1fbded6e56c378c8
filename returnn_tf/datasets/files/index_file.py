"""Indexes of large corpora: made once per machine, in a file of the user that all processes map into memory."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.datasets.files.cache import CopyError, FileCache
from returnn_tf.logging.log import log
from returnn_tf.util.freed_memory import return_freed_memory
from returnn_tf.util.trust import close_to_others, is_ours

#: The environment variable with the folder of the index files. If it is empty, each process has its own indexes.
FOLDER = "RETURNN_TF_INDEX_CACHE"
#: Bytes of the files of a corpus from which on its index is in a file.
LEAST = 16 << 20
_FORMAT = 2
_MAGIC = b"rtfindex"
_ALIGNED = 64


@dataclasses.dataclass(frozen=True)
class SharedIndex:
    """What is known of all sequences of a corpus.

    :param arrays: of simple types
    :param facts: as JSON
    :param files: further ones that determine it, found while it was made
    """

    arrays: Mapping[str, NDArray[Any]]
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    files: Sequence[str] = ()

    def part(self, name: str) -> dict[str, NDArray[Any]]:
        """Return the arrays whose names begin with this one and a dot, without these."""
        prefix = name + "."
        return {key[len(prefix) :]: array for key, array in self.arrays.items() if key.startswith(prefix)}


def named(name: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return arrays under names for `SharedIndex.part`."""
    return {"%s.%s" % (name, key): array for key, array in arrays.items()}


def shared_index(kind: str, paths: Sequence[str], options: Any, make: Callable[[], SharedIndex]) -> SharedIndex:
    """Return an index that all processes of the user on this machine share, if its files are large.

    It is made by the first process, others wait for it. Files that have another size or time of modification than when
    it was made, or other options, have another index. Indexes that are not used for 31 days are removed. If there is
    no place for it, the process has an index of its own, and the log says so.

    :param kind: of the corpus
    :param paths: of the files that determine the index
    :param options: as JSON, which determine it as well
    :param make: makes it
    """
    facts = _facts_of(paths)
    if facts is None or sum(size for _, size, _ in facts) < LEAST:
        return make()

    def check() -> None:
        if _facts_of(paths) != facts:
            raise CopyError("the files changed while they were read")

    return _shared(kind, [facts, options], make, check)


def shared_result(kind: str, content: Any, size: int, make: Callable[[], SharedIndex]) -> SharedIndex:
    """Return what is computed from contents, not files; see `shared_index`.

    :param kind: of the result
    :param content: as JSON, which determines it, e.g. digests
    :param size: bytes of what it is computed from; what is made of little is not shared
    :param make: computes it
    """
    return make() if size < LEAST else _shared(kind, content, make, lambda: None)


def _shared(kind: str, content: Any, make: Callable[[], SharedIndex], check: Callable[[], None]) -> SharedIndex:
    """Return the index with this content as key.

    :param check: raises a CopyError if what was made is not to be kept
    """
    folder = index_folder()
    if folder is None:
        return make()
    key = json.dumps([_FORMAT, kind, content])
    name = "%s-%s.index" % (kind, hashlib.sha256(key.encode("utf8")).hexdigest()[:32])
    made: list[SharedIndex] = []
    cache = FileCache(folder, private=True)

    def write(path: str) -> None:
        made.append(make())
        check()
        cache.make_space(sum(array.nbytes for array in made[0].arrays.values()))
        _write(path, key, made[0])

    try:
        path = cache.made(name, write)
        found = _mapped(path, key)
        if found is None:  # of other versions of its further files
            with contextlib.suppress(FileNotFoundError):  # another process has removed it
                os.remove(path)
            found = _mapped(cache.made(name, write), key)
            if found is None:
                raise CopyError("the files change all the time")
    except (CopyError, OSError) as exc:
        reason = str(exc) if isinstance(exc, CopyError) else exc.strerror or str(exc)
        # a corpus may have thousands of files
        log.warn("indexes can't be shared in %r: %s; this process has its own" % (folder, reason), once=True)
        return made[0] if made else make()
    if made:
        made.clear()
        return_freed_memory()
    return found


def index_folder() -> Optional[str]:
    """Return the folder of the index files, by default one of the user among temporary files; None: there is none."""
    folder = os.environ.get(FOLDER)
    if folder is not None:
        return os.path.abspath(folder) if folder else None
    return os.path.join(tempfile.gettempdir(), "returnn_tf_indexes_%d" % os.getuid()) if hasattr(os, "getuid") else None


def _facts_of(paths: Sequence[str]) -> Optional[list[list[Any]]]:
    """Return name, size and time of files; None if one is missing, which whoever reads it reports."""
    try:
        status = [(os.path.abspath(path), os.stat(path)) for path in paths]
    except OSError:
        return None
    return [[path, found.st_size, found.st_mtime_ns] for path, found in status]


def _write(path: str, key: str, index: SharedIndex) -> None:
    """Write a file: its header as JSON, then all arrays."""
    places, size = {}, 0
    for name, array in index.arrays.items():
        places[name] = [array.dtype.str, len(array), size]
        size += -(-array.nbytes // _ALIGNED) * _ALIGNED
    facts = {"key": key, "facts": index.facts, "files": _facts_of(index.files), "arrays": places, "size": size}
    header = json.dumps(facts).encode("utf8")
    with open(path, "wb") as file:
        file.write(_MAGIC + len(header).to_bytes(8, "little") + header)
        file.write(bytes(-file.tell() % _ALIGNED))
        for array in index.arrays.values():
            file.write(np.ascontiguousarray(array).data)
            file.write(bytes(-array.nbytes % _ALIGNED))
        file.flush()
        os.fsync(file.fileno())
    close_to_others(path)


def _mapped(path: str, key: str) -> Optional[SharedIndex]:
    """Return the index in a file, mapped into memory; None: one of its further files has changed since.

    :raises CopyError: it is none of this user, or not the wanted one
    """
    if not is_ours(path):
        raise CopyError("index file %r belongs to another user, or others may write to it" % path)
    begin = len(_MAGIC) + 8
    try:
        content = np.memmap(path, np.uint8, "r")
        end = begin + int.from_bytes(content[len(_MAGIC) : begin].tobytes(), "little")
        header = json.loads(content[begin:end].tobytes()) if content[: len(_MAGIC)].tobytes() == _MAGIC else {}
    except ValueError:  # also of an empty file
        header = {}
    start = -(-end // _ALIGNED) * _ALIGNED if header else 0
    if header.get("key") != key or len(content) != start + header["size"]:
        with contextlib.suppress(OSError):
            os.remove(path)
        raise CopyError("index file %r was damaged, and is removed" % path)
    files = [file for file, _, _ in header["files"] or ()]
    if header["files"] is None or _facts_of(files) != header["files"]:
        return None
    arrays = {}
    for name, (dtype, count, place) in header["arrays"].items():
        kind = np.dtype(dtype)
        arrays[name] = content[start + place : start + place + count * kind.itemsize].view(kind)
    return SharedIndex(arrays, header["facts"], files)
