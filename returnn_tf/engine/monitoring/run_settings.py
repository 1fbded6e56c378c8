"""``.<model>.settings.json``: the settings and the network of a run, so that it can be compared without its config.

Written once at the start of training. A config may be edited later, or import code that changes; what a run
was trained with stays here. Nothing depends on the file: if it can't be written, training continues.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
from importlib import metadata
from typing import Any

from returnn_tf._version import __version__
from returnn_tf.config import Config
from returnn_tf.config.errors import SettingDataError
from returnn_tf.engine.support import atomic_files as files
from returnn_tf.engine.support.fingerprint import plain
from returnn_tf.logging.log import log

SUFFIX = ".settings.json"
_MAX_BYTES = 1 << 26
_FORMAT = 1
_PARTS = ("settings", "network", "environment")
_PACKAGES = ("tensorflow", "tensorflow-cpu", "numpy")


def path_of(model: str) -> str:
    """Return the path of the file beside the checkpoints with a path prefix."""
    folder, name = os.path.split(model)
    return os.path.join(folder, ".%s%s" % (name, SUFFIX))


def facts_of(config: Config, layers: dict[str, Any]) -> dict[str, Any]:
    """Return the content of the file, in types of JSON; ``layers`` is the network of the last epoch."""
    values = {key: config.typed(key) for key in config.keys() if key not in ("network", "config")}
    settings = {key: plain(value) for key, value in values.items() if value is not None and _is_setting(key, value)}
    return {
        "format": _FORMAT,
        "folder": os.getcwd(),
        "overrides": {key: _as_text(config.typed(key)) for key in config.keys() if config.is_override(key)},
        "files": [os.path.abspath(path) for path in config.files],
        "command": sys.argv,
        "settings": settings,
        "network": plain(layers),
        "environment": environment(),
    }


def _as_text(value: Any) -> str:
    """Return a value as ``++key text`` takes it."""
    return value if isinstance(value, str) else repr(value)


def _is_setting(key: str, value: Any) -> bool:
    """Return whether a global of the config is one of its settings: neither private nor a helper that others call."""
    return not key.startswith("_") and not isinstance(value, type)


def environment() -> dict[str, Any]:
    """Return versions and machine, without loading TensorFlow."""
    found: dict[str, Any] = {"returnn_tf": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {**found, "platform": platform.platform(), "host": socket.gethostname(), "cores": os.cpu_count()}


def write(model: str, facts: dict[str, Any]) -> None:
    """Write the file beside the checkpoints, if ``model`` is set; if that is impossible, warn."""
    if not model:
        return
    try:
        files.write_text(path_of(model), json.dumps(facts, indent=1) + "\n")
    except (OSError, TypeError, ValueError) as exc:
        log.warn("%s can't be written, so returnn-tf compare needs the config: %s" % (path_of(model), exc))


def read(path: str) -> dict[str, Any]:
    """Return the facts of a file.

    :raises DataError: it is missing or damaged
    """
    try:
        facts = files.read_json(path, _MAX_BYTES)
    except OSError as exc:
        raise SettingDataError("%s can't be read: %s" % (path, exc.strerror or exc)) from None
    except (ValueError, RecursionError) as exc:
        raise SettingDataError("%s is not a complete file of settings: %s" % (path, exc)) from None
    if not isinstance(facts, dict) or not all(isinstance(facts.get(part), dict) for part in _PARTS):
        raise SettingDataError("%s is not a file of settings: expected {%s}" % (path, ", ".join(_PARTS)))
    return facts
