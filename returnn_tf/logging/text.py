"""Durations and sizes as text."""

from __future__ import annotations

import math


def hms(seconds: float) -> str:
    """Return hours, minutes and seconds, as ``0:28:58``."""
    whole = max(0, int(seconds)) if math.isfinite(seconds) else 0
    return "%d:%02d:%02d" % (whole // 3600, whole // 60 % 60, whole % 60)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, whose plural ends in s: ``1 layer``, ``1,200 parameters``."""
    return f"{count:,} {noun}" + "s" * (count != 1)


def bytes_text(count: float) -> str:
    """Return a number of bytes in a readable unit, as ``1.5GB``."""
    for unit in ("B", "KB", "MB"):
        if count < 1024:
            return "%.1f%s" % (count, unit) if unit != "B" else "%d%s" % (count, unit)
        count /= 1024
    return "%.1fGB" % count
