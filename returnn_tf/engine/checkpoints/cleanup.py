"""Selection of old checkpoints to delete: ``cleanup_old_models``. Pure functions; the saver deletes the files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from returnn_tf.config import Config
from returnn_tf.config.errors import CheckpointError
from returnn_tf.config.options import at_least, from_options, option
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.engine.learning_rate.file import EpochData, best_epochs, scores_of


@dataclass(frozen=True)
class CleanupOptions:
    """Checkpoints to keep: the newest epochs, the best ones by each score, and a list (or pattern) of epochs."""

    keep_last_n: int = option(2, help="number of the newest epochs", check=at_least(0))
    keep_best_n: int = option(4, help="number of the best epochs by each score", check=at_least(0))
    keep: Union[None, Sequence[int], set[int]] = option(None, help="list of epochs; default: a pattern")


def options_from_config(config: Config) -> Optional[CleanupOptions]:
    """Return the options in ``cleanup_old_models``: True, or a dict; None if nothing is to be deleted.

    :raises ConfigError: for an unknown option or one of a wrong type
    """
    value = CheckpointSettings(config).cleanup_old_models
    where = CheckpointSettings(config).describe_source("cleanup_old_models")
    if not value and not isinstance(value, dict):
        return None
    if not isinstance(value, dict):
        if value is not True and value != 1:
            raise CheckpointError("%s: expected True, False or a dict, got %r" % (where, value))
        return CleanupOptions()
    if isinstance(value.get("keep"), range):
        value = {**value, "keep": list(value["keep"])}
    return from_options(CleanupOptions, value, where=where)


def epochs_to_delete(stored: Iterable[int], scores: Mapping[int, EpochData], options: CleanupOptions) -> list[int]:
    """Return the epochs whose checkpoints can be deleted.

    :param stored: epochs with a checkpoint
    :return: sorted; empty if the limits keep all of them anyway
    """
    stored = sorted(stored)
    if max(options.keep_last_n, options.keep_best_n) >= len(stored):
        return []
    keep = keep_pattern(stored[-1]) if options.keep is None else set(options.keep)
    keep.update(stored[len(stored) - options.keep_last_n :])
    candidates = {epoch: scores[epoch] for epoch in stored if epoch in scores}
    for key in _deciding_keys(candidates):
        keep.update(best_epochs(candidates, key, options.keep_best_n))
    return [epoch for epoch in stored if epoch not in keep]


def _deciding_keys(scores: Mapping[int, EpochData]) -> list[str]:
    """Return the scores whose values differ between epochs; constant ones don't rank them."""
    values: dict[str, set[Any]] = {}
    for data in scores.values():
        for key, value in scores_of(data.error).items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                values.setdefault(key, set()).add(value)
    return sorted(key for key, found in values.items() if len(found) > 1)


def keep_pattern(newest: int) -> set[int]:
    """Return the epochs kept by default; the more epochs there are, the sparser they get."""
    if newest <= 10:
        step, start = 4, 5
    elif newest <= 50:
        step, start = 20, 5
    elif newest <= 100:
        step, start = 40, 10
    else:
        step, start = 80 * _next_power_of_two(1 + newest // 240), 20
    keep = set(range(step, newest + 1, step))
    while start <= newest:
        keep.add(start)
        start *= 2
    return keep


def _next_power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
