"""Packages that only audio needs: they are imported when they are used, and the error says how to install them."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterable, Iterator

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
        raise ConfigError("a package is needed %s: %s. Install it: pip install '%s'" % (purpose, exc, install)) from exc


def need_packages(names: Iterable[str], purpose: str, install: str = "returnn-tf[audio]") -> None:
    """Check that packages are installed, without importing them; else ConfigError.

    :param names: of the packages
    :param purpose: what they are needed for
    :param install: what brings them, as pip calls it
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError("the package %r is needed %s. Install it: pip install '%s'" % (name, purpose, install))
