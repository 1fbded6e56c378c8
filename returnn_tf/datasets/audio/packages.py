"""Packages that only audio needs: they are imported when they are used, and the error says how to install them."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterable, Iterator

from returnn_tf.config.errors import FileError
from returnn_tf.util.installing import install_command


@contextlib.contextmanager
def optional_package(purpose: str, *, extra: str = "audio", package: str = "") -> Iterator[None]:
    """Import packages in the body of ``with``; ConfigError if that fails.

    :param purpose: e.g. "to decode audio"
    :param extra: of this program, which has them
    :param package: one that is in no extra
    """
    try:
        yield
    except (ImportError, OSError) as exc:  # OSError: soundfile finds no libsndfile
        install = _install(extra, package)
        raise FileError("a package is needed %s: %s. Install it: %s" % (purpose, exc, install)) from exc


def need_packages(names: Iterable[str], purpose: str, *, package: str = "") -> None:
    """Check that packages are installed, without importing them; else ConfigError.

    :param names: of the packages
    :param purpose: as of `optional_package`
    :param package: to install, if it is in no extra of this program
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            install = _install("audio", package)
            raise FileError("the package %r is needed %s. Install it: %s" % (name, purpose, install))


def _install(extra: str, package: str) -> str:
    return "pip install " + package if package else install_command(extra)
