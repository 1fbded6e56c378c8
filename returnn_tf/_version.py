"""The version of this package: in a checkout the next one, in a wheel or sdist its own, which setup.py finds by tag."""

from __future__ import annotations

__version__ = "0.1.0"
