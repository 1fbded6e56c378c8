"""``returnn-tf check --fix``: writes the suggestions that are certain into the files of a config.

Certain is a misspelt name of this program (an option, a class, a setting) with one nearest spelling, a letter or two
away, and, with ``--migrate``, an older name. Names of layers and data are the user's: the mistake may be another one.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import io
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from typing import Optional

from returnn_tf.cli.check.migration import OLD, MigrationNote
from returnn_tf.cli.check.whole_config import Fault
from returnn_tf.cli.shared.locator import Locator
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandError, edit_distance, nearest_names
from returnn_tf.config.loading import encoding_of, form_of, without_comments
from returnn_tf.config.places import Span
from returnn_tf.config.settings import all_settings
from returnn_tf.util.temporary import Temporary

_WRONG = re.compile(r"\bunknown [\w ]+ '([^'\n]+)'|config key '([^'\n]+)'(?: \([^\n]*?\))? is not a known setting")
_SUGGESTED = re.compile(r"\bDid you mean '([^'\n]+)'\?")
_CLASS_TODAY = re.compile(r"'class': '(\w+)'")
_NAME_TODAY = re.compile(r"(\w+) = \.\.\.")
_STRING = re.compile(r"([\"'])(.*)\1", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Fix:
    """A name to replace by another one.

    :param span: of the name, with its quotes
    :param old: the text there
    :param new: the text in its place
    """

    span: Span
    old: str
    new: str


def certain_fixes(
    config: Config, locator: Locator, faults: Iterable[Fault], notes: Iterable[MigrationNote]
) -> list[Fix]:
    """Return what is certain of the suggestions for a config, in the files that the command line names.

    :param notes: of ``--migrate``, whose older names are replaced
    """
    found = [_of_fault(config, locator, fault) for fault in faults]
    found += [_of_note(config, note) for note in notes if note.kind == OLD]
    return list(dict.fromkeys(fix for fix in found if fix is not None))


def is_suggestion(fault: Fault) -> bool:
    """Return whether a message suggests another spelling."""
    return bool(_SUGGESTED.search(fault.text))


def _of_fault(config: Config, locator: Locator, fault: Fault) -> Optional[Fix]:
    """Return the fix for a misspelt name."""
    first = fault.text.partition("\n")[0]
    wrong, suggested = _WRONG.search(first), _SUGGESTED.search(first)
    if wrong is None or suggested is None:
        return None
    at = locator.locate(fault.text, fault.network)
    old, new = wrong.group(1) or wrong.group(2), suggested.group(1)
    if at.span is None or new in at.keys or not _is_typing_mistake(old, new):
        return None
    if wrong.group(2) and (nearest_names(old, all_settings()) != [new] or new in config.keys()):
        return None
    return _replacing(config, at.span, old, new)


def _of_note(config: Config, note: MigrationNote) -> Optional[Fix]:
    """Return the fix for an older name of a class or a setting."""
    today = _CLASS_TODAY.fullmatch(note.write)
    if today is not None and note.at.span is not None:
        text = _part(config, note.at.span)
        old = _STRING.fullmatch(text or "")
        return None if old is None else _replacing(config, note.at.span, old.group(2), today.group(1))
    today = _NAME_TODAY.fullmatch(note.write)
    if today is None or note.at.span is None or today.group(1) in config.keys():
        return None
    return _replacing(config, note.at.span, note.what, today.group(1))


def _is_typing_mistake(old: str, new: str) -> bool:
    """Return whether a name differs by a letter or two, but not by a number, from another one."""
    same_digits = re.sub(r"\D", "", old) == re.sub(r"\D", "", new)
    return same_digits and edit_distance(old.lower(), new.lower()) <= max(1, min(2, len(new) // 4))


def _replacing(config: Config, span: Span, old: str, new: str) -> Optional[Fix]:
    """Return the fix that writes a name in place of another one; None if that is not the text there."""
    text = _part(config, span)
    string = _STRING.fullmatch(text or "")
    if string is not None and string.group(2) == old:
        return Fix(span, string.group(), string.group(1) + new + string.group(1))
    # a variable is used elsewhere, too
    is_used = len(re.findall(r"\b%s\b" % re.escape(old), "\n".join(config.sources().values()))) > 1
    if text != old or not new.isidentifier() or is_used:
        return None
    return Fix(span, old, new)


def _part(config: Config, span: Span) -> Optional[str]:
    """Return the text of a span that is on one line of a file of the command line, else None."""
    lines = config.sources().get(span.file, "").split("\n")
    if span.line != span.end_line or span.line > len(lines):
        return None
    return lines[span.line - 1][span.column - 1 : span.end_column - 1]


def write(config: Config, fixes: Sequence[Fix], copied: dict[str, str]) -> str:
    """Write fixes to the files of a config, and return the differences.

    A file is replaced as a whole; it keeps its encoding, ends of lines and permissions, and a copy remains.

    :param copied: the files of which there is a copy -> its path; extended
    :raises CommandError: a file has changed since it was read, or can't be written
    """
    diffs = []
    for path in dict.fromkeys(fix.span.file for fix in fixes):
        before, after, encoding = _changed(config, path, [fix for fix in fixes if fix.span.file == path])
        try:
            if path not in copied:
                copied[path] = _copy(path)
            _replace(os.path.realpath(path), after.encode(encoding))
        except (OSError, UnicodeEncodeError) as exc:
            raise CommandError("check: --fix can't write %s: %s" % (path, getattr(exc, "strerror", exc))) from exc
        lines, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
        diffs.append("".join(difflib.unified_diff(lines, new, copied[path], path, n=1)))
    return "".join(diffs)


def _changed(config: Config, path: str, fixes: Sequence[Fix]) -> tuple[str, str, str]:
    """Return the text of a file before and after fixes, with its own ends of lines, and its encoding."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as exc:
        raise CommandError("check: --fix can't read %s: %s" % (path, exc.strerror)) from exc
    encoding = encoding_of(content)
    before = content.decode(encoding, "replace")
    if io.StringIO(before, newline=None).read() != config.sources()[path] or "\r" in before.replace("\r\n", ""):
        raise CommandError("check: --fix: %s has changed since it was read. Run it again" % path)
    lines = before.split("\n")
    for fix in sorted(fixes, key=lambda fix: (fix.span.line, fix.span.column), reverse=True):
        line = lines[fix.span.line - 1]
        assert line[fix.span.column - 1 : fix.span.end_column - 1] == fix.old
        lines[fix.span.line - 1] = line[: fix.span.column - 1] + fix.new + line[fix.span.end_column - 1 :]
    after = "\n".join(lines)
    form = form_of(path, after)
    if form != "lines":
        ast.parse(without_comments(after) if form == "json" else after)  # replacing a name by one can't break it
    return before, after, encoding


def _copy(path: str) -> str:
    """Copy a file to one beside it with the suffix ``.orig``, or a numbered one, and return its path."""
    number, copy = 1, path + ".orig"
    while os.path.lexists(copy):
        number, copy = number + 1, "%s.orig%d" % (path, number + 1)
    shutil.copy2(path, copy)
    return copy


def _replace(path: str, content: bytes) -> None:
    """Replace a file at once; it keeps its permissions."""
    with Temporary(path) as temporary:
        temporary.write(content)
        shutil.copymode(path, temporary.path)
        temporary.publish()
