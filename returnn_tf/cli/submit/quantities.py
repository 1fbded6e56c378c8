"""Times and memory sizes, in the notations of users and of the schedulers."""

from __future__ import annotations

import re

from returnn_tf.config.errors import ClusterError

_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d))?$")
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_MEMORY = re.compile(r"(\d+)([MGT])$")
_MEGABYTES = {"M": 1, "G": 1024, "T": 1024 * 1024}


def seconds_of(option: str, text: object) -> int:
    """Convert ``24:00:00`` (h:mm:ss), ``12:30`` (h:mm), ``2-00:00:00`` (with days), ``36h``, ``90m`` or ``300s``.

    :param option: for the message
    :return: seconds
    :raises ConfigError: the text has none of these forms
    """
    text = str(text)
    clock = _CLOCK.match(text)
    if clock:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if text[-1:] in _UNITS and text[:-1].isdecimal():
        return int(text[:-1]) * _UNITS[text[-1]]
    raise ClusterError("%s: expected a time such as '24:00:00', '36h', '90m' or '300s', got %r" % (option, text))


def clock(seconds: int) -> str:
    """Format as ``26:05:00`` (hours, minutes, seconds), which both Slurm and SGE read."""
    return "%d:%02d:%02d" % (seconds // 3600, seconds // 60 % 60, seconds % 60)


def megabytes_of(option: str, text: object) -> int:
    """Convert ``500M``, ``16G`` or ``1T`` to megabytes.

    :raises ConfigError: the text has none of these forms
    """
    found = _MEMORY.match(str(text))
    if not found or not int(found.group(1)):
        raise ClusterError("%s: expected an amount of memory such as '500M' or '16G', got %r" % (option, text))
    return int(found.group(1)) * _MEGABYTES[found.group(2)]
