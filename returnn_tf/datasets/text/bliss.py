"""Bliss XML, the format of RASR: corpora with recordings, segments and transcriptions; pronunciation lexicons."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import gzip
import os
import re
import zlib
from collections.abc import Iterator
from typing import IO, Any, Optional
from xml.etree import ElementTree

from returnn_tf.config.errors import DataError, TextDataError
from returnn_tf.datasets.core.safe_files import open_regular
from returnn_tf.datasets.files import local_copy

#: The first line of a file with the name of its encoding, perhaps behind a byte order mark.
_DECLARATION = re.compile(rb"(?:\xef\xbb\xbf)?\s*<\?xml\s[^>]*?\bencoding\s*=\s*[\"']([A-Za-z][\w.-]*)[\"']")
_LONGEST = 256
#: Names of encodings that the parser knows; its errors name the line.
_KNOWN = ("utf-8", "utf-16", "iso-8859-1", "us-ascii")


def decoded(file: IO[bytes]) -> Any:
    """Return an XML file for a parser: as text if it declares an encoding under a name that only Python knows.

    The parser knows ``UTF-8``, but not ``utf8``, as some programs write it, nor most encodings with several bytes per
    character.

    :param file: at its begin
    :raises ValueError: the encoding is unknown
    """
    match = _DECLARATION.match(file.read(_LONGEST))
    file.seek(0)
    name = match.group(1).decode("ascii").lower() if match else _KNOWN[0]
    if name in _KNOWN:
        return file
    try:
        codec = codecs.lookup(name).name
    except LookupError:
        raise ValueError("it declares the encoding %r, which is unknown" % name) from None
    return codecs.getreader("utf-8-sig" if codec == "utf-8" else codec)(file)


_GZIP = b"\x1f\x8b"
_NAMED = ("corpus", "subcorpus", "recording", "segment")
_MOST_INCLUDES = 32


@dataclasses.dataclass(frozen=True)
class BlissSegment:
    """A segment of a recording.

    :param name: full name, "corpus/recording/segment"; elements without a name have their number, from 1
    :param orth: transcription as it stands in the file, or None
    :param audio: path of the recording, absolute or relative to the corpus file, or None
    :param start: time in seconds as it stands in the file, or None
    :param end: likewise
    :param speaker: name of the speaker of the segment, if given
    :param track: channel of the recording, from 0; None: not given
    """

    name: str
    orth: Optional[str]
    audio: Optional[str]
    start: Optional[str] = None
    end: Optional[str] = None
    speaker: Optional[str] = None
    track: Optional[int] = None

    @property
    def text(self) -> str:
        """Return the transcription with single blanks between the words, or ""."""
        return " ".join((self.orth or "").split())

    @property
    def seconds(self) -> tuple[float, Optional[float]]:
        """Return start and end; None: the end of the recording.

        :raises DataError: they are no times
        """
        start = self._time("start", self.start)
        end = self._time("end", self.end)
        if end == float("inf"):
            end = None
        if end is not None and end <= (start or 0):
            raise TextDataError(
                "segment %r ends at %s, before it starts at %s" % (self.name, self.end, self.start or 0)
            )
        return start or 0.0, end

    def _time(self, what: str, text: Optional[str]) -> Optional[float]:
        if text is None:
            return None
        with contextlib.suppress(ValueError):
            value = float(text)
            if value >= 0:
                return value
        raise TextDataError("segment %r: %s %r is not a time in seconds" % (self.name, what, text))


def is_bliss(path: str) -> bool:
    """Return whether a file is XML, plain or compressed by gzip, with the root element ``corpus``.

    :raises DataError: the file is missing or unreadable
    """
    with _opened(path) as file:
        try:
            if not file.read(256).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
                return False
            file.seek(0)
            _, root = next(iter(ElementTree.iterparse(decoded(file), events=("start",))))
        except (ElementTree.ParseError, StopIteration, ValueError):
            return False
        except (OSError, EOFError, zlib.error) as exc:
            raise TextDataError("file %r cannot be read: %s" % (path, exc)) from exc
        return bool(root.tag == "corpus")


def read_bliss(
    path: str, *, use_cache_manager: bool = False, included: Optional[list[str]] = None
) -> Iterator[BlissSegment]:
    """Yield the segments of a corpus in the order of the file, and of the files which it includes.

    The memory does not depend on the size of the file.

    :param path: of the XML file, which may be compressed by gzip, and remote
    :param use_cache_manager: the option of the dataset, for all files
    :param included: gets the paths of the files which it includes, or of their local copies
    :raises DataError: the file is missing, damaged or not a corpus; names the file
    """
    found = [] if included is None else included
    yield from _Reader(path, prefix=(), depth=0, use_cache_manager=use_cache_manager, included=found)


class _Reader:
    """Reads one file.

    :param prefix: names of the corpora around an included file
    :param depth: number of files which include this one
    :param included: gets the paths of the files which it includes
    """

    def __init__(self, path: str, *, prefix: tuple[str, ...], depth: int, use_cache_manager: bool, included: list[str]):
        self.path = path
        self.local = local_copy(path, wanted=use_cache_manager)
        self._use_cache_manager = use_cache_manager
        self._all_included = included
        self.prefix = prefix
        self.depth = depth
        self._open: list[Any] = []
        self._names: list[str] = []
        self._counts: list[dict[str, int]] = [{}]
        self._audio: Optional[str] = None

    def __iter__(self) -> Iterator[BlissSegment]:
        with _opened(self.local, name=self.path) as file:
            try:
                for event, element in ElementTree.iterparse(decoded(file), events=("start", "end")):
                    if event == "start":
                        yield from self._start(element)
                    else:
                        yield from self._end(element)
            except (OSError, EOFError, zlib.error, ElementTree.ParseError, ValueError) as exc:
                if isinstance(exc, DataError):
                    raise
                raise TextDataError("Bliss corpus %r cannot be read: %s" % (self.path, exc)) from exc

    def _start(self, element: Any) -> Iterator[BlissSegment]:
        if not self._open and element.tag != "corpus":
            raise TextDataError(
                "%r is not a Bliss corpus: its root element is <%s>, not <corpus>" % (self.path, element.tag)
            )
        self._open.append(element)
        if element.tag == "include":
            yield from self._included(element)
        if element.tag not in _NAMED:
            return
        counts = self._counts[-1]
        counts[element.tag] = counts.get(element.tag, 0) + 1
        self._names.append(element.get("name") or str(counts[element.tag]))
        self._counts.append({})
        if element.tag == "recording":
            self._audio = element.get("audio")

    def _end(self, element: Any) -> Iterator[BlissSegment]:
        if element.tag == "segment":
            yield self._segment(element)
        if element.tag in _NAMED:
            self._names.pop()
            self._counts.pop()
        self._open.pop()
        if self._open and not self._is_in_segment():
            self._open[-1].remove(element)  # else the tree would grow to the size of the file

    def _is_in_segment(self) -> bool:
        return any(element.tag == "segment" for element in self._open)

    def _segment(self, element: Any) -> BlissSegment:
        orth = element.find("orth")
        speaker = element.find("speaker")
        track = element.get("track")
        if track and not track.isdecimal():
            raise TextDataError(
                "Bliss corpus %r: segment %r: track %r is not a number" % (self.path, self._name(), track)
            )
        return BlissSegment(
            name=self._name(),
            orth=None if orth is None else "".join(orth.itertext()),
            audio=self._audio,
            start=element.get("start"),
            end=element.get("end"),
            speaker=None if speaker is None else speaker.get("name"),
            track=int(track) if track else None,
        )

    def _name(self) -> str:
        return "/".join(self.prefix + tuple(self._names))

    def _included(self, element: Any) -> Iterator[BlissSegment]:
        if self.depth >= _MOST_INCLUDES:
            raise TextDataError("Bliss corpus %r: more than %d files include each other" % (self.path, _MOST_INCLUDES))
        name = element.get("file")
        if not name:
            raise TextDataError("Bliss corpus %r: an <include> has no attribute 'file'" % self.path)
        # the root of an included file stands for the corpus that includes it, so its name is not repeated
        path = os.path.join(os.path.dirname(self.path), name)
        reader = _Included(
            path,
            prefix=self.prefix + tuple(self._names),
            depth=self.depth + 1,
            use_cache_manager=self._use_cache_manager,
            included=self._all_included,
        )
        self._all_included.append(reader.local)
        yield from reader


class _Included(_Reader):
    """Reads an included file, whose root is the corpus that includes it."""

    def _name(self) -> str:
        return "/".join(self.prefix + tuple(self._names[1:]))


@contextlib.contextmanager
def _opened(path: str, *, name: str = "") -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed if it is compressed by gzip, whatever its name.

    :param name: of the file, for errors; default: the path
    """
    name = name or path
    try:
        raw = open_regular(path)
    except OSError as exc:
        raise TextDataError("Bliss corpus %r cannot be read: %s" % (name, exc.strerror or exc)) from exc
    with raw:
        try:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
        except OSError as exc:
            raise TextDataError("Bliss corpus %r cannot be read: %s" % (name, exc.strerror or exc)) from exc
        if not packed:
            yield raw
            return
        with gzip.GzipFile(fileobj=raw) as file:
            yield file  # type: ignore[misc]


class Lexicon:
    """The phonemes and lemmas of a lexicon.

    ``phoneme_list`` has the symbols in order, ``phonemes`` maps a symbol to its index, symbol and variation, and
    ``lemmas`` an orthography to itself and its pronunciations with their scores.

    :param filename: XML, plain or compressed by gzip
    :raises DataError: it is missing or no lexicon
    """

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.phoneme_list: list[str] = []
        self.phonemes: dict[str, dict[str, Any]] = {}
        self.lemmas: dict[str, dict[str, Any]] = {}
        try:
            with open_regular(filename) as file:
                packed = file.read(2) == b"\x1f\x8b"
                file.seek(0)
                content: Any = gzip.GzipFile(fileobj=file) if packed else file
                self._read(content)
        except DataError:
            raise
        except (OSError, EOFError, zlib.error, ElementTree.ParseError, ValueError) as exc:
            reason = getattr(exc, "strerror", None) or exc
            raise TextDataError("the lexicon %r can't be read: %s" % (filename, reason)) from exc
        if not self.phonemes and not self.lemmas:
            raise TextDataError("%r is no lexicon: it has neither phonemes nor lemmas." % filename)

    def _read(self, file: Any) -> None:
        for _, element in ElementTree.iterparse(decoded(file)):
            if element.tag == "phoneme":
                self._add_phoneme(element)
            elif element.tag == "lemma":
                self._add_lemma(element)
            else:
                continue
            element.clear()

    def _add_phoneme(self, element: Any) -> None:
        symbol = (element.findtext("symbol") or "").strip()
        variation = (element.findtext("variation") or "context").strip()
        self.phonemes[symbol] = {"index": len(self.phonemes), "symbol": symbol, "variation": variation}
        self.phoneme_list.append(symbol)

    def _add_lemma(self, element: Any) -> None:
        phons = [
            {"phon": (phon.text or "").strip(), "score": float(phon.get("score", "0"))}
            for phon in element.findall("phon")
        ]
        for orth in element.findall("orth"):
            text = (orth.text or "").strip()
            entry = {"orth": text, "phons": phons}
            if self.lemmas.setdefault(text, entry) != entry:
                raise TextDataError(
                    "lexicon %r: %r has different pronunciations in several lemmas. Join these lemmas."
                    % (self.filename, text)
                )
