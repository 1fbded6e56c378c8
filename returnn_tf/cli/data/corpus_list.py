"""The utterances of a corpus: from a table, or from a Bliss corpus."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from returnn_tf.config.errors import FileDataError, FileError, did_you_mean
from returnn_tf.datasets.core.safe_files import open_regular, read_seq_tags
from returnn_tf.datasets.text.bliss import is_bliss, read_bliss

_SEPARATORS = {".tsv": "\t", ".txt": "\t", ".csv": ","}
OWN_COLUMNS = ("file", "text", "seq_name", "start", "end")


@dataclass(frozen=True)
class Utterance:
    """A sequence of the corpus to make.

    :param place: file and line, for messages
    :param name: the tag
    :param text: transcription
    :param audio: path of the audio file, or None
    :param member: name of the audio file in the zip, without suffix
    :param start: of the part of the file, in seconds
    :param end: likewise; None: the end of the file
    :param further: other facts to keep, e.g. the speaker
    :param relative_audio: the audio file as it stands in the corpus
    :param track: channel of the audio, from 0; None: all
    """

    place: str
    name: str
    text: str
    audio: Optional[str]
    member: str
    start: float = 0.0
    end: Optional[float] = None
    further: dict[str, Any] = field(default_factory=dict)
    relative_audio: Optional[str] = None
    track: Optional[int] = None

    @property
    def is_whole_file(self) -> bool:
        """Return whether it is all of its audio file."""
        return self.start == 0 and self.end is None


def read_corpus(
    path: str,
    *,
    audio_root: Optional[str] = None,
    segments: Optional[str] = None,
    columns: Optional[Mapping[str, str]] = None,
) -> list[Utterance]:
    """Read all utterances.

    :param path: of the table or Bliss corpus
    :param audio_root: what relative paths of audio files are relative to; default: the folder of the file
    :param segments: file with the tags to keep
    :param columns: file, text, seq_name, start or end -> name of the column of a table; default: the same
    :raises ConfigError: there are columns for a Bliss corpus
    :raises DataError: the file can't be read, two utterances have the same tag, or a tag to keep is not there
    """
    root = os.path.dirname(path) if audio_root is None else audio_root
    suffix = os.path.splitext(path)[1].lower()
    if suffix in _SEPARATORS:
        found = list(_read_table(path, _SEPARATORS[suffix], root, columns or {}))
    elif columns:
        raise FileError("--columns is for tables (.tsv, .csv), which %r is not" % path)
    elif is_bliss(path):
        found = list(_read_bliss(path, root))
    else:
        raise FileDataError("%r is neither a table (.tsv, .csv) nor a Bliss corpus (XML with the root <corpus>)" % path)
    _check_names(found)
    if segments is not None:
        found = _chosen(found, read_seq_tags(segments), segments)
    if not found:
        raise FileDataError("%r has no utterances" % path)
    return found


def _read_table(path: str, separator: str, root: str, given: Mapping[str, str]) -> Iterator[Utterance]:
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            # tabs separate whatever stands between them; commas may stand within quotes
            reader = (
                csv.DictReader(file, delimiter=separator, quoting=csv.QUOTE_NONE, strict=True)
                if separator == "\t"
                else csv.DictReader(file, delimiter=separator, strict=True)
            )
            columns = [name or "" for name in reader.fieldnames or []]
            for name in dict.fromkeys(("file", "text", *given)):
                column = given.get(name, name)
                if column not in columns:
                    hint = "" if name in given else " If it is called otherwise, add --columns %s=COLUMN." % name
                    text = "%s: there is no column %r. %s%s"
                    raise FileDataError(text % (path, column, did_you_mean(column, columns), hint))
            reader.fieldnames = _own_names(columns, given)
            for row in reader:
                yield _utterance_of_row(row, "%s, line %d" % (path, reader.line_num), root)
    except OSError as exc:
        raise FileDataError("%r can't be read: %s" % (path, exc.strerror or exc)) from exc
    except (csv.Error, UnicodeDecodeError) as exc:
        raise FileDataError("%r is damaged: %s" % (path, exc)) from exc


def _own_names(columns: list[str], given: Mapping[str, str]) -> list[str]:
    """Return our names of the columns; one that has such a name, but for which another is given, gets a number."""
    ours = {column: name for name, column in given.items()}
    return ["%s_%d" % (c, i) if c in given and c not in ours else ours.get(c, c) for i, c in enumerate(columns, 1)]


def _utterance_of_row(row: dict[Any, Any], place: str, root: str) -> Utterance:
    if None in row or None in row.values():
        raise FileDataError("%s: there are %s entries than columns" % (place, "more" if None in row else "fewer"))
    start, end = _seconds(row.get("start"), place) or 0.0, _seconds(row.get("end"), place)
    if not row["file"]:
        raise FileDataError("%s: the column 'file' is empty" % place)
    if end is not None and end <= start:
        raise FileDataError("%s: the end, %g s, is not after the start, %g s" % (place, end, start))
    member = _member(os.path.splitext(row["file"])[0])
    if start or end is not None:
        member += "/%s_%s" % (row.get("start") or "0", row.get("end") or "end")
    return Utterance(
        place=place,
        name=row.get("seq_name") or member,
        text=" ".join(row["text"].split()),
        audio=os.path.join(root, row["file"]),
        member=member,
        start=start,
        end=end,
        further={name: value for name, value in row.items() if name not in OWN_COLUMNS},
        relative_audio=row["file"],
    )


def _member(path: str) -> str:
    """Return a path for use inside a zip: relative, without ``..``."""
    return "/".join(part for part in path.replace("\\", "/").split("/") if part not in ("", ".", ".."))


def _seconds(text: Optional[str], place: str) -> Optional[float]:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise FileDataError("%s: %r is not a time in seconds" % (place, text))
    return value


def _read_bliss(path: str, root: str) -> Iterator[Utterance]:
    segments = list(read_bliss(path))
    seen: dict[str, int] = {}
    common = os.path.commonpath([os.path.dirname(s.audio or "") or "." for s in segments]) if segments else ""
    for segment in segments:
        start, end = segment.seconds
        member = _member(segment.name)
        if segment.audio is not None:
            recording = os.path.relpath(os.path.splitext(segment.audio)[0], common or ".")
            member = "%s/%s_%s" % (_member(recording), segment.start or "0", segment.end or "end")
        seen[member] = seen.get(member, 0) + 1
        if seen[member] > 1:  # e.g. the tracks of a recording
            member += "_%d" % seen[member]
        yield Utterance(
            place="%s, segment %r" % (path, segment.name),
            name=segment.name,
            text=segment.text,
            audio=None if segment.audio is None else os.path.join(root, segment.audio),
            member=member,
            start=start,
            end=end,
            further={"speaker_name": segment.speaker},
            relative_audio=segment.audio,
            track=segment.track,
        )


def _check_names(utterances: list[Utterance]) -> None:
    for what in ("name", "member"):
        seen: dict[str, Utterance] = {}
        for utterance in utterances:
            value = getattr(utterance, what)
            if value in seen:
                first = seen[value].place
                fix = "Give different tags in a column seq_name." if what == "name" else "Rename a file."
                raise FileDataError("%s: %r is also at %s. %s" % (utterance.place, value, first, fix))
            seen[value] = utterance


def _chosen(utterances: list[Utterance], tags: list[str], path: str) -> list[Utterance]:
    names = {utterance.name for utterance in utterances}
    missing = [tag for tag in tags if tag not in names]
    if missing:
        hint = did_you_mean(missing[0], sorted(names)[:2000])
        text = "%r: %d of its sequences are not in the corpus, e.g. %r. %s"
        raise FileDataError(text % (path, len(missing), missing[0], hint))
    wanted = set(tags)
    return [utterance for utterance in utterances if utterance.name in wanted]
