"""The files of the package that are no modules."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def shipped_folder(name: str) -> str:
    """Return a folder that stands beside the package in a checkout, and inside of it where it is installed.

    :param name: "native_ops" or "i6"; it need not exist
    """
    inside = os.path.join(_PACKAGE, name)
    return inside if os.path.isdir(inside) else os.path.join(os.path.dirname(_PACKAGE), name)


@functools.cache
def texts(module_file: str, suffix: str) -> Mapping[str, str]:
    """Return the texts in the folder of a module, by their names without the suffix.

    :param module_file: ``__file__`` of the module
    :raises OSError: one can't be read
    """
    folder = Path(module_file).resolve().parent
    return {path.name[: -len(suffix)]: path.read_text("utf8") for path in sorted(folder.glob("*" + suffix))}
