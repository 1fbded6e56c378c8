"""Writing the zip of an OggZip corpus."""

from __future__ import annotations

import concurrent.futures
import os
import shutil
import zipfile
from collections.abc import Iterator
from typing import Any, Optional, Protocol

from returnn_tf.cli.data.corpus_list import Utterance
from returnn_tf.config.errors import FileDataError
from returnn_tf.util.temporary import Temporary

_WAITING_PER_THREAD = 4
_DATE = (1980, 1, 1, 0, 0, 0)  # the same input gives the same file


class AudioEncoding(Protocol):
    """What makes the audio files of utterances."""

    @property
    def format(self) -> str:
        """Return the suffix of their names, without dot."""

    @property
    def reads_files(self) -> bool:
        """Return whether utterances must have audio files."""

    def encode(self, utterance: Utterance) -> tuple[Optional[bytes], float]:
        """Return the content of the file, None for no file, and the duration in seconds."""


def write_zip(
    path: str, utterances: list[Utterance], encoding: Optional[AudioEncoding], threads: int, *, append: bool = False
) -> tuple[int, float]:
    """Write ``<name>.txt`` with a dict per utterance, and the audio files below ``<name>/``.

    The file gets its name when it is complete.

    :param encoding: of the audio; None: without audio, and with the duration 0
    :param threads: which decode and encode at the same time
    :param append: keep what an existing file has
    :return: number of sequences, and seconds of audio
    :raises DataError: audio is missing or damaged, or the file can't be written, or has such a corpus already
    """
    name = os.path.splitext(os.path.basename(path))[0]
    entries, total = [], 0.0
    temporary: Optional[Temporary] = None
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        temporary = Temporary(path)
        if append and os.path.exists(path) and os.path.getsize(path):
            if not zipfile.is_zipfile(path):
                raise FileDataError("%r exists, but is no zip to add to" % path)
            shutil.copyfile(path, temporary.path)
        with zipfile.ZipFile(temporary.path, "a") as archive:
            there = set(archive.namelist())
            if name + ".txt" in there:
                raise FileDataError(
                    "%r holds the corpus %s.txt already. Remove it, or choose another name" % (path, name)
                )
            for utterance, content, seconds in _encoded(utterances, encoding, threads):
                entry: dict[str, Any] = {"text": utterance.text}
                entry["seq_name"] = utterance.name
                if encoding is not None:
                    entry["file"] = "%s.%s" % (utterance.member, encoding.format)
                if content is not None:
                    _add(archive, "%s/%s" % (name, entry["file"]), content)
                entries.append("%r,\n" % ({**utterance.further, **entry, "duration": float(seconds)},))
                total += seconds
            if append and not any(other.startswith(name + "/") for other in archive.namelist()):
                archive.writestr(zipfile.ZipInfo(name + "/", _DATE), b"")  # what joins parts expects their folders
            _add(archive, name + ".txt", ("[\n%s]\n" % "".join(entries)).encode("utf8"), packed=True)
        temporary.publish()
    except zipfile.BadZipFile as exc:
        raise FileDataError("%r exists, but is damaged: %s" % (path, exc)) from exc
    except OSError as exc:
        raise FileDataError("%r can't be written: %s" % (path, exc.strerror or exc)) from exc
    finally:
        if temporary is not None:
            temporary.remove()
    return len(entries), total


def _add(archive: zipfile.ZipFile, name: str, content: bytes, *, packed: bool = False) -> None:
    """Add a file; audio is stored as it is, since it does not get smaller."""
    info = zipfile.ZipInfo(name, _DATE)
    info.compress_type = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    info.external_attr = 0o644 << 16
    archive.writestr(info, content)


def _encoded(
    utterances: list[Utterance], encoding: Optional[AudioEncoding], threads: int
) -> Iterator[tuple[Utterance, Optional[bytes], float]]:
    """Yield the utterances in order with their audio and its duration; some are prepared ahead by threads."""
    if encoding is None:
        yield from ((utterance, None, 0.0) for utterance in utterances)
        return
    for utterance in utterances:
        if utterance.audio is None and encoding.reads_files:
            raise FileDataError("%s: has no audio file, so the corpus can only be made without audio" % utterance.place)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        waiting: list[tuple[Utterance, concurrent.futures.Future[tuple[Optional[bytes], float]]]] = []
        try:
            for utterance in utterances:
                waiting.append((utterance, pool.submit(encoding.encode, utterance)))
                if len(waiting) >= _WAITING_PER_THREAD * threads:
                    first, future = waiting.pop(0)
                    yield (first, *future.result())
            for first, future in waiting:
                yield (first, *future.result())
        finally:
            pool.shutdown(cancel_futures=True)
