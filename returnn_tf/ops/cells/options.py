"""The options of a recurrent unit (``unit_opts``): declared once as a table, which validates and documents them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from returnn_tf.config import ConfigError, did_you_mean


@dataclass(frozen=True)
class UnitOption:
    """One entry of ``unit_opts``.

    :param types: accepted Python types
    :param default: value if the user gives none
    :param help: one line for the reference
    :param check: whether a value is in range
    :param allowed: the range in words, for the error
    """

    types: Tuple[type, ...]
    default: Any
    help: str
    check: Optional[Callable[[Any], bool]] = None
    allowed: str = ""

    def validate(self, name: str, value: Any, where: str) -> Any:
        """``value``, if it has the right type and range; else a `ConfigError` which names ``where`` and the option."""
        expected = " or ".join("None" if type_ is type(None) else type_.__name__ for type_ in self.types)
        is_bool_for_number = isinstance(value, bool) and bool not in self.types
        if is_bool_for_number or not isinstance(value, self.types):
            raise ConfigError("%s: unit_opts %r must be %s, not %r." % (where, name, expected, value))
        if self.check is not None and value is not None and not self.check(value):
            raise ConfigError("%s: unit_opts %r must be %s, not %r." % (where, name, self.allowed, value))
        return value


def flag(default: bool, help: str) -> UnitOption:
    """A bool."""
    return UnitOption((bool,), default, help)


def number(default: Optional[float], help: str) -> UnitOption:
    """Any number; None too if that is the default."""
    types: Tuple[type, ...] = (int, float)
    return UnitOption(types + ((type(None),) if default is None else ()), default, help)


def positive(default: Optional[float], help: str) -> UnitOption:
    """A number above 0; None too if that is the default."""
    types: Tuple[type, ...] = (int, float)
    types += (type(None),) if default is None else ()
    return UnitOption(types, default, help, lambda value: value > 0, "above 0")


def positive_int(default: int, help: str) -> UnitOption:
    """An int of at least 1."""
    return UnitOption((int,), default, help, lambda value: value >= 1, "at least 1")


def probability(default: float, help: str) -> UnitOption:
    """A number in [0, 1)."""
    return UnitOption((int, float), default, help, lambda value: 0 <= value < 1, "in the range 0 <= x < 1")


def resolve_options(
    table: Mapping[str, UnitOption], given: Mapping[str, Any], *, unit: str, where: str
) -> Dict[str, Any]:
    """All options of ``table`` with the values ``given`` by the user or their defaults.

    :raises ConfigError: an unknown option, a wrong type, a value out of range
    """
    for name in given:
        if name not in table:
            hint = did_you_mean(name, table, max_listed=20)
            raise ConfigError("%s: unit %r has no option %r in unit_opts. %s" % (where, unit, name, hint))
    return {
        name: option.validate(name, given[name], where) if name in given else option.default
        for name, option in table.items()
    }
