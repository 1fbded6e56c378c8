"""The errors raised when an op cannot be built or loaded."""

from __future__ import annotations


class NativeOpError(Exception):
    """An op cannot be built or loaded here. The text is one line that names the cause."""


class ToolNotRunError(NativeOpError):
    """A compiler could not be started, or did not answer in time: that says nothing about what it supports."""
