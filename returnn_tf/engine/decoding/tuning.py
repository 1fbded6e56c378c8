"""Scales on a grid: the error rate of each combination."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from returnn_tf.config.errors import CtcError, did_you_mean
from returnn_tf.engine.decoding.beam import BeamOptions
from returnn_tf.engine.transcripts.edit_distance import Errors

#: Options of the search that can be tuned -> their type.
TUNED = {
    "lm_scale": float, "word_score": float, "unknown_score": float, "loop_score": float, "forward_score": float,
    "prior_scale": float, "blank_scale": float,
    "beam_size": int, "beam_threshold": float, "labels_per_frame": int,
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A combination of values, and the errors with it."""

    values: Mapping[str, float]
    errors: Errors
    seconds: float


def grid(
    given: Mapping[str, Sequence[float]], options: BeamOptions, idle: Mapping[str, str] = MappingProxyType({})
) -> list[tuple[dict[str, float], BeamOptions]]:
    """Return each combination of values, and the options with them.

    :param given: option -> values
    :param idle: option that has no effect -> why
    :raises ConfigError: an option that can't be tuned, without effect or without values, or a wrong value
    """
    for name, values in given.items():
        if name not in TUNED:
            raise CtcError("tune: there is no scale %r. %s" % (name, did_you_mean(name, TUNED, max_listed=10)))
        if not values:
            raise CtcError("tune: %r has no values." % name)
        if name in idle:
            raise CtcError("tune: %s has no effect %s." % (name, idle[name]))
        for value in values:
            if not math.isfinite(value) or TUNED[name](value) != value:
                raise CtcError(
                    "tune: %s = %g is no %snumber." % (name, value, "whole " if TUNED[name] is int else "finite ")
                )
            if value <= 0 and name in ("blank_scale", "beam_size", "beam_threshold"):
                raise CtcError("tune: %s = %g must be above 0." % (name, value))
            if value < 0 and name == "labels_per_frame":
                raise CtcError("tune: %s = %g must be 0 or more." % (name, value))
    points = []
    for values in itertools.product(*given.values()):
        chosen = {name: TUNED[name](value) for name, value in zip(given, values)}
        points.append((chosen, replace(options, **chosen)))
    return points


def best_of(points: Sequence[Point]) -> Point:
    """Return the point with the fewest errors; of equal ones the first."""
    return min(points, key=lambda point: point.errors.total)


def table(points: Sequence[Point], what: str = "word errors") -> list[str]:
    """Return a table of the error rates and the seconds of decoding, a line for each point; the best is marked.

    :param what: is counted
    """
    names = list(points[0].values)
    rows = [
        [*("%g" % point.values[name] for name in names), "%.2f%%" % (100 * point.errors.rate), "%.1f" % point.seconds]
        for point in points
    ]
    header = [*names, what, "seconds"]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    best = best_of(points)
    lines = ["  ".join(name.rjust(width) for name, width in zip(header, widths))]
    for point, row in zip(points, rows):
        mark = "  <- best" if point is best else ""
        lines.append("  ".join(cell.rjust(width) for cell, width in zip(row, widths)) + mark)
    return lines


def values_of(text: str) -> list[float]:
    """Return the values that a text lists: ``0.2,0.4``, or from, to and step as ``0.2:1.2:0.2``, both ends included.

    :raises ConfigError: it is neither
    """
    try:
        if ":" not in text:
            return [float(value) for value in text.split(",")]
        first, last, step = (float(value) for value in text.split(":"))
        count = (last - first) / step
    except (ValueError, ZeroDivisionError):
        raise CtcError(
            "tune: %r is neither values as 0.2,0.4 nor first, last and step as 0.2:1.2:0.2." % text
        ) from None
    if count < -1e-9 or count > 10000:
        raise CtcError("tune: from %g to %g in steps of %g there are no values, or too many." % (first, last, step))
    return [round(first + index * step, 10) for index in range(int(count + 1e-6) + 1)]
