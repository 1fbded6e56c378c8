"""Checks all settings of a config up front, so that a run does not fail on a wrong one hours later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Optional

from returnn_tf.config.config import Config
from returnn_tf.config.errors import ConfigError, SettingError, edit_distance
from returnn_tf.config.settings.catalog import all_settings, misspelt, setting_by_key
from returnn_tf.config.settings.data import DataSettings
from returnn_tf.config.settings.declaration import Setting

#: Shorter names that differ in one letter are too likely to be others.
_SHORTEST_SLIP = 6


def check_settings(config: Config, keys: Optional[Iterable[str]] = None) -> None:
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
        raise SettingError("\n".join(faults))


def ignored_settings(config: Config) -> list[str]:
    """Return ``name (reason)`` for each setting that a config sets without effect."""
    reasons = [(info.key_in(config), why_ignored(config, info)) for info in all_settings().values()]
    return ["%s (%s)" % each for each in reasons if each[1]]


def why_ignored(config: Config, info: Setting) -> Optional[str]:
    """Return the reason for which a setting of a config has no effect; None if it has one, or is not set."""
    value = info.read(config)
    return info.inert if info.is_ignored(value) else info.idle(value, partial(_is_on, config))


def _is_on(config: Config, name: str) -> bool:
    """Return whether a setting differs from its default, or a dataset has the option which it sets for all."""
    info = all_settings()[name]
    if info.is_set(config) and not info.is_default(info.read(config)):
        return True
    data = DataSettings(config)
    specs = [data.train, data.dev, data.eval, *(data.eval_datasets or {}).values()] if info.dataset_option else []
    return any(isinstance(spec, Mapping) and info.dataset_option in spec for spec in specs)


def misspelt_keys(config: Config) -> list[tuple[str, str]]:
    """Return (key, suggestion) for each key of a config that looks like a misspelt setting.

    Skipped are functions, classes, names with a leading "_", constants in capitals, keys that the config itself or
    a reader has used, and keys that may be helpers because the setting itself is set, too.
    """
    found = []
    for key in config.unread_values():
        if key.isupper() and not config.is_override(key):
            continue  # a constant, perhaps used by code that ``exec`` runs
        suggestion = misspelt(key)
        if suggestion is not None and (suggestion not in config or _is_slip(config, key, suggestion)):
            found.append((key, suggestion))
    return found


def _is_slip(config: Config, key: str, suggestion: str) -> bool:
    """Return whether the key can't be a helper of the setting: it is an override, or has a typing mistake.

    Letters are swapped, one is wrong, missing or too much, or in the other case. More at the end or the beginning,
    as in ``batch_sizes``, and other digits are meant.
    """
    if config.is_override(key) or sorted(key) == sorted(suggestion):
        return True
    if suggestion in key or any(char.isdigit() for char in key + suggestion):
        return False
    return len(key) >= _SHORTEST_SLIP and edit_distance(key.lower(), suggestion.lower()) <= 1
