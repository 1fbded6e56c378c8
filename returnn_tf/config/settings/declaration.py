"""Declaration and reading of settings: type, default and help, once, in a class for each topic.

Example::

    class TrainingSettings(SettingGroup):
        num_epochs: int = setting(5, help="number of epochs to train", check=at_least(1))

    TrainingSettings(config).num_epochs

A value is read and checked on access. Python values must fit the annotation; text (of "key value" files, or of
``++key value``) is converted as the annotation says.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional, Union

from returnn_tf.config import readers
from returnn_tf.config.config import Config
from returnn_tf.config.errors import SettingError
from returnn_tf.config.options import OptionInfo, option


class Effect(enum.Flag):
    """The effect of changing a setting: what a run has to redo."""

    NOTHING = 0
    #: The datasets have to be reopened.
    DATASETS = enum.auto()
    #: Sequences are grouped into different batches.
    BATCHES = enum.auto()
    #: The order of training batches differs: a position within an epoch is void.
    ORDER = enum.auto()
    #: The learning rates of the epochs differ.
    RATES = enum.auto()


@dataclasses.dataclass(frozen=True)
class Setting(OptionInfo):
    """One declared setting, see `setting`.

    :param topic: the class that declares it
    """

    topic: Optional[type[SettingGroup]] = None
    reader: Callable[[Any], Any] = readers.read_any
    aliases: tuple[str, ...] = ()
    dataset_option: str = ""
    batch_option: str = ""
    effect: Effect = Effect.NOTHING
    between_runs: bool = False
    per_rank: bool = False
    on_command_line: bool = False

    @property
    def description(self) -> str:
        """Return the help and the other facts for users."""
        parts = [super().description]
        if self.dataset_option:
            parts.append("datasets that do not set their option %r inherit it" % self.dataset_option)
        if self.batch_option:
            parts.append("the batches of %s inherit it" % {"all": "all datasets", "train": "train"}[self.batch_option])
        if self.effect & Effect.ORDER:
            parts.append("training cannot resume within an epoch with another value")
        if self.per_rank:
            parts.append("may differ between the processes of a run")
        return "; ".join(parts)

    def key_in(self, config: Config) -> str:
        """Return the name that the config uses for it: its own, or an older one."""
        return next((key for key in (self.name, *self.aliases) if not _is_unset(config, key)), self.name)

    def is_set(self, config: Config) -> bool:
        """Return whether the config sets it to anything but None."""
        key = self.key_in(config)
        return not _is_unset(config, key) and (not self.on_command_line or config.is_override(key))

    def read(self, config: Config) -> Any:
        """Return its value in a config, or the default.

        :raises ConfigError: wrong type or value, or unsupported; with the place where it was set
        """
        key = self.key_in(config)
        value = config.read(key, None, self.reader) if self.is_set(config) else None
        if value is None or (isinstance(value, str) and not value):
            return copy.copy(self.default)
        fault = self.fault(value)
        if fault:
            raise SettingError("%s %s" % (config.describe_source(key), fault))
        return float(value) if self.reader is readers.read_float else value


def _is_unset(config: Config, key: str) -> bool:
    return key not in config or config.raw(key) is None


def setting(
    default: Any,
    *,
    reader: Optional[Callable[[Any], Any]] = None,
    aliases: Iterable[str] = (),
    dataset_option: str = "",
    batch_option: str = "",
    effect: Effect = Effect.NOTHING,
    between_runs: bool = False,
    per_rank: bool = False,
    on_command_line: bool = False,
    **facts: Any,
) -> Any:
    """Declare a setting in the body of a `SettingGroup`; a value of None or "" in a config counts as not set.

    :param default: value when the config gives none
    :param reader: converts a value of a config; by default chosen by the annotation
    :param aliases: older names
    :param dataset_option: datasets that do not set this option inherit the value
    :param batch_option: "all": an option of the batches of every dataset; "train": of the training batches
    :param effect: what a run has to redo if it changes
    :param between_runs: whether it may change when training is resumed, without a message
    :param per_rank: whether it may differ between ranks
    :param on_command_line: only an override applies; in configs the name is free for other use
    :param facts: help, choices, check and the others that `option` takes, where they speak of settings
    """
    own = dict(locals())
    for name in ("default", "reader", "facts"):
        del own[name]
    shared = {name: fact for name, fact in option(default, **facts).metadata.items() if name != "name"}
    return _Declaration(default, reader, {**shared, **own, "aliases": tuple(aliases)})


def option_of(group: type[SettingGroup], name: str) -> Any:
    """Declare an option of a dataclass with default, help, choices and check of a setting.

    A value set for all can then also be set for a part.
    """
    info = group.declared()[name]
    return option(info.default, help=info.help, choices=info.choices, check=info.check)


class _Declaration:
    """The attribute of a `SettingGroup` created by `setting`: reads the value if the group has a config."""

    def __init__(self, default: Any, reader: Optional[Callable[[Any], Any]], facts: Mapping[str, Any]) -> None:
        self._default, self._reader, self._facts = default, reader, facts

    def __set_name__(self, owner: type[SettingGroup], name: str) -> None:
        self._owner, self._name = owner, name

    @functools.cached_property
    def info(self) -> Setting:
        """Return the setting; annotations are evaluated on first use."""
        annotation = self._owner.annotations()[self._name]
        reader = self._reader or _reader_of(annotation)
        return Setting(
            self._name, self._name, annotation, self._default, topic=self._owner, reader=reader, **self._facts
        )

    def __get__(self, group: Optional[SettingGroup], owner: type[SettingGroup]) -> Any:
        return self if group is None else self.info.read(group.config)


_READERS: dict[Any, Callable[[Any], Any]] = {
    int: readers.read_int,
    float: readers.read_float,
    bool: readers.read_bool,
    str: readers.read_text,
    list[int]: readers.read_int_list,
    list[float]: readers.read_float_list,
    list[str]: readers.read_str_list,
}


def _reader_of(annotation: Any) -> Callable[[Any], Any]:
    if typing.get_origin(annotation) is Union:
        parts = [part for part in typing.get_args(annotation) if part is not type(None)]
        annotation = parts[0] if len(parts) == 1 else Any
    return _READERS.get(annotation, readers.read_any)


class SettingGroup:
    """The settings of one topic in a config. The first line of the docstring is the title of the topic."""

    #: Topics are listed in this order; those of plug-ins come last.
    topic_order = 1000

    def __init__(self, config: Config) -> None:
        """:param config: read on every access to a setting"""
        self.config = config

    @classmethod
    @functools.cache
    def annotations(cls) -> dict[str, Any]:
        """Return the types of the settings by name."""
        return typing.get_type_hints(cls, include_extras=True)

    @classmethod
    def declared(cls) -> dict[str, Setting]:
        """Return the settings of the group by name, in the order of their declaration."""
        return {name: value.info for name, value in vars(cls).items() if isinstance(value, _Declaration)}

    def describe_source(self, name: str) -> str:
        """Return the prefix of error messages about a setting: ``"config key 'x' (my.config:3)"``."""
        return self.config.describe_source(self.declared()[name].key_in(self.config))

    def is_set(self, name: str) -> bool:
        """Return whether the config sets a setting to anything but None."""
        return self.declared()[name].is_set(self.config)

    def is_given(self, name: str) -> bool:
        """Return whether the config sets a setting, even to None."""
        return self.declared()[name].key_in(self.config) in self.config

    def value(self, name: str) -> Any:
        """Return the value of a setting by name."""
        return self.declared()[name].read(self.config)
