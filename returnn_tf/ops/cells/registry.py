"""Recurrent units by name, with the names under which configs know them."""

from __future__ import annotations

from typing import Callable, Dict, List, Type, TypeVar

from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.ops.cells.base import Cell

_units: Dict[str, Type[Cell]] = {}
_step_units: Dict[str, Type[Cell]] = {}

CellType = TypeVar("CellType", bound=Type[Cell])


def register_unit(*names: str, step_names: tuple = ()) -> Callable[[CellType], CellType]:
    """Class decorator: makes a cell known under ``names``.

    :param names: the first one is the canonical name; case and a final "Cell" do not matter in configs
    :param step_names: names which mean this unit when it runs as a single step (`rnn_cell`), and another one in `rec`
    """

    def register(cls: CellType) -> CellType:
        cls.unit = names[0]
        for table, table_names in ((_units, names), (_step_units, step_names)):
            for name in table_names:
                assert normalized(name) not in table, "unit %r is registered twice" % name
                table[normalized(name)] = cls
        return cls

    return register


def normalized(name: str) -> str:
    """Lower case, without "Cell" at the end."""
    name = name.lower()
    return name[: -len("cell")] if name.endswith("cell") and name != "cell" else name


def unit_names() -> List[str]:
    """All names of units, sorted."""
    return sorted(_units)


def unit_class(name: str, *, single_step: bool = False, where: str = "rec") -> Type[Cell]:
    """The class of the unit ``name``.

    :param single_step: the unit runs as a single step of a loop, where some names mean another unit
    :param where: place for the error message
    :raises ConfigError: unknown unit
    """
    key = normalized(name)
    if single_step and key in _step_units:
        return _step_units[key]
    if key not in _units:
        raise ConfigError("%s: unknown unit %r. %s" % (where, name, did_you_mean(name, _units, max_listed=30)))
    return _units[key]
