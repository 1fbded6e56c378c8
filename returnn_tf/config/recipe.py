"""The recipe to rebuild a config in another process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ConfigRecipe:
    """The calls that built a config, in order.

    They are ("load", path), ("set", key, value), ("set_text", key, text) and ("remove", key).
    The process that rebuilds the config executes its files again, so the functions, classes and layers that they define
    need no pickling.
    """

    actions: tuple[tuple[Any, ...], ...] = ()
