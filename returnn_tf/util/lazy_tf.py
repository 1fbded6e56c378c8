"""TensorFlow, imported on first use: planning a network, ``--help`` and reading data never load it.

``from returnn_tf.util.lazy_tf import tf`` replaces ``import tensorflow as tf``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import types
from typing import Any

from returnn_tf.util.quiet import without_info_lines

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


class _LazyModule(types.ModuleType):
    """A module that is imported on the first access to an attribute."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(_imported(self.__name__), name)
        setattr(self, name, value)  # spares the next access the lookup
        return value


def _imported(name: str) -> types.ModuleType:
    if name in sys.modules:
        return importlib.import_module(name)
    shows_info = os.environ.setdefault(_LEVEL, "3") == "0"
    # While it is loaded, TensorFlow 2.21 logs on oneDNN whatever the level is.
    with contextlib.nullcontext() if shows_info else without_info_lines():
        return importlib.import_module(name)


tf: Any = _LazyModule("tensorflow")
