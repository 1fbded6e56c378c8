"""The learning-rate file: rate and scores of each epoch, in Python syntax.

``{1: EpochData(learningRate=0.1, error={'dev_score': 2.5}), ...}``. It is read by a parser for just these
expressions: the file is data, nothing in it is executed.
"""

from __future__ import annotations

import ast
import errno
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from returnn_tf.config.errors import DataError, RateDataError
from returnn_tf.datasets.core.safe_files import open_regular
from returnn_tf.engine.support.disk_errors import not_writable, retried
from returnn_tf.logging.log import log
from returnn_tf.util.temporary import Temporary, exclusive

META = ":meta:"
_MULTI_LINE_FROM = 40
_MAX_BYTES = 1 << 26
_LOCK_SECONDS = 30.0
_LARGEST_RATE = 3.4028234e38  # of float32


@dataclass
class EpochData:
    """The learning rate of an epoch, and its scores and errors by name; names with ":meta:" hold other facts."""

    learning_rate: float
    error: dict[str, Any] = field(default_factory=dict)


def read_file(path: str) -> dict[int, EpochData]:
    """Return the epochs of a learning-rate file.

    :raises DataError: if it can't be read or has invalid contents
    """
    try:
        with open_regular(path) as f:
            text = f.read(_MAX_BYTES + 1).decode("utf8")
    except FileNotFoundError:
        raise RateDataError("learning-rate file %r not found" % path) from None
    except (OSError, UnicodeDecodeError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise RateDataError("learning-rate file %r can't be read: %s" % (path, reason)) from None
    try:
        if len(text) > _MAX_BYTES:
            raise RateDataError("it has more than %d bytes" % _MAX_BYTES)
        return parse(text)
    except DataError as exc:
        raise RateDataError(
            "learning-rate file %s: %s. Fix it, or remove it to start a new one" % (path, exc)
        ) from None


def parse(text: str) -> dict[int, EpochData]:
    """Return the epochs in the text of a learning-rate file; empty for an empty text.

    :raises DataError: naming the line
    """
    if not text.strip():
        return {}
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        value = _value(tree)
    except SyntaxError as exc:
        raise RateDataError("line %s: %s" % (exc.lineno, exc.msg)) from None
    except (ValueError, RecursionError, MemoryError) as exc:
        raise exc if isinstance(exc, DataError) else RateDataError(str(exc)) from None
    if not isinstance(value, dict):
        raise RateDataError("expected {epoch: EpochData(...), ...}")
    for epoch, data in value.items():
        if not isinstance(epoch, int) or not isinstance(data, EpochData):
            raise RateDataError("entry %r: expected <epoch>: EpochData(learningRate=..., error={...})" % (epoch,))
    return value


def _value(node: ast.expr) -> Any:
    """Return the value of an allowed expression; anything else is an error."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
        keys = [_value(key) for key in node.keys if key is not None]
        if not all(isinstance(key, (int, float, str)) for key in keys):
            raise RateDataError("line %d: a key of a dict is neither a number nor a string" % node.lineno)
        return dict(zip(keys, map(_value, node.values)))
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(v) for v in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        operand = _value(node.operand)
        if isinstance(operand, (int, float)):
            return -operand if isinstance(node.op, ast.USub) else operand
    name = _dotted(node)
    if name and name.split(".")[-1] in ("nan", "inf"):
        return float(name.split(".")[-1])
    if isinstance(node, ast.Call):
        return _call(node)
    raise RateDataError("line %d: only numbers, strings, dicts and EpochData(...) may occur here" % node.lineno)


def _call(node: ast.Call) -> Any:
    name = _dotted(node.func).split(".")[-1]
    args = [_value(a) for a in node.args]
    kwargs = {k.arg: _value(k.value) for k in node.keywords if k.arg}
    if name == "EpochData":
        return _epoch_data(node.lineno, args, kwargs)
    if name in ("float", "float32", "float64") and len(args) == 1 and not kwargs:
        try:
            return float(args[0])
        except (TypeError, ValueError):
            pass
    raise RateDataError("line %d: %s(...) may not occur here" % (node.lineno, name or "a call"))


def _epoch_data(line: int, args: list[Any], kwargs: dict[str, Any]) -> EpochData:
    given = dict(zip(("learningRate", "error"), args), **kwargs)
    rate: Any = given.pop("learningRate", given.pop("learning_rate", None))
    error: Any = given.pop("error", None)
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or given or len(args) > 2:
        raise RateDataError("line %d: expected EpochData(learningRate=<number>, error={...})" % line)
    if error is None:
        error = {}
    if not isinstance(error, dict) or not all(isinstance(key, str) for key in error):
        raise RateDataError("line %d: error must be a dict with strings as keys" % line)
    return EpochData(rate, error)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return "%s.%s" % (_dotted(node.value), node.attr)
    return ""


def update_file(path: str, change: Callable[[dict[int, EpochData]], Mapping[int, EpochData]]) -> None:
    """Replace the file by what a function makes of its content, under a lock: nothing of other processes gets lost.

    The file appears under its name when it is complete, so that nobody reads a partial one.

    :param change: old epochs -> new ones. Those of a file that has become unreadable are none, with a warning
    :raises DataError: the disk is full, even after retries
    :raises ConfigError: it can't be written for another reason
    """
    try:
        with exclusive(path, _LOCK_SECONDS) as held:
            if not held:
                log.write(4, "%s can't be locked: scores that another process writes now may get lost" % path)
            try:
                before = read_file(path) if os.path.exists(path) else {}
            except DataError as exc:
                log.warn("%s. It is replaced." % exc)
                before = {}
            text = format_epochs(change(before))
            retried(lambda: _replace(path, text))
    except OSError as exc:
        raise _not_writable(path, exc) from exc


def _replace(path: str, text: str) -> None:
    with Temporary(path, clean=False) as temporary:
        temporary.write(text.encode("utf8"))
        temporary.publish()


def prepare_file(path: str) -> None:
    """Create the folder of the file and check that the file can be written, before any epoch is trained.

    :raises ConfigError: it can't be written
    """
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        Temporary(path).remove()
    except OSError as exc:
        raise _not_writable(path, exc) from exc


def _not_writable(path: str, exc: OSError) -> Exception:
    return not_writable("learning_rate_file %r" % path, exc, topic="learning-rate")


def format_epochs(epochs: Mapping[int, EpochData]) -> str:
    """Return the text of the file: one entry per line, long dicts one item per line, keys sorted."""
    lines = ["{\n"]
    for epoch, data in sorted(epochs.items()):
        lines.append(
            "%d: EpochData(learningRate=%s, error=%s),\n" % (epoch, _format(data.learning_rate), _format(data.error))
        )
    return "".join(lines + ["}\n"])


def _format(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "float('%s')" % value
    if isinstance(value, dict):
        return _joined("{", ["%r: %s" % (k, _format(v)) for k, v in sorted(value.items())], "}")
    if isinstance(value, (list, tuple)):
        return _joined("[", [_format(v) for v in value], "]")
    return repr(value)


def _joined(left: str, items: list[str], right: str) -> str:
    if sum(map(len, items)) >= _MULTI_LINE_FROM:
        return "%s\n%s%s" % (left, "".join(item + ",\n" for item in items), right)
    return left + ", ".join(items) + right


def unusable_rate(rate: float) -> Optional[str]:
    """Return the reason why a learning rate is unusable, or None."""
    if not abs(rate) <= _LARGEST_RATE:  # NaN, too
        return "is not a finite number of 32 bits"
    return "is negative" if rate < 0 else None


def scores_of(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries which are scores or errors, without the ":meta:" ones."""
    return {key: value for key, value in error.items() if not key.startswith(META)}


def best_epochs(epochs: Mapping[int, EpochData], key: str, count: Optional[int] = None) -> list[int]:
    """Return the epochs with a finite value of ``key``, best (lowest) first; ties go to the earlier epoch."""
    values = {epoch: data.error[key] for epoch, data in epochs.items() if _is_finite(data.error.get(key))}
    return sorted(values, key=lambda e: (values[e], e))[:count]


def leading_score(names: Iterable[str]) -> Optional[str]:
    """Return the score that stands for a run in an overview: an error on dev, else a score on dev, else any."""
    names = list(names)
    wanted = (name for kind in ("dev_error", "dev_score", "dev_", "") for name in names if name.startswith(kind))
    return next(wanted, None)


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
