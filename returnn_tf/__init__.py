"""Sequence models written as a network dictionary, trained on TensorFlow 2.

The public names below are imported on first use, so that ``import returnn_tf`` is quick and needs no TensorFlow. Type
checkers read them in ``__init__.pyi``.
"""

from __future__ import annotations

import importlib
from typing import Any

from returnn_tf._version import __version__

_HOME_OF_NAME = {
    "Callback": "returnn_tf.engine.training.callbacks",
    "Config": "returnn_tf.config",
    "ConfigError": "returnn_tf.config",
    "Data": "returnn_tf.tensor",
    "DataError": "returnn_tf.config",
    "Dataset": "returnn_tf.datasets",
    "Dim": "returnn_tf.tensor",
    "EarlyStopping": "returnn_tf.engine.training.callbacks",
    "EmitContext": "returnn_tf.graph.emit_context",
    "Evaluator": "returnn_tf.engine.passes.evaluator",
    "FeatureDim": "returnn_tf.tensor",
    "History": "returnn_tf.engine.training.history",
    "Layer": "returnn_tf.graph.layer",
    "LayerPlan": "returnn_tf.graph.layer_plan",
    "LearningRateControl": "returnn_tf.engine.learning_rate.control",
    "Loss": "returnn_tf.graph.loss",
    "Network": "returnn_tf.compiler.network",
    "Optimizer": "returnn_tf.engine.update.optimizers",
    "PlanContext": "returnn_tf.graph.plan_context",
    "Searcher": "returnn_tf.engine.search.searcher",
    "SettingGroup": "returnn_tf.config.settings",
    "SpatialDim": "returnn_tf.tensor",
    "StopTraining": "returnn_tf.engine.training.callbacks",
    "Trainer": "returnn_tf.engine.training.trainer",
    "batch_dim": "returnn_tf.tensor",
    "export": "returnn_tf.export.export",
    "load_checkpoint": "returnn_tf.engine.checkpoints.params",
    "option": "returnn_tf.config.options",
    "register_cell": "returnn_tf.ops.cells",
    "register_command": "returnn_tf.cli.commands",
    "register_dataset": "returnn_tf.datasets",
    "register_layer": "returnn_tf.graph.registry",
    "register_loss": "returnn_tf.graph.registry",
    "register_optimizer": "returnn_tf.engine.update.optimizers",
    "register_schedule": "returnn_tf.engine.learning_rate.schemes",
    "register_settings": "returnn_tf.config.settings",
    "register_task": "returnn_tf.tasks.registry",
    "search": "returnn_tf.engine.search.from_python",
    "save_checkpoint": "returnn_tf.engine.checkpoints.params",
    "setting": "returnn_tf.config.settings",
}

__all__ = [
    "__version__",
    *_HOME_OF_NAME,
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use (PEP 562)."""
    home = _HOME_OF_NAME.get(name)
    if home is None:
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME_OF_NAME))
