"""Writing the zip of an OggZip corpus."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import zipfile
from collections.abc import Iterator
from typing import Any, Optional

from returnn_tf.cli.data.audio_files import Encoding
from returnn_tf.cli.data.corpus_list import Utterance
from returnn_tf.config import DataError

_WAITING_PER_THREAD = 4
_DATE = (1980, 1, 1, 0, 0, 0)  # the same input gives the same file


def write_zip(path: str, utterances: list[Utterance], encoding: Optional[Encoding], threads: int) -> tuple[int, float]:
    """Write ``<name>.txt`` with a dict per utterance, and the audio files below ``<name>/``.

    The file gets its name when it is complete.

    :param encoding: of the audio; None: without audio
    :param threads: which decode and encode at the same time
    :return: number of sequences, and seconds of audio
    :raises DataError: audio is missing or damaged, or the file can't be written
    """
    name = os.path.splitext(os.path.basename(path))[0]
    temp = "%s.%d.tmp" % (path, os.getpid())
    entries, total = [], 0.0
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with zipfile.ZipFile(temp, "w") as archive:
            for utterance, content, seconds in _encoded(utterances, encoding, threads):
                entry: dict[str, Any] = {"text": utterance.text}
                entry["seq_name"] = utterance.name
                if content is not None and encoding is not None:
                    entry["file"] = "%s.%s" % (utterance.member, encoding.format)
                    _add(archive, "%s/%s" % (name, entry["file"]), content)
                entries.append(repr({**utterance.further, **entry, "duration": float(seconds)}))
                total += seconds
            _add(archive, name + ".txt", ("[\n%s\n]\n" % ",\n".join(entries)).encode("utf8"), packed=True)
        os.replace(temp, path)
    except OSError as exc:
        raise DataError("%r can't be written: %s" % (path, exc.strerror or exc)) from exc
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temp)
    return len(entries), total


def _add(archive: zipfile.ZipFile, name: str, content: bytes, *, packed: bool = False) -> None:
    """Add a file; audio is stored as it is, since it does not get smaller."""
    info = zipfile.ZipInfo(name, _DATE)
    info.compress_type = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    info.external_attr = 0o644 << 16
    archive.writestr(info, content)


def _encoded(
    utterances: list[Utterance], encoding: Optional[Encoding], threads: int
) -> Iterator[tuple[Utterance, Optional[bytes], float]]:
    """Yield the utterances in order with their audio and its duration; some are prepared ahead by threads."""
    if encoding is None:
        yield from ((utterance, None, 0.0) for utterance in utterances)
        return
    for utterance in utterances:
        if utterance.audio is None:
            raise DataError("%s: has no audio file; add --no-audio" % utterance.place)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        waiting: list[tuple[Utterance, concurrent.futures.Future[tuple[bytes, float]]]] = []
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
