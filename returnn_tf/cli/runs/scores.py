"""Final and best scores of runs, and what they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

from returnn_tf.cli.runs.differences import ABSENT
from returnn_tf.cli.runs.run import Run
from returnn_tf.engine.learning_rate.file import META, EpochData, best_epochs
from returnn_tf.engine.monitoring.curves import score_groups
from returnn_tf.logging.text import bytes_text, hms

Row = tuple[str, list[str]]

_SECONDS, _SPEED = META + "epoch_train_time_secs", META + "speed:frames_per_second"
_COMPUTE, _MEMORY = META + "speed:compute_share", META + "memory:"


def score_rows(runs: Sequence[Run]) -> list[Row]:
    """Return two rows for each score: the best, with its epoch, and that of the last epoch; ``*`` marks the lowest."""
    rows: list[Row] = []
    for keys in score_groups(run.scored for run in runs).values():
        for key in keys:
            best = [_best(run.scored, key) for run in runs]
            last = [_last(run.scored, key) for run in runs]
            rows += [("%s, best" % key, _texts(best)), ("%s, last" % key, _texts(last))]
    return rows


def effort_rows(runs: Sequence[Run]) -> list[Row]:
    """Return the epochs, the last learning rate, and time, speed and memory of the training as far as recorded."""
    rows = [
        ("epochs", [str(max(run.scored, default=0)) for run in runs]),
        ("learning rate, last", [_number(run.scored[max(run.scored)].learning_rate) for run in runs]),
        ("time of training", [_seconds(run.scored) for run in runs]),
        ("frames per second", [_median(run.scored, _SPEED, "%.0f") for run in runs]),
        ("computing share", [_median(run.scored, _COMPUTE, "%.0f%%", 100.0) for run in runs]),
        ("memory", [_memory(run.scored) for run in runs]),
    ]
    return [row for row in rows if any(text != ABSENT for text in row[1])]


def _best(epochs: Mapping[int, EpochData], key: str) -> Optional[tuple[int, float]]:
    found = best_epochs(epochs, key, 1)
    return (found[0], epochs[found[0]].error[key]) if found else None


def _last(epochs: Mapping[int, EpochData], key: str) -> Optional[tuple[int, float]]:
    scored = [epoch for epoch in epochs if isinstance(epochs[epoch].error.get(key), (int, float))]
    return (max(scored), float(epochs[max(scored)].error[key])) if scored else None


def _texts(values: Sequence[Optional[tuple[int, float]]]) -> list[str]:
    lowest = min((value[1] for value in values if value is not None), default=None)
    marked = len([value for value in values if value is not None]) > 1
    return [
        ABSENT if v is None else "%s%s (%d)" % (_number(v[1]), "*" if marked and v[1] == lowest else "", v[0])
        for v in values
    ]


def _number(value: float) -> str:
    return "%.4g" % value


def _values(epochs: Mapping[int, EpochData], name: str) -> list[float]:
    found = (data.error.get(name) for data in epochs.values())
    return sorted(value for value in found if isinstance(value, (int, float)))


def _median(epochs: Mapping[int, EpochData], name: str, form: str, factor: float = 1.0) -> str:
    values = _values(epochs, name)
    return form % (factor * values[len(values) // 2]) if values else ABSENT


def _seconds(epochs: Mapping[int, EpochData]) -> str:
    values = _values(epochs, _SECONDS)
    return hms(sum(values)) if values else ABSENT


def _memory(epochs: Mapping[int, EpochData]) -> str:
    """Return the largest memory of the process and of each GPU."""
    names = sorted({name for data in epochs.values() for name in data.error if name.startswith(_MEMORY)})
    parts = [(name[len(_MEMORY) :], max(_values(epochs, name))) for name in names]
    texts = [bytes_text(value) if name == "process" else "%s %s" % (name, bytes_text(value)) for name, value in parts]
    return ", ".join(texts) or ABSENT
