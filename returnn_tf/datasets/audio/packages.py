"""Packages that only audio needs: they are imported when they are used, and the error says how to install them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from returnn_tf.config import ConfigError


@contextlib.contextmanager
def optional_package(purpose: str, install: str = "returnn-tf[audio]") -> Iterator[None]:
    """Import packages in the body of ``with``; ConfigError if that fails.

    :param purpose: what they are needed for, e.g. "to decode audio"
    :param install: what brings them, as pip calls it
    """
    try:
        yield
    except (ImportError, OSError) as exc:  # OSError: soundfile finds no libsndfile
        raise ConfigError("A package is needed %s: %s. Install it: pip install '%s'" % (purpose, exc, install)) from exc
