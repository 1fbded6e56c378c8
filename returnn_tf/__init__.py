"""Sequence models written as a network dictionary, trained on TensorFlow 2.

The public names below are imported on first use, so that ``import returnn_tf`` is quick and needs no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, List

from returnn_tf._version import __version__

if TYPE_CHECKING:
    from returnn_tf.config import Config, ConfigError, DataError
    from returnn_tf.config.options import option
    from returnn_tf.datasets import Dataset
    from returnn_tf.engine.learning_rate.control import LearningRateControl
    from returnn_tf.engine.passes.trainer import Trainer
    from returnn_tf.graph.layer import Layer
    from returnn_tf.graph.registry import register_layer
    from returnn_tf.network.network import Network

_HOME_OF_NAME = {
    "Config": "returnn_tf.config",
    "ConfigError": "returnn_tf.config",
    "DataError": "returnn_tf.config",
    "Dataset": "returnn_tf.datasets",
    "Layer": "returnn_tf.graph.layer",
    "LearningRateControl": "returnn_tf.engine.learning_rate.control",
    "Network": "returnn_tf.network.network",
    "Trainer": "returnn_tf.engine.passes.trainer",
    "option": "returnn_tf.config.options",
    "register_layer": "returnn_tf.graph.registry",
}

__all__ = [
    "Config",
    "ConfigError",
    "DataError",
    "Dataset",
    "Layer",
    "LearningRateControl",
    "Network",
    "Trainer",
    "__version__",
    "option",
    "register_layer",
]


def __getattr__(name: str) -> Any:
    """Imports a public name from its module when it is first asked for (PEP 562)."""
    home = _HOME_OF_NAME.get(name)
    if home is None:
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted(set(globals()) | set(_HOME_OF_NAME))
