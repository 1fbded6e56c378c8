"""All settings: by name, by effect, and by likely misspelling."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Optional

from returnn_tf.config.errors import SettingError, edit_distance
from returnn_tf.config.registry import Registry
from returnn_tf.config.settings.declaration import Effect, Setting, SettingGroup

#: The group of each setting, by all its names.
_GROUPS: Registry[type[SettingGroup]] = Registry(
    "setting", package="returnn_tf.config.settings", plugins="returnn_tf.settings"
)

# shorter names are too likely to be intended
_MIN_LENGTH = 4
# in shorter ones the first letter must be right (or swapped with the second): "mask" is not "task"
_LENGTH_OF_FREE_START = 8


def register_settings(group: type[SettingGroup]) -> type[SettingGroup]:
    """Decorate a group of settings, of this program or of a plug-in: they are checked before a run, and listed.

    :raises ConfigError: a name is taken, or the class has no docstring, whose first line is the title of the topic
    """
    if not group.__doc__:
        place = "%s.%s" % (group.__module__, group.__qualname__)
        raise SettingError("group of settings %s: give it a docstring, whose first line is its title." % place)
    _GROUPS.add(group, *_keys([group]))
    for cached in (all_settings, setting_by_key, settings_with):
        cached.cache_clear()
    return group


def setting_groups() -> list[type[SettingGroup]]:
    """Return all groups in the order in which they are listed, those of plug-ins last."""
    return sorted((group for _, group in _GROUPS.items()), key=lambda group: group.topic_order)


@functools.cache
def all_settings() -> dict[str, Setting]:
    """Return all settings by name."""
    found: dict[str, Setting] = {}
    for group in setting_groups():
        for name, info in group.declared().items():
            assert name not in found, "%s is declared twice" % name
            found[name] = info
    return found


@functools.cache
def setting_by_key() -> dict[str, Setting]:
    """Return all settings by every key that sets them, including older names."""
    return _keys(setting_groups())


def _keys(groups: Iterable[type[SettingGroup]]) -> dict[str, Setting]:
    infos = (item for group in groups for item in group.declared().items())
    return {key: info for name, info in infos for key in (name, *info.aliases)}


@functools.cache
def settings_with(effect: Effect) -> frozenset[str]:
    """Return the names of the settings that have at least one of several effects."""
    return frozenset(name for name, info in all_settings().items() if info.effect & effect)


def misspelt(key: str) -> Optional[str]:
    """Return the setting that ``key`` probably misspells, or None if it is a setting or resembles none."""
    known = setting_by_key()
    if key in known or len(key) < _MIN_LENGTH:
        return None
    plain = key.lower().replace("_", "")
    best: Optional[str] = None
    best_distance = 1 + (1 if len(key) < 8 else 2 if len(key) < 14 else 3)
    for candidate in known:
        if candidate.lower().replace("_", "") == plain:
            return candidate
        if abs(len(candidate) - len(key)) >= best_distance or len(candidate) < _MIN_LENGTH:
            continue
        if len(key) >= _LENGTH_OF_FREE_START or key[0].lower() in candidate[:2]:
            distance = edit_distance(key.lower(), candidate.lower())
            if distance < best_distance:
                best, best_distance = candidate, distance
    longer = [candidate for candidate in known if candidate.endswith("_" + key.lower())]
    return min(longer, key=len) if best is not None and longer else best
