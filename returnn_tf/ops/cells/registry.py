"""Recurrent units by their names in configs."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

from returnn_tf.config.registry import Registry
from returnn_tf.ops.cells.base import Cell

CellType = TypeVar("CellType", bound=type[Cell])


def normalized(name: str) -> str:
    """Return the name in lower case, without "Cell" at the end."""
    name = name.lower()
    return name[: -len("cell")] if name.endswith("cell") and name != "cell" else name


UNITS: Registry[type[Cell]] = Registry(
    "unit", "returnn_tf.ops.cells", plugins="returnn_tf.units", key=normalized, max_listed=30
)
#: Names which mean another unit when it runs as a single step of a loop.
STEP_UNITS: Registry[type[Cell]] = Registry("unit", key=normalized)


def register_cell(*names: str, step_names: tuple[str, ...] = ()) -> Callable[[CellType], CellType]:
    """Register a cell under ``names``; a class decorator.

    :param names: the first one is the canonical name; case and a final "Cell" do not matter in configs
    :param step_names: names which mean this unit when it runs as a single step (`rnn_cell`), but another one in `rec`
    """

    def register(cls: CellType) -> CellType:
        cls.unit = names[0]
        UNITS.add(cls, *names)
        STEP_UNITS.add(cls, *step_names)
        return cls

    return register


def unit_names() -> list[str]:
    """Return all names of units, sorted."""
    return UNITS.names()


def unit_class(name: Any, *, single_step: bool = False, where: str = "rec") -> type[Cell]:
    """Return the class of the unit ``name``.

    :param single_step: the unit runs as a single step of a loop, where some names mean another unit
    :param where: place for the error message
    :raises ConfigError: unknown unit
    """
    UNITS.load()
    step_unit = STEP_UNITS.find(name) if single_step else None
    return UNITS.get(name, where) if step_unit is None else step_unit
