"""TensorFlow, imported on first use: planning a network, ``--help`` and reading data never load it.

``from returnn_tf.util.lazy_tf import tf`` replaces ``import tensorflow as tf``.
"""

from __future__ import annotations

import importlib
import os
import types
from typing import Any


class _LazyModule(types.ModuleType):
    """A module that is imported on the first access to an attribute."""

    def __getattr__(self, name: str) -> Any:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)  # spares the next access the lookup
        return value


tf: Any = _LazyModule("tensorflow")
