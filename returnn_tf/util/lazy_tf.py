"""TensorFlow, imported on first use: planning a network, ``--help`` and reading data never load it.

``from returnn_tf.util.lazy_tf import tf`` stands where other code says ``import tensorflow as tf``.
"""

from __future__ import annotations

import importlib
import os
import types
from typing import Any


class _LazyModule(types.ModuleType):
    """A module which is imported when an attribute of it is first asked for."""

    def __getattr__(self, name: str) -> Any:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)  # the next access costs no lookup
        return value


tf: Any = _LazyModule("tensorflow")
