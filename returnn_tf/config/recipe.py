"""What it takes to build the same config in another process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Tuple


@dataclass(frozen=True)
class ConfigRecipe:
    """The calls which made a config, in order: ("load", path), ("set", key, value), ("set_text", key, text).

    Config files are executed again by the process which rebuilds the config: functions, classes and layers that they
    define need no pickling.
    """

    actions: Tuple[Tuple[Any, ...], ...] = ()
