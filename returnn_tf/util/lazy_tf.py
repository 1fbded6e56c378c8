"""TensorFlow, imported on first use: planning a network, ``--help`` and reading data never load it.

``from returnn_tf.util.lazy_tf import tf`` replaces ``import tensorflow as tf``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

from returnn_tf.util.quiet import without_info_lines

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
#: What TensorFlow imports of Keras, by the kind of Keras, which is three tenths of its import. It goes on without, as
#: where Keras is not installed; ``tf.keras`` is imported when it is used.
_OF_KERAS = ("keras.src.optimizers", "tf_keras.src.optimizers")


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
    with contextlib.nullcontext() if shows_info else without_info_lines(), _without_keras(), without_collections():
        module = importlib.import_module(name)
    if _Collector.freezes:
        gc.freeze()
    return module


class _Collector:
    """The garbage collector of this process: whether it leaves alone all that is there after the import."""

    freezes = False


def freeze_after_import() -> None:
    """Keep the garbage collector from passing over TensorFlow's modules while networks are traced, and at the end.

    All objects that are there after the import are frozen, so this is for processes that run nothing but this program.
    """
    _Collector.freezes = True


@contextlib.contextmanager
def _without_keras() -> Iterator[None]:
    left_out = [name for name in _OF_KERAS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(left_out))  # type: ignore[arg-type]  # None: importing it is an ImportError
    try:
        yield
    finally:
        for name in left_out:
            if sys.modules.get(name) is None:
                sys.modules.pop(name, None)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Import or trace without the garbage collector, which passes over what is made again and again for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


tf: Any = _LazyModule("tensorflow")
