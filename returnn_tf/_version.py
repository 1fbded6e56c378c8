"""The version of this package; the only place where it is written down."""

from __future__ import annotations

__version__ = "0.1.0"
