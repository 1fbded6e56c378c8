"""Reads one config file: detects which of the three forms it has, and turns its mistakes into ConfigErrors.

The forms: Python (executed, the globals become settings), JSON with comments, and lines "key value" with "include".
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import keyword
import os
import re
import tokenize
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Optional

from returnn_tf.config.errors import ConfigError, ConfigFileError, shortened
from returnn_tf.config.registry import missing_rooms
from returnn_tf.config.user_code import described

_MOST_BYTES = 64 << 20
_MOST_LETTERS = 300  # of a line in an error

_FORMS = "A config is Python code, JSON (starts with '{'), or lines 'key value'."
_JSON_TOKENS = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_ENCODING = re.compile(rb"\b(file)?(en)?coding[:=]")
_KEY_VALUE = re.compile(r"([A-Za-z_][\w.-]*)[ \t]+(\S.*)$")


@dataclass
class PythonSource:
    """A compiled Python config, with what the misspelling check and error messages need to know about it."""

    code: CodeType
    lines_of_keys: dict[str, int] = field(default_factory=dict)
    names_read: set[str] = field(default_factory=set)
    #: The first line outside of functions that reads a name.
    lines_of_reads: dict[str, int] = field(default_factory=dict)


def read_text(path: str) -> str:
    """Return the text of a config file: UTF-8, or the encoding that it names as Python files do.

    :raises ConfigError: it is missing, unreadable or not text
    """
    try:
        with open(path, "rb") as file:  # which may be a pipe
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise _wrong(path, "has more than %d MB, so it is not a config" % (_MOST_BYTES >> 20))
        return io.TextIOWrapper(io.BytesIO(content), encoding_of(content)).read()
    except SyntaxError as exc:
        unknown = str(exc.msg).startswith("unknown encoding")
        raise _wrong(path, exc.msg if unknown else "not a text file. " + _FORMS) from None
    except FileNotFoundError:
        text = "config file %r not found (working directory: %s)" % (path, os.getcwd())
        raise ConfigFileError(text, file=path) from None
    except UnicodeError:
        raise _wrong(path, "not a text file. " + _FORMS) from None
    except LookupError as exc:  # the encoding is one of bytes, such as "hex"
        raise _wrong(path, str(exc)) from None
    except OSError as exc:
        text = "config file %r can't be read: %s" % (path, exc.strerror or exc)
        raise ConfigFileError(text, file=path) from None


def encoding_of(content: bytes) -> str:
    """Return the encoding of a config as Python finds it.

    Python finds one called "greedy" in the comment "decoding: greedy", too, which is ignored here.

    :raises SyntaxError: it is unknown
    """
    try:
        return tokenize.detect_encoding(io.BytesIO(content).readline)[0]
    except SyntaxError:
        if any(_ENCODING.search(line) for line in content.split(b"\n", 2)[:2]):
            raise
        return "utf8"


def form_of(path: str, text: str) -> str:
    """Return ``"python"``, ``"json"`` or ``"lines"``."""
    if text.startswith("#!") or path.endswith(".py"):
        return "python"
    if text.lstrip().startswith("{"):
        return "json"
    return "lines" if _looks_like_lines(text) else "python"


def _looks_like_lines(text: str) -> bool:
    """Return whether each line is a key and one value. Python files without "#!" are common, so this is strict."""
    found = False
    for _, line in _content_lines(text):
        match = _KEY_VALUE.match(line)
        if not match or keyword.iskeyword(match.group(1)):
            return False
        value = match.group(2)
        if value[0] in "=:" or re.match(r"[-+*/%|&^@<>]{1,2}=", value):
            return False
        if len(value.split()) > 1 and value[0] not in "\"'[({":
            return False
        found = True
    return found


def _content_lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#", 1)[0].rstrip()
        if line.strip():
            yield number, line


def parse_lines(path: str, text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, key, value text) for each line of a "key value" file; ``include`` is a key, too."""
    for number, line in _content_lines(text):
        match = _KEY_VALUE.match(line.strip())
        if not match:
            raise _wrong(path, "%s\n  expected 'key value' on each line" % line.strip(), number)
        yield number, match.group(1), match.group(2)


def without_comments(text: str) -> str:
    """Return JSON with blanks in place of its ``//`` and ``/* */`` comments."""

    def blank(match: re.Match[str]) -> str:
        token = match.group()
        return token if token.startswith('"') else re.sub(r"[^\n]", " ", token)

    return _JSON_TOKENS.sub(blank, text)


def parse_json(path: str, text: str) -> dict[str, Any]:
    """Parse a JSON config with comments."""
    try:
        values = json.loads(without_comments(text))
    except json.JSONDecodeError as exc:
        raise _wrong(path, "not valid JSON: %s" % exc.msg, exc.lineno, text) from None
    if not isinstance(values, dict):
        raise _wrong(path, "expected one JSON object {...}, got %s" % type(values).__name__)
    return values


def compile_python(path: str, text: str, fixed: Mapping[str, str]) -> PythonSource:
    """Compile a Python config.

    :param fixed: name -> text: assignments outside of functions give it this value instead of their own
    :raises ConfigError: with file, line and the line's text if it isn't Python
    """
    try:
        tree = ast.parse(text, path)
        if fixed:
            tree = _Fixed(fixed).visit(tree)
        code = compile(tree, path, "exec", dont_inherit=True)
    except SyntaxError as exc:
        what = "not valid Python: %s" % exc.msg
        raise _wrong(path, what, exc.lineno or 1, text, column=exc.offset, hint=_FORMS) from None
    except ValueError as exc:  # NUL bytes
        raise _wrong(path, "not valid Python: %s. %s" % (exc, _FORMS)) from None
    except (RecursionError, MemoryError):  # which the parser raises, too
        what = "Python can't read it: an expression has too many parts or parentheses. Write it as several statements"
        raise _wrong(path, what) from None
    source = PythonSource(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            _check_duplicate_layers(path, text, node)
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                source.names_read.add(node.id)
            else:
                source.lines_of_keys.setdefault(node.id, node.lineno)
    for statement in tree.body:  # the last one that is certainly executed
        for target in getattr(statement, "targets", ()):
            if isinstance(statement, ast.Assign) and isinstance(target, ast.Name):
                source.lines_of_keys[target.id] = target.lineno
    with contextlib.suppress(RecursionError):  # of a long sum, which Python reads: only for warnings
        _Reads(source.lines_of_reads).visit(tree)
    return source


class _OutsideOfFunctions(ast.NodeVisitor):
    """Visits the code that runs while a config is loaded, but what functions do."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return node


class _Fixed(_OutsideOfFunctions, ast.NodeTransformer):
    """Adds an assignment of a fixed value after each assignment to a name.

    :param values: name -> value
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def visit(self, node: ast.AST) -> Any:
        # no statement is within an expression, which may be deeper than Python can recurse
        return node if isinstance(node, ast.expr) else super().visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        return node  # its names are its own

    def visit_Assign(self, node: ast.Assign) -> Any:
        return [node, *self._assigned(node.targets, node)]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        return [node, *self._assigned([node.target] if node.value is not None else [], node)]

    def _assigned(self, targets: Iterable[ast.expr], node: ast.stmt) -> Iterator[ast.stmt]:
        for target in targets:
            if isinstance(target, ast.Name) and target.id in self._values:
                fixed = ast.Assign([ast.Name(target.id, ast.Store())], ast.Constant(self._values[target.id]))
                yield ast.fix_missing_locations(ast.copy_location(fixed, node))


class _Reads(_OutsideOfFunctions):
    """Collects the first line that reads a name."""

    def __init__(self, lines: dict[str, int]) -> None:
        self._lines = lines

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._lines.setdefault(node.id, node.lineno)


def _check_duplicate_layers(path: str, text: str, node: ast.Dict) -> None:
    """Refuse duplicate layer names: Python keeps only the last of two equal keys, silently losing a layer.

    :raises ConfigError: if a dict literal has two layers of the same name
    """
    lines: dict[str, int] = {}
    for key, value in zip(node.keys, node.values):
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str) and isinstance(value, ast.Dict)):
            continue
        if not any(isinstance(k, ast.Constant) and k.value == "class" for k in value.keys):
            continue
        if key.value in lines:
            what = "two entries have the name %r, the first is in line %d. Rename one of them." % (
                key.value,
                lines[key.value],
            )
            raise _wrong(path, what, key.lineno, text)
        lines[key.value] = key.lineno


def run_python(path: str, text: str, code: CodeType, namespace: dict[str, Any]) -> None:
    """Execute a Python config in ``namespace``.

    :raises ConfigError: with file, line number and the offending line if it raises
    """
    try:
        exec(code, namespace)
    except (Exception, SystemExit) as exc:
        line = _line_of_exception(path, exc)
        if isinstance(exc, ImportError):
            what = _explain_import(exc)
        elif isinstance(exc, ConfigError):
            what = str(exc)
        else:
            what = described(exc)
        raise _wrong(path, what, line, text) from exc


def _explain_import(exc: ImportError) -> str:
    """Return the text for a failed import, with the fix."""
    text = "%s: %s. Install it, or put the file into the folder of the config." % (type(exc).__name__, exc)
    return " ".join([text, *(missing_rooms() if isinstance(exc, ModuleNotFoundError) else [])])


def _line_of_exception(path: str, exc: BaseException) -> Optional[int]:
    """Return the innermost line of the file itself that was running."""
    if isinstance(exc, SyntaxError) and exc.filename == path:
        return exc.lineno
    lines: list[Optional[int]] = [f.lineno for f in traceback.extract_tb(exc.__traceback__) if f.filename == path]
    return lines[-1] if lines else None


def _line_text(text: str, line: Optional[int]) -> str:
    lines = text.splitlines()
    return lines[line - 1] if line is not None and 0 < line <= len(lines) else ""


def _wrong(
    path: str, what: str, line: Optional[int] = None, text: str = "", *, column: Optional[int] = None, hint: str = ""
) -> ConfigFileError:
    """Return the error for a config file.

    :param text: of the file, of which the line is shown
    :param column: where to point in that line, from 1
    :param hint: the last line of the message
    """
    message = "%s: %s" % (path if line is None else "%s:%d" % (path, line), what)
    shown = _line_text(text, line)
    if shown.strip():
        message += "\n    " + shortened(shown.strip(), most=_MOST_LETTERS)
        offset = (column or 0) - 1 - (len(shown) - len(shown.lstrip()))
        if offset >= 0 and len(shown.strip()) <= _MOST_LETTERS:
            message += "\n    " + " " * offset + "^"
    return ConfigFileError("%s\n%s" % (message, hint) if hint else message, file=path, line=line)
