"""Checks all settings of a config up front, so that a run does not fail on a wrong one hours later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from returnn_tf.config.errors import ConfigError
from returnn_tf.config.settings.catalog import all_settings, setting_by_key
from returnn_tf.config.store import ConfigStore


def check_settings(config: ConfigStore, keys: Optional[Iterable[str]] = None) -> None:
    """Read each setting that a config sets.

    :param keys: only these, if they are settings
    :raises ConfigError: wrong types or values, or unsupported settings; lists all of them, each with its place
    """
    by_key = setting_by_key()
    infos = all_settings().values() if keys is None else [by_key[key] for key in keys if key in by_key]
    faults = []
    for info in infos:
        try:
            info.read(config)
        except ConfigError as exc:
            faults.append(str(exc))
    if faults:
        raise ConfigError("\n".join(faults))


def ignored_settings(config: ConfigStore) -> list[str]:
    """Return ``name (reason)`` for each setting that a config sets without effect."""
    infos = [info for info in all_settings().values() if info.inert and info.is_ignored(info.read(config))]
    return ["%s (%s)" % (info.key_in(config), info.inert) for info in infos]
