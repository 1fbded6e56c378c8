"""The files of Kaldi: tables with a name and a value per line, and what the values of a ``scp`` file refer to."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DataError, FileDataError
from returnn_tf.datasets.audio.packages import optional_package
from returnn_tf.datasets.core.safe_files import open_regular
from returnn_tf.datasets.core.tags import TagTable
from returnn_tf.datasets.files import is_url, local_copy
from returnn_tf.datasets.speech.manifests import LONGEST
from returnn_tf.datasets.text.lines import lines_of_corpus
from returnn_tf.util.packed_strings import PackedStrings

_REFERENCE = re.compile(r"(?P<path>.+?)(?::(?P<offset>\d+))?(?P<range>\[[\d:, ]*\])?", re.DOTALL)
_PICKLE = b"PKL"
_VECTORS = (b"\0BFV \4", b"\0BDV \4")
_SHOWN = 200


class Table:
    """A file with a line ``name value ...`` for each utterance or recording, such as ``text`` or ``wav.scp``.

    :param path: of the file
    :param use_cache_manager: the option of the dataset
    :raises DataError: the file is missing or empty
    """

    def __init__(self, path: str, *, use_cache_manager: bool):
        self.path = path
        self._lines = lines_of_corpus(path, use_cache_manager=use_cache_manager)
        self._table: Optional[TagTable] = None

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def local_path(self) -> str:
        """Return the path of the file, or of its local copy."""
        return self._lines.local

    @functools.cached_property
    def names(self) -> PackedStrings:
        """Return the names, which are read for the index; DataError if one is blank or occurs twice."""
        names = PackedStrings()
        for row, line in enumerate(self._lines.texts()):
            name, _ = _fields(line)
            if not name:
                raise FileDataError("%s: it is blank" % self.place(row))
            names.append(name)
        twice = names.repeated()
        if twice:
            raise FileDataError("%s: %r has a line before" % (self.place(twice[0]), names[twice[0]]))
        return names

    def forget_names(self) -> None:
        """Free the memory of the names."""
        self.__dict__.pop("names", None)
        self._table = None

    def place(self, row: int) -> str:
        """Return file and line of a row, for errors."""
        return self._lines.place(row)

    def value(self, row: int) -> str:
        """Return what follows the name."""
        return _fields(self._lines.text(row))[1]

    def values(self) -> Iterator[str]:
        """Yield what follows each name."""
        return (_fields(line)[1] for line in self._lines.texts())

    def rows(self, names: PackedStrings, of: str, *, all_there: bool = True) -> NDArray[np.int64]:
        """Return the rows of these names, -1 for one that is missing.

        :param of: the file that has the names, for errors
        :param all_there: none may be missing
        :raises DataError: one is
        """
        if self._table is None:
            self._table = TagTable(len(self), self.names.chosen, last=False)
        wanted = list(names)
        rows = self._table.find(wanted)
        missing = np.flatnonzero(rows < 0)
        if len(missing) and all_there:
            raise FileDataError(
                "file %r lacks %d of the %d names of %r, e.g. %r. Kaldi's utils/fix_data_dir.sh removes such lines"
                % (self.path, len(missing), len(wanted), of, wanted[missing[0]])
            )
        return rows

    def numbers(self) -> NDArray[np.float64]:
        """Return the values as numbers that are not negative; DataError for others."""
        return np.array([self._number(row, value) for row, value in enumerate(self.values())])

    def _number(self, row: int, value: str) -> float:
        try:
            return number(value)
        except FileDataError as exc:
            raise FileDataError("%s: %s" % (self.place(row), exc)) from None


def _fields(line: str) -> tuple[str, str]:
    """Return the name, and what follows it."""
    name, *rest = line.split(None, 1) or [""]
    return name, rest[0].rstrip() if rest else ""


def number(text: str, *, least: float = 0.0) -> float:
    """Return a number in a table; DataError if it is none, below ``least``, or too large for a time."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value < LONGEST:
        raise FileDataError("%r is no number of at least %g" % (text[:_SHOWN], least))
    return value


def is_command(value: str) -> bool:
    """Return whether a value of a ``scp`` file is a command whose output is meant: it ends with ``|``."""
    return value.endswith("|") or value.startswith("|")


def output_of(command: str) -> bytes:
    """Run a command, which ends with ``|``, by bash, and return its output.

    :raises DataError: it fails
    """
    try:
        done = subprocess.run(
            ["bash", "-c", "set -o pipefail; " + command.rstrip("| ")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            check=False,
        )
    except OSError as exc:
        raise FileDataError("the command %r can't be run: %s" % (command[:_SHOWN], exc)) from exc
    if done.returncode:
        text = os.fsdecode(done.stderr).strip()[-_SHOWN:]
        raise FileDataError("the command %r ends with code %d: %s" % (command[:_SHOWN], done.returncode, text))
    return done.stdout


def first_value(path: str, *, use_cache_manager: bool) -> str:
    """Return the value in the first line of a ``scp`` file, without reading the rest.

    :raises DataError: the file is missing or empty
    """
    try:
        with open_regular(local_copy(path, wanted=use_cache_manager)) as file:
            fields = file.readline().decode("utf8", "replace").split(None, 1)
    except FileNotFoundError:
        raise FileDataError("file %r does not exist (current directory: %s)" % (path, os.getcwd())) from None
    except OSError as exc:
        raise FileDataError("file %r cannot be read: %s" % (path, exc.strerror or exc)) from exc
    if len(fields) < 2:
        raise FileDataError("file %r, line 1: there must be a name and the place of its data" % path)
    return fields[1].strip()


class Archives:
    """What the values of ``scp`` files refer to: matrices and vectors, and audio, in archives.

    :param root: directory of relative paths; None: the current one
    :param use_cache_manager: the option of the dataset
    """

    def __init__(self, root: Optional[str], *, use_cache_manager: bool):
        self._root = root or ""
        self._use_cache_manager = use_cache_manager

    def resolve(self, path: str) -> str:
        """Return the path of a file, which may be relative to the directory."""
        return path if is_url(path) or not self._root else os.path.join(self._root, path)

    def local(self, path: str) -> str:
        """Return the path of a local copy, if one is wanted or needed."""
        return local_copy(self.resolve(path), wanted=self._use_cache_manager)

    def get(self, value: str) -> Union[NDArray[Any], tuple[int, NDArray[Any]]]:
        """Return a matrix or vector, or (rate, samples) of audio, by the package kaldiio.

        :param value: ``path``, ``path:offset``, or one of these with a range of rows and columns ``[0:9,2:3]``
        :raises DataError: the archive is missing, damaged or cut off, or has nothing of this kind there
        """
        with optional_package("to read archives of Kaldi", extra="kaldi"):
            import kaldiio
        if is_command(value):
            raise FileDataError(
                "%r is a command; only those for audio are run, with the option run_pipes. Write its output to an "
                "archive, e.g. by copy-feats" % value[:_SHOWN]
            )
        match = _REFERENCE.fullmatch(value)
        if match is None:  # all but the path is optional
            raise FileDataError("the place of its data is missing behind the name")
        path, offset = self.resolve(match["path"]), int(match["offset"] or 0)
        place = "archive %r, byte %d" % (path, offset)
        try:
            with open_regular(self.local(match["path"])) as file:
                file.seek(offset)
                head = file.read(10)
                if head.startswith(_PICKLE):
                    raise FileDataError("it is a pickle, which could run any program; write it as a matrix")
                # kaldiio finds the file under this name, and goes to the offset
                found = kaldiio.load_mat("ark:%d%s" % (offset, match["range"] or ""), fd_dict={"ark": file})
            if head.startswith(_VECTORS) and not match["range"]:
                _check_size(found, int.from_bytes(head[6:10], "little"))
        except FileNotFoundError:
            text = "archive %r does not exist (current directory: %s)"
            raise FileDataError(text % (path, os.getcwd())) from None
        except DataError as exc:
            raise FileDataError("%s: %s" % (place, exc)) from exc
        except Exception as exc:  # kaldiio raises nearly anything for what is damaged
            reason = getattr(exc, "strerror", None) or str(exc)  # its assertions have no text
            text = "%s: there is no matrix or vector that can be read%s. Is the archive damaged or cut off?"
            raise FileDataError(text % (place, reason and ": " + reason)) from exc
        return found  # type: ignore[no-any-return]

    def array(self, value: str) -> NDArray[Any]:
        """Return a matrix or vector, see `get`."""
        found = self.get(value)
        if isinstance(found, tuple):
            raise FileDataError("archive %r has audio there, not a matrix or vector" % value)
        return found

    def audio(self, value: str) -> tuple[NDArray[Any], int]:
        """Return samples, from -1 to 1, and sample rate of audio in an archive, see `get`."""
        found = self.get(value)
        if not isinstance(found, tuple):
            raise FileDataError("archive %r has a matrix or vector there, not audio" % value)
        rate, samples = found
        if samples.dtype.kind == "i":
            samples = samples / np.float32(2 ** (8 * samples.dtype.itemsize - 1))
        return samples, int(rate)


def _check_size(vector: NDArray[Any], size: int) -> None:
    """Check that a vector is whole, which kaldiio does for matrices only."""
    if len(vector) != size:
        raise FileDataError(
            "a vector has %d values there, but declares %d; the archive is cut off" % (len(vector), size)
        )


def is_in_archive(value: str) -> bool:
    """Return whether a value of ``wav.scp`` is an offset in an archive, not an audio file of its own."""
    match = _REFERENCE.fullmatch(value)
    return match is not None and match["offset"] is not None
