"""The folder with the parts of a conversion, which survives an interruption."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from typing import Any

from returnn_tf.config import DataError
from returnn_tf.engine.support.atomic_files import write_text

_FACTS = "conversion.json"


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
            raise DataError("%r can't be written: %s" % (exc.filename or folder, exc.strerror or exc)) from exc

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
                raise DataError("%r is damaged; start over with --restart" % path) from None
        other = [name for name in facts if found.get(name) != facts[name]]
        if other:
            raise DataError(
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
