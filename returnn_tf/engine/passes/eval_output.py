"""Output files of an evaluation: scores of datasets, and scores of single sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import SettingError, did_you_mean
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.passes.loss_positions import KINDS, LENGTHS, unknown_loss
from returnn_tf.engine.passes.scored_pass import PassResult
from returnn_tf.engine.support import atomic_files as files
from returnn_tf.engine.support.disk_errors import not_writable
from returnn_tf.engine.support.step_result import StepResult

_MULTI_LINE_FROM = 40  # characters of all items of a dict


def write_scores(path: str, results: Mapping[str, PassResult]) -> None:
    """Write ``eval_output_file``.

    It is a Python dict: dataset -> {"score": {"cost:<layer>": number}, "error": {...}}.
    """
    content = {name: {"score": result.scores, "error": result.errors} for name, result in results.items()}
    text = "{\n%s}\n" % "".join("%r: %s,\n" % (name, _format(entry)) for name, entry in sorted(content.items()))
    _write_file("eval_output_file", path, text)


def _write_file(option: str, path: str, text: str) -> None:
    try:
        files.write_text(path, text)
    except OSError as exc:
        raise not_writable(
            "%s = %r" % (option, path), exc, "Choose another path, or fix its folder", topic="settings"
        ) from exc


def _format(value: Any) -> str:
    if not isinstance(value, dict):
        return repr(value) if np.isfinite(value) else "float('%s')" % value
    items = ["%r: %s" % (key, _format(item)) for key, item in sorted(value.items())]
    if sum(map(len, items)) >= _MULTI_LINE_FROM:
        return "{\n%s}" % "".join(item + ",\n" for item in items)
    return "{%s}" % ", ".join(items)


class SequenceScores:
    """``eval_output_file_per_seq``: the scores of each sequence, in the order of the corpus.

    :param loss: layer whose loss is the score, ``loss_name``
    :param fields: ``output_per_seq_format``
    :param file_format: ``txt`` (fields joined by ";") or ``py`` (dict from tag to fields)
    :raises ConfigError: unknown field or format
    """

    #: available fields of a sequence
    FIELDS: tuple[str, ...] = ("seq_tag", "seq_len", "score", "error", *KINDS)

    def __init__(self, loss: str, fields: Sequence[str], file_format: str) -> None:
        for field in fields:
            if field not in self.FIELDS:
                hint = did_you_mean(field, self.FIELDS)
                raise SettingError("output_per_seq_format: unknown field %r. %s" % (field, hint))
        if file_format not in _WRITERS:
            raise SettingError(
                "output_per_seq_file_format: unknown %r. %s" % (file_format, did_you_mean(file_format, _WRITERS))
            )
        self._loss = loss
        self._fields = list(fields)
        self._write = _WRITERS[file_format]
        self._rows: dict[int, tuple[str, dict[str, Any]]] = {}

    @property
    def fields_by_position(self) -> list[str]:
        """Return the fields with a number for each position."""
        return [field for field in self._fields if field in KINDS]

    def add(self, batch: Any, result: StepResult) -> None:
        """Add a batch of a single sequence."""
        assert batch.num_seqs == 1
        if self._loss not in result.losses:
            raise unknown_loss(self._loss, result.losses)
        count = result.counts[self._loss]
        tag = batch.seq_tags[0]
        values: dict[str, Any] = {
            "seq_tag": tag,
            "seq_len": batch.num_frames.get("data", max(batch.num_frames.values())),
            "score": np.float32(result.losses[self._loss] / count),
            "error": np.float32(result.errors.get(self._loss, float("nan")) / count),
        }
        for field in self.fields_by_position:
            values[field] = _numbers(result.positions[field][0, : result.positions[LENGTHS][0]])
        self._rows[batch.seq_indices[0]] = (tag, {field: values[field] for field in self._fields})

    def merge(self, world: World) -> None:
        """Merge the sequences of all processes."""
        for rows in world.gather_values(self._rows):
            self._rows.update(rows)

    def write(self, path: str) -> None:
        """Write the file atomically."""
        text = self._write([self._rows[index] for index in sorted(self._rows)])
        _write_file("eval_output_file_per_seq", path, text)


def _numbers(values: NDArray[Any]) -> str:
    """Return numbers, or lists of them, as a list in the syntax of Python."""
    return "[%s]" % ", ".join(_numbers(value) if value.ndim else str(np.float32(value)) for value in values)


def _text(rows: list[tuple[str, dict[str, Any]]]) -> str:
    return "".join(";".join(str(value) for value in values.values()) + "\n" for _, values in rows)


def _python(rows: list[tuple[str, dict[str, Any]]]) -> str:
    lines = []
    for tag, values in rows:
        items = ["%r: %s" % (key, repr(value) if key == "seq_tag" else value) for key, value in values.items()]
        lines.append("%r: {%s},\n" % (tag, ", ".join(items)))
    return "{\n%s}\n" % "".join(lines)


_WRITERS: dict[str, Callable[[list[tuple[str, dict[str, Any]]]], str]] = {"txt": _text, "py": _python}
