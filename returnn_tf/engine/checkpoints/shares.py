"""Checkpoints that all processes write together, each a share of the values, beside the training.

A process writes its share into a folder beside the checkpoint, as bundles of TensorFlow, then a file with their sizes
and checksums. The chief waits for these files in its background thread, and merges the bundles: a bundle has one file
of data for each process then, which is moved, not copied, and one index.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from returnn_tf.config.errors import CheckpointDataError
from returnn_tf.engine.checkpoints.bundle import Values, bundle_suffixes, write_bundle
from returnn_tf.engine.support import atomic_files as files
from returnn_tf.util.lazy_tf import tf

_FOLDER = ".tmp-shares"  # a later run removes it, as all that begins so
_DONE = "%05d.json"
_SHARE = "%05d%s"
_WAIT_SECONDS = 0.05
#: Nothing has changed in the folder for so long: a process can't see it, or is lost.
PATIENCE_SECONDS = 120.0


class Shares:
    """The processes that write checkpoints together.

    :param rank: of this process; 0 is the chief
    :param names: of all processes, for messages
    """

    def __init__(self, rank: int, names: Sequence[str]) -> None:
        self.rank = rank
        self._names = list(names)

    def own(self, bundles: Mapping[str, Values], whole: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
        """Return the values that this process writes: all processes write about as many bytes.

        :param bundles: suffix of the bundle -> values; all processes have the same
        :param whole: suffixes of bundles that the chief writes alone, so that they have one file of data
        """
        loads = [0] * len(self._names)
        found: dict[str, dict[str, Any]] = {suffix: {} for suffix in bundles}
        entries = [(suffix in whole, _bytes_of(values[name]), suffix, name)
                   for suffix, values in bundles.items() for name in values]  # fmt: skip
        for is_whole, size, suffix, name in sorted(entries, key=lambda entry: (not entry[0], -entry[1], *entry[2:])):
            rank = 0 if is_whole else loads.index(min(loads))
            loads[rank] += size
            if rank == self.rank:
                found[suffix][name] = bundles[suffix][name]
        return found

    def write(self, prefix: str, own: Mapping[str, Values]) -> None:
        """Write the share of a process that is not the chief.

        :param prefix: of the checkpoint
        :param own: see `own`
        :raises OSError, tf.errors.OpError: it can't be written
        """
        folder = _folder_of(prefix)
        os.makedirs(folder, exist_ok=True)
        described = self.write_into(folder, own)
        for suffix in described:
            for end in bundle_suffixes():
                files.sync(os.path.join(folder, _SHARE % (self.rank, suffix + end)))
        files.write_text(os.path.join(folder, _DONE % self.rank), json.dumps(described))

    def merge(
        self, prefix: str, own: Mapping[str, dict[str, Any]], suffixes: Sequence[str], target: str
    ) -> dict[str, dict[str, Any]]:
        """Wait for the shares of the others, and merge all of them. Those of the others are gone after that.

        :param prefix: of the checkpoint
        :param own: what `write_into` has returned for the chief
        :param suffixes: of the bundles
        :param target: the prefix in the folder where the checkpoint is made, with the share of the chief
        :return: size and checksum of each file
        :raises CheckpointDataError: a process has not written its share
        """
        folder, name = os.path.split(target)
        by_rank = {0: own, **self._wait(prefix)}
        made: dict[str, dict[str, Any]] = {}
        for suffix in suffixes:
            writers = [rank for rank, described in by_rank.items() if suffix in described]
            if not writers:
                continue
            parts = [os.path.join(_folder_of(prefix) if rank else folder, _SHARE % (rank, suffix)) for rank in writers]
            tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=parts, destination_prefix=target + suffix, delete_old_dirs=False
            )
            for number, rank in enumerate(writers):
                made[name + suffix + bundle_suffixes(number, len(writers))[0]] = by_rank[rank][suffix]
            made.update(files.describe(folder, [name + suffix + bundle_suffixes()[1]]))
        for file, facts in made.items():
            if os.path.getsize(os.path.join(folder, file)) != facts["size"]:
                raise CheckpointDataError(
                    "The checkpoint %s: its file %s has another size than written." % (prefix, file)
                )
        shutil.rmtree(_folder_of(prefix), ignore_errors=True)
        return made

    def write_into(self, folder: str, own: Mapping[str, Values]) -> dict[str, dict[str, Any]]:
        """Write the bundles of this process that are not empty; return size and checksum of their data by suffix."""
        described: dict[str, dict[str, Any]] = {}
        for suffix, values in own.items():
            if values:
                share = _SHARE % (self.rank, suffix)
                write_bundle(os.path.join(folder, share), values)
                data = share + bundle_suffixes()[0]
                described[suffix] = files.describe(folder, [data])[data]
        return described

    def _wait(self, prefix: str) -> dict[int, dict[str, Any]]:
        """Wait until the other processes have written their shares; return what they say, by rank."""
        folder = _folder_of(prefix)
        found: dict[int, dict[str, Any]] = {}
        seen: Optional[int] = -1
        since = time.monotonic()
        while True:
            for rank in set(range(1, len(self._names))) - set(found):
                path = os.path.join(folder, _DONE % rank)
                if os.path.exists(path):
                    with open(path, encoding="utf8") as file:
                        found[rank] = json.load(file)
            if len(found) == len(self._names) - 1:
                return dict(sorted(found.items()))
            size = _size_of(folder)
            if size != seen:
                seen, since = size, time.monotonic()
            if time.monotonic() - since > PATIENCE_SECONDS:
                raise CheckpointDataError(
                    "The checkpoint %s lacks the share of %s, which wrote nothing for %d s. With save_sharded the "
                    "folder must be on a file system that all processes see; else remove the setting."
                    % (prefix, self._names[min(set(range(1, len(self._names))) - set(found))], PATIENCE_SECONDS)
                )
            time.sleep(_WAIT_SECONDS)


def _bytes_of(value: Any) -> int:
    count = 1
    for size in value.shape:
        count *= int(size)
    return count * int(tf.as_dtype(value.dtype).size)


def _folder_of(prefix: str) -> str:
    folder, name = os.path.split(os.path.abspath(prefix))
    return os.path.join(folder, ".%s%s" % (name, _FOLDER))


def _size_of(folder: str) -> Optional[int]:
    """Return the bytes in a folder; None if it is not there."""
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat().st_size for entry in entries)
    except OSError:
        return None
