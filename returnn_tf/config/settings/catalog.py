"""All settings: by name, by effect, and by likely misspelling."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Optional

from returnn_tf.config.errors import ConfigError, edit_distance
from returnn_tf.config.registry import Registry
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.data import DataSettings
from returnn_tf.config.settings.declaration import Effect, Setting, SettingGroup
from returnn_tf.config.settings.horovod import HorovodSettings
from returnn_tf.config.settings.learning_rate import LearningRateSettings
from returnn_tf.config.settings.logging import LoggingSettings
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.settings.older import OlderSettings
from returnn_tf.config.settings.rasr import RasrSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.config.settings.update import UpdateSettings

GROUPS: tuple[type[SettingGroup], ...] = (
    TaskSettings,
    NetworkSettings,
    DataSettings,
    TrainingSettings,
    CheckpointSettings,
    LearningRateSettings,
    UpdateSettings,
    HorovodSettings,
    LoggingSettings,
    RasrSettings,
    OlderSettings,
)

#: The groups of plug-ins; the module of each imports this one.
_OF_PLUGINS: Registry[type[SettingGroup]] = Registry("group of settings", plugins="returnn_tf.settings")

# shorter names are too likely to be intended
_MIN_LENGTH = 4
# in shorter ones the first letter must be right (or swapped with the second): "mask" is not "task"
_LENGTH_OF_FREE_START = 8


def register_settings(group: type[SettingGroup]) -> type[SettingGroup]:
    """Decorate a group of settings of a plug-in: they are checked before a run, and listed with ours.

    :raises ConfigError: a name is taken, or the class has no docstring, whose first line is the title of the topic
    """
    place = _place_of(group)
    if not group.__doc__:
        raise ConfigError("group of settings %s: give it a docstring, whose first line is its title." % place)
    others = [*GROUPS, *(other for _, other in _OF_PLUGINS.registered() if _place_of(other) != place)]
    keys = _keys(others)
    for key in _keys([group]):
        if key in keys:
            taken = keys[key].topic
            assert taken is not None
            raise ConfigError(
                "setting %r is already taken by %s. Choose another name for that of %s."
                % (key, _place_of(taken), place)
            )
    _OF_PLUGINS.add(group, place)
    for cached in (all_settings, setting_by_key, settings_with):
        cached.cache_clear()
    return group


def _place_of(group: type[SettingGroup]) -> str:
    return "%s.%s" % (group.__module__, group.__qualname__)


def setting_groups() -> tuple[type[SettingGroup], ...]:
    """Return all groups, those of plug-ins last."""
    return (*GROUPS, *(group for _, group in _OF_PLUGINS.items()))


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


def misspelt(key: str, known: Optional[Iterable[str]] = None) -> Optional[str]:
    """Return the setting that ``key`` probably misspells, or None if it is a setting or resembles none."""
    known = setting_by_key() if known is None else known
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
