"""What goes wrong when an op is built or loaded."""

from __future__ import annotations


class NativeOpError(Exception):
    """An op cannot be built or loaded here. The text is one line which names the cause."""
