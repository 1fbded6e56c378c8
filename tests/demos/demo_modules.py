"""Modules of the demos, which are no packages and have files of the same names."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

DEMOS = Path(__file__).parents[2] / "demos"


def demo_modules(demo: str, *names: str) -> list[ModuleType]:
    """Import files of a demo; what they import from each other is not seen by other tests."""
    folders = [str(DEMOS / demo), str(DEMOS / "common")]
    own = {path.stem for folder in folders for path in Path(folder).glob("*.py")}
    before = {name: sys.modules.pop(name) for name in own if name in sys.modules}
    sys.path[:0] = folders
    try:
        return [importlib.import_module(name) for name in names]
    finally:
        del sys.path[: len(folders)]
        for name in own:
            sys.modules.pop(name, None)
        sys.modules.update(before)
