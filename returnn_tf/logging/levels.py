"""Levels of the log, and their counterparts in `logging`.

A target of the log shows everything up to its own level: 1 scores of the epochs, 2 warnings, 3 progress, 4 details,
5 every step.
"""

from __future__ import annotations

import logging

SCORE_LEVEL = 1
WARNING_LEVEL = 2
DEFAULT_LEVEL = 3
PROGRESS_LEVEL = 3
STEP_LEVEL = 5

_NOTICE = logging.WARNING - 5  # shown like a warning, without its prefix
_SCORE = logging.CRITICAL + 10
_SILENT = _SCORE + 10
#: Levels of `logging` by level of the log; 0 shows nothing.
_STANDARD = (_SILENT, _SCORE, _NOTICE, logging.INFO, logging.DEBUG, logging.DEBUG - 5)

for _number, _name in ((_SCORE, "SCORE"), (_NOTICE, "NOTICE"), (_STANDARD[STEP_LEVEL], "STEP")):
    logging.addLevelName(_number, _name)


def standard_level(level: int) -> int:
    """Return the level of `logging` for a level of the log, 0 - 5."""
    return _STANDARD[level]


def level_of(standard: int) -> int:
    """Return the level of the log at which a record of `logging` is shown.

    :param standard: of the record
    """
    return next((level for level, least in enumerate(_STANDARD) if standard >= least), STEP_LEVEL)


def is_warning(standard: int) -> bool:
    """Return whether a record of `logging` is a warning or an error."""
    return logging.WARNING <= standard < _SCORE
