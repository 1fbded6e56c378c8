"""Small text and list files that belong to a corpus: read as data, never executed."""

from __future__ import annotations

import ast
import contextlib
import errno
import gzip
import io
import os
import pickle
import pickletools
import re
import stat
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from returnn_tf.config.errors import ConfigError, DataError, DatasetDataError, DatasetError, shown
from returnn_tf.config.user_code import result_of_config

_MEMO_WRITES = ("PUT", "BINPUT", "LONG_BINPUT")
_NOT_ASCII = re.compile(rb"\\x[89a-f][0-9a-f]")
_NUMBERS = ("inf", "-inf", "nan")
_PIECE = 1 << 20
MAX_BYTES = 1 << 31  # a decompressed file beyond this size is not a list of sequence tags


def path_of(value: Any, *, where: str) -> str:
    """Return a path that a config gives, or a function that returns it.

    :param where: prefix of errors
    :raises ConfigError: it is not a path
    """
    value = result_of_config(where, value) if callable(value) else value
    if isinstance(value, str) or (isinstance(value, os.PathLike) and isinstance(os.fspath(value), str)):
        return os.fspath(value)
    raise DatasetError("%s must be a path, not %s" % (where, shown(value)))


@contextlib.contextmanager
def wanted_by(where: str) -> Iterator[None]:
    """Prefix errors in files by the dataset and option that name them."""
    try:
        yield
    except (ConfigError, DataError) as exc:
        error = DatasetError if isinstance(exc, ConfigError) else DatasetDataError
        raise error("%s: %s" % (where, exc)) from exc


def check_regular(path: str) -> None:
    """Refuse pipes, sockets and devices: reading them may block forever, and can't be repeated.

    :raises OSError: with a text for users in its ``strerror``; also if there is no such file
    """
    if stat.S_IFMT(os.stat(path).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):  # to open a directory is an error
        raise OSError(errno.ESPIPE, "it is a pipe or a device; copy it to a regular file", path)


def open_regular(path: str) -> BinaryIO:
    """Open a file of the user for reading, see `check_regular`.

    :raises OSError: it is missing, unreadable or no regular file
    """
    check_regular(path)
    return open(path, "rb")


def read_bytes(path: str, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Read a file, decompressed if the name ends in ``.gz``.

    :raises DataError: if it is missing, unreadable, damaged or larger than ``max_bytes``
    """
    try:
        with open_regular(path) as file, gzip.GzipFile(fileobj=file) if path.endswith(".gz") else file as handle:
            buffer = io.BytesIO()  # read(max_bytes) would allocate as much
            while buffer.tell() <= max_bytes:
                piece = handle.read(_PIECE)
                if not piece:
                    break
                buffer.write(piece)
    except FileNotFoundError:
        raise DatasetDataError("file %r does not exist (current directory: %s)" % (path, os.getcwd())) from None
    except (OSError, EOFError, zlib.error) as exc:
        raise DatasetDataError("file %r cannot be read: %s" % (path, getattr(exc, "strerror", None) or exc)) from exc
    if buffer.tell() > max_bytes:
        raise DatasetDataError("file %r holds more than %d bytes; is it the right one?" % (path, max_bytes))
    return buffer.getvalue()


def read_text(path: str) -> str:
    """Read a UTF-8 text file (``.gz`` allowed), without a byte order mark; DataError if it is not one."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line, wrong = exc.object.count(b"\n", 0, exc.start) + 1, exc.object[exc.start]
        raise DatasetDataError(
            "file %r is not a UTF-8 text file: line %d, byte 0x%02x. Convert it: iconv -t utf-8" % (path, line, wrong)
        ) from exc


def read_lines(path: str) -> list[str]:
    """Read the lines of a text file that are not empty; only newlines end them, not all that ``splitlines`` knows."""
    return [line for line in read_text(path).replace("\r\n", "\n").split("\n") if line]


class _Numbers(ast.NodeTransformer):
    """Replaces by these numbers the forms in which Python programs write infinity and NaN: inf, float('inf')."""

    def visit_Name(self, node: ast.Name) -> Any:
        """Return the number of a name."""
        return _number(node, node.id)

    def visit_Call(self, node: ast.Call) -> Any:
        """Return the number of a call of float with a text."""
        argument = node.args[0] if len(node.args) == 1 and not node.keywords else None
        if isinstance(node.func, ast.Name) and node.func.id == "float" and isinstance(argument, ast.Constant):
            return _number(node, argument.value)
        return node


def _number(node: ast.expr, name: Any) -> ast.expr:
    is_number = isinstance(name, str) and name in _NUMBERS
    return ast.copy_location(ast.Constant(float(name)), node) if is_number else node


def read_literal(path: str) -> Any:
    """Read a Python literal (numbers, also inf and nan, strings, lists, dicts, ...) from a text file."""
    text = read_text(path)
    try:
        return ast.literal_eval(_Numbers().visit(ast.parse(text.strip(), mode="eval")))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as exc:
        reason = re.sub(r"<ast\.(\w+) object at \w+>", r"\1", str(exc))[:200]
        raise DatasetDataError(
            "file %r does not hold a Python literal such as {'tag': 12, ...}: %s" % (path, reason)
        ) from exc


class _PlainUnpickler(pickle.Unpickler):
    """Admits only containers, strings and numbers: otherwise a pickle could run any program."""

    allowed = {
        (module, cls.__name__): cls for module in ("builtins", "__builtin__") for cls in (set, frozenset)
    }  # the second one: pickles of protocol 2 and older

    def find_class(self, module: str, name: str) -> Any:
        """Reject everything but the builtin containers."""
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError("it contains %s.%s" % (module, name))
        return self.allowed[(module, name)]

    def persistent_load(self, pid: Any) -> Any:
        """Reject persistent objects, which a list of tags never has."""
        raise pickle.UnpicklingError("it refers to persistent objects")


def read_plain_pickle(path: str, *, fix: str = "Write the tags to a text file, one per line.") -> Any:
    """Read a pickle of lists, tuples, sets, dicts, strings and numbers; strings of Python 2 are read as UTF-8.

    Anything else is a DataError and is not executed.

    :param fix: what to do instead, for the message
    """
    try:
        content = read_bytes(path)
        _check_sizes(content)
        return _PlainUnpickler(io.BytesIO(content), encoding="utf8").load()
    except DataError:
        raise
    except Exception as exc:  # a damaged pickle raises nearly anything
        raise DatasetDataError(
            "file %r: only plain lists, dicts, strings and numbers are read from a pickle, but: %s. "
            "%s" % (path, exc, fix)
        ) from exc


def _check_sizes(content: bytes) -> None:
    """Check the sizes in a pickle, for which the unpickler allocates memory before it looks for the content.

    :raises pickle.UnpicklingError: an index of its memo is beyond the size of the file
    :raises ValueError: other sizes are
    """
    if not content.startswith(b"\x80"):  # as text: pickletools reads only ASCII in the strings of Python 2
        content = _NOT_ASCII.sub(b"?", content)
    for opcode, argument, _ in pickletools.genops(content):
        index: Any = argument
        if opcode.name in _MEMO_WRITES and int(index) > len(content):
            raise pickle.UnpicklingError("it is damaged: its memo would have %d entries" % int(index))


def read_seq_tags(path: str) -> list[str]:
    """Read sequence tags from a text file (one per line, ``.gz`` allowed) or from a ``.pkl`` list."""
    if not path.endswith((".pkl", ".pkl.gz")):
        return read_lines(path)
    content = read_plain_pickle(path)
    if not isinstance(content, (list, tuple, set, frozenset)) or not all(isinstance(tag, str) for tag in content):
        raise DatasetDataError("file %r must hold a list of sequence tags, not %s" % (path, type(content).__name__))
    return list(content)


def read_text_dict(path: str) -> dict[str, Any]:
    """Read a dict with strings as keys, a Python literal in a text file (``.gz`` allowed)."""
    content = read_literal(path)
    if not isinstance(content, dict) or not all(isinstance(tag, str) for tag in content):
        raise DatasetDataError("file %r must hold a dict from tags to texts, not %s" % (path, type(content).__name__))
    return content


def is_length(value: Any) -> bool:
    """Return whether a value orders sequences: a number, not NaN."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def read_seq_lens(path: str) -> dict[str, float]:
    """Read a dict sequence tag -> length, a Python literal in a text file (``.gz`` allowed)."""
    content = read_literal(path)
    if not isinstance(content, dict):
        raise DatasetDataError(
            "file %r must hold a dict of sequence tag -> length, not %s" % (path, type(content).__name__)
        )
    for tag, length in content.items():
        if not isinstance(tag, str) or not is_length(length):
            raise DatasetDataError("file %r: %r: %r is not a pair of sequence tag and length" % (path, tag, length))
    return content
