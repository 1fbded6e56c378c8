"""Options declared once, with type, default and help; this drives validation and the reference docs.

Layers, losses, units, datasets, optimizers and settings declare theirs so. A class with options is a dataclass whose
fields are made by `option`. `check_options` checks the options that a config gives, `from_options` also makes the
instance. The functions at the top return what is wrong with a number, or None.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import functools
import math
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Optional, TypeVar, Union

from returnn_tf.config.errors import ConfigError, OptionError, did_you_mean, shown
from returnn_tf.config.option_types import (
    Written,
    fits_type,
    shown_with_kind,
    type_name,
    type_words,
    with_python_numbers,
)
from returnn_tf.config.read_only import ReadOnlyDict, ReadOnlyList
from returnn_tf.logging.log import log


def at_least(least: float) -> Callable[[Any], Optional[str]]:
    """Return a check that a number is at least ``least``; None passes."""
    return lambda value: None if value is None or value >= least else "must be at least %s" % least


def between(least: float, most: float) -> Callable[[Any], Optional[str]]:
    """Return a check that a number is between ``least`` and ``most``, inclusive; None passes."""
    return lambda value: None if value is None or least <= value <= most else "must be from %s to %s" % (least, most)


def above(limit: float) -> Callable[[Any], Optional[str]]:
    """Return a check that a number is above ``limit``; None passes."""
    return lambda value: None if value is None or value > limit else "must be above %s" % limit


def finite(value: Any) -> Optional[str]:
    """Check that a number is neither infinite nor NaN; None passes."""
    return None if value is None or math.isfinite(value) else "must be finite"


def file_name(value: Any) -> Optional[str]:
    """Check that a file can have this name, and that TensorFlow takes it; None passes."""
    if value is not None and ("\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value)):
        return "must be a name that can be written in UTF-8, without NUL"
    return None


def none_below(least: int) -> Callable[[Any], Optional[str]]:
    """Return a check that a number, or each number of a dict, is at least ``least``; None passes, also in the dict."""
    check = at_least(least)
    return lambda value: next(filter(None, map(check, value.values() if isinstance(value, Mapping) else [value])), None)


def probability(value: Any) -> Optional[str]:
    """Check that a number is between 0 and 1, inclusive; None passes."""
    return between(0, 1)(value)


def count_or_share(value: Any) -> Optional[str]:
    """Check an amount: a whole number of at least 0, or as a float a share of a whole, from 0 to 1."""
    if isinstance(value, int):
        return at_least(0)(value)
    return None if 0 <= value <= 1 else "must be a whole number, or as a float a share from 0 to 1"


def seqs_by_length(value: Any) -> Optional[str]:
    """Check a dict of numbers of sequences by numbers of frames, all at least 1; None passes."""
    numbers = [] if value is None else [*value.keys(), *value.values()]
    good = value is None or (value and all(type(number) is int and number > 0 for number in numbers))
    return None if good else "must be a dict frames -> sequences such as {500: 80, 1000: 40}"


def dropout_rate(value: Any) -> Optional[str]:
    """Check that a number is at least 0 and below 1, as the kept entries are divided by the rest; None passes."""
    return None if value is None or 0 <= value < 1 else "must be from 0 to below 1"


#: TensorFlow keeps shapes as int32.
MAX_AXIS_SIZE = 2**31 - 1


def axis_size(value: Any) -> Optional[str]:
    """Check that a number can be the size of an axis; None passes."""
    good = value is None or 1 <= value <= MAX_AXIS_SIZE
    return None if good else "must be from 1 to %d" % MAX_AXIS_SIZE


def axis_sizes(value: Optional[Iterable[Optional[int]]]) -> Optional[str]:
    """Check that numbers can be the sizes of axes; None passes, as the value and as an entry."""
    return next((message for message in map(axis_size, value or ()) if message), None)


T = TypeVar("T")


class OptionValueError(ConfigError):
    """The options are wrong by themselves, whatever the sources of the layer are."""

    class_topic = "options"


#: Default of a required option.
REQUIRED: Any = type("_Required", (), {"__repr__": lambda self: "(required)"})()


#: Name of a layer; the attribute holds its node once the layer is planned.
LayerRef = Annotated[Any, Written(str, "layer")]
#: Name of a layer, or None.
OptionalLayerRef = Annotated[Any, Written(Optional[str], "layer | None")]
#: Name of a layer, or a list of names.
LayerRefs = Annotated[Any, Written(Union[str, list[str]], "layer | list[layer]")]
#: Name of a layer, or a number.
LayerOrNumber = Annotated[Any, Written(Union[str, float], "layer | number")]


def option(
    default: Any = REQUIRED,
    *,
    help: str,
    choices: Iterable[Any] = (),
    check: Optional[Callable[[Any], Optional[str]]] = None,
    unsupported: Optional[str] = None,
    inert: Optional[str] = None,
    old: Optional[str] = None,
    differs: Optional[str] = None,
    needs: Union[str, Iterable[str]] = (),
    unless: str = "",
    group: Optional[type] = None,
    network: bool = False,
    refs: bool = False,
    keywords: Iterable[str] = (),
    name: Optional[str] = None,
) -> Any:
    """Declare an option in the body of a dataclass.

    For example ``n_out: Optional[int] = option(None, help="...")``.

    :param default: value when the config gives none; without it the option is required
    :param help: one line
    :param choices: the allowed values
    :param check: returns a message if a value of the right type is wrong, e.g. "must be above 0", else None
    :param unsupported: why only the default is allowed, and what to write instead
    :param inert: why the option has no effect; a value other than the default is logged
    :param old: what to write today; the option works as before
    :param differs: how the effect differs from that in RETURNN
    :param needs: another option, or several of which one has to be set, without which the value has no effect, as is
        then logged; ``"name = value"`` shows the value, too
    :param unless: another option which takes its place
    :param group: a dict as value holds the options which this class declares
    :param network: the value may be a network dict (or a single layer dict), with its own namespace
    :param refs: strings in the value (also inside lists and dict values) are names of layers
    :param keywords: with ``refs``: strings which are not layer names
    :param name: its name in configs, if that is not a Python identifier or is a keyword
    """
    metadata = dict(locals())
    del metadata["default"]
    metadata.update(choices=tuple(choices), needs=_names(needs), keywords=frozenset(keywords))
    if isinstance(default, (dict, list, set)):
        frozen = default
        return dataclasses.field(default_factory=lambda: type(frozen)(frozen), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def _names(given: Union[str, Iterable[str]]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


@dataclasses.dataclass(frozen=True)
class OptionInfo:
    """One declared option, see `option`.

    :param name: in configs
    :param attribute: name of the field
    """

    name: str
    attribute: str
    type: Any
    default: Any
    help: str
    choices: tuple[Any, ...] = ()
    check: Optional[Callable[[Any], Optional[str]]] = None
    unsupported: Optional[str] = None
    inert: Optional[str] = None
    old: Optional[str] = None
    differs: Optional[str] = None
    needs: tuple[str, ...] = ()
    unless: str = ""
    group: Optional[type] = None
    network: bool = False
    refs: bool = False
    keywords: frozenset[str] = frozenset()

    @property
    def required(self) -> bool:
        """Return whether the config must give it."""
        return self.default is REQUIRED

    @property
    def type_name(self) -> str:
        """Return the type as displayed, e.g. ``int | None``; the choices if there are any."""
        return " | ".join(map(repr, self.choices)) if self.choices else type_name(self.type)

    @property
    def description(self) -> str:
        """Return the help, and whether the option is without effect or unsupported."""
        parts = [self.help]
        if self.group:
            parts.append("its options: %s" % ", ".join(declared_options(self.group)))
        if self.unsupported:
            parts.append("not supported: %s" % self.unsupported)
        if self.inert:
            parts.append("no effect: %s" % self.inert)
        if self.old:
            parts.append("older form; today: %s" % self.old)
        if self.differs:
            parts.append("unlike in RETURNN: %s" % self.differs)
        if self.needs:
            parts.append("no effect without %s" % " or ".join(self.needs))
        if self.unless:
            parts.append("no effect beside %s" % self.unless)
        return "; ".join(parts)

    def check_value(self, value: Any, where: str) -> None:
        """Check one value.

        :param where: prefix of errors, e.g. ``Layer 'a/b' (class 'linear')``
        :raises ConfigError: wrong type or value; names the option and what it accepts
        """
        value = self.taken(value)
        fault = self.fault(value)
        if fault:
            raise OptionError("%s: option %r %s" % (where, self.name, fault))
        if self.group is not None and isinstance(value, collections.abc.Mapping):
            check_options(self.group, value, where="%s: %s" % (where, self.name))
        if self.is_ignored(value):
            log_inert(where, self.name, str(self.inert))

    @property
    def none_is_off(self) -> bool:
        """Return whether None means the default: that of a switch or a rate which is off."""
        is_off = self.default is False or (self.type is float and self.default == 0)
        return is_off and not fits_type(None, self.type)

    def taken(self, value: Any) -> Any:
        """Return the value that a given one stands for; numbers are those of Python."""
        return self.default if value is None and self.none_is_off else with_python_numbers(value, self.type)

    def fault(self, value: Any) -> Optional[str]:
        """Return the fault of a value, to append to the name, e.g. ``must be int, got 'x' (str)``; or None."""
        if not fits_type(value, self.type, refs=self.refs):
            return "must be %s, got %s. It is: %s" % (type_words(self.type), shown_with_kind(value), self.help)
        if self.choices and not _is_in(value, self.choices):
            hint = did_you_mean(value, map(str, self.choices), max_listed=20, in_order=True)
            return "is %s. %s It is: %s" % (shown(value), hint, self.help)
        message = None if self.check is None else self.check(value)
        if message:
            return "%s, got %s. It is: %s" % (message, shown(value), self.help)
        if self.unsupported and not _is_in(value, (self.default,)):
            return "is not supported: %s" % self.unsupported
        return None

    def is_ignored(self, value: Any) -> bool:
        """Return whether a value is given that has no effect."""
        return bool(self.inert) and not self.is_default(value)

    def is_default(self, value: Any) -> bool:
        """Return whether a value equals the default."""
        return _is_in(value, (self.default,))

    def idle(self, value: Any, is_on: Callable[[str], bool]) -> Optional[str]:
        """Return the reason for which the other values make this one ineffective, or None.

        :param is_on: whether another option is set
        """
        if self.is_default(value) or value is None or (value is False and not self.default):
            return None  # nothing is asked for
        if self.unless and is_on(self.unless):
            return "%s takes its place" % self.unless
        if self.needs and not any(is_on(name.partition(" ")[0]) for name in self.needs):
            return "it needs %s" % " or ".join(self.needs)
        return None


def _is_in(value: Any, values: tuple[Any, ...]) -> bool:
    """Return whether a value is among others; 1 and 1.0 are equal, an array equals nothing."""
    return any(value is other or (type(value) in _PLAIN and value == other) for other in values)


_PLAIN = (bool, int, float, str, tuple, list, dict, set, frozenset, ReadOnlyDict, ReadOnlyList)


_caller_lists_inert = False


@contextlib.contextmanager
def listing_inert_options() -> Iterator[None]:
    """Log no options without effect within the context: the caller lists them."""
    global _caller_lists_inert
    before, _caller_lists_inert = _caller_lists_inert, True
    try:
        yield
    finally:
        _caller_lists_inert = before


def log_inert(where: str, name: str, reason: str) -> None:
    """Log once per place that an option has no effect.

    :param where: as in `OptionInfo.check_value`
    """
    if not _caller_lists_inert:
        log.warn("%s: option %r has no effect: %s" % (where, name, reason), once=True)


def declared_options(cls: Any) -> dict[str, OptionInfo]:
    """Return all options of a class by their names in configs, its own and inherited ones."""
    return _declared_options(cls)


@functools.cache
def _declared_options(cls: Any) -> dict[str, OptionInfo]:
    hints = typing.get_type_hints(cls, include_extras=True)
    result = {}
    for field in dataclasses.fields(cls):
        if "help" not in field.metadata:
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        facts = dict(field.metadata)
        name = facts.pop("name") or field.name
        result[name] = OptionInfo(name, field.name, hints[field.name], default, **facts)
    return result


@functools.cache
def _required_options(cls: Any) -> tuple[OptionInfo, ...]:
    return tuple(info for info in declared_options(cls).values() if info.required)


def own_options_first(cls: Any) -> list[OptionInfo]:
    """Return all options of a class: its own before those of its bases, each in the order of declaration."""
    infos = list(declared_options(cls).values())
    depth = {
        name: i
        for i, base in reversed(list(enumerate(cls.__mro__)))
        for name in base.__dict__.get("__annotations__", ())
    }
    return sorted(infos, key=lambda info: depth[info.attribute])


def is_on(known: Mapping[str, OptionInfo], given: Mapping[str, Any], name: str) -> bool:
    """Return whether an option is set, or is on by default; None and 0 count as set."""
    return given[name] is not False if name in given else bool(known[name].default)


def check_options(cls: type[Any], given: Mapping[str, Any], *, where: str, ignore: Iterable[str] = ()) -> None:
    """Check names and values of all given options.

    :param where: prefix of errors, e.g. ``Layer 'a/b' (class 'linear')``
    :param ignore: keys which are no options
    :raises ConfigError: names the option, the nearest valid spelling and what the class accepts
    """
    known = declared_options(cls)
    ignored = set(ignore)
    for name, value in given.items():
        if name in ignored:
            continue
        if not isinstance(name, str) or name not in known:
            names = [info.name for info in own_options_first(cls)]
            raise OptionError("%s: unknown option %r. %s" % (where, name, did_you_mean(name, names, in_order=True)))
        info = known[name]
        info.check_value(value, where)
        reason = info.idle(value, partial(is_on, known, given)) if info.needs or info.unless else None
        if reason:
            log_inert(where, name, reason)
    for info in _required_options(cls):  # type: ignore[arg-type]  # mypy takes a class with fields for unhashable
        if info.name not in given:
            kind = info.type_name if info.choices else type_words(info.type)
            raise OptionError("%s: the option %r is missing. It is: %s (%s)" % (where, info.name, info.help, kind))


def from_options(cls: type[T], given: Any, *, where: str, none_is_absent: bool = False) -> T:
    """Make an instance of an option class from the dict of a config.

    :param where: prefix of errors
    :param none_is_absent: an option that is None keeps its default, unless None is among its values
    :raises ConfigError: see `check_options`
    """
    if not isinstance(given, collections.abc.Mapping):
        raise OptionError("%s: expected a dict of options, got %s." % (where, shown_with_kind(given)))
    infos = declared_options(cls)
    if none_is_absent:
        given = {name: value for name, value in given.items() if value is not None or not _is_absent(infos.get(name))}
    check_options(cls, given, where=where)
    return cls(**{infos[name].attribute: infos[name].taken(value) for name, value in given.items()})


def _is_absent(info: Optional[OptionInfo]) -> bool:
    """Return whether None stands for the default of an option."""
    return info is not None and (info.type is Any or not fits_type(None, info.type))
