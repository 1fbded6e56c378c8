"""The optimizers, one file per family."""

from returnn_tf.engine.update.optimizers.base import DEFAULT_EPSILON, Optimizer
from returnn_tf.engine.update.optimizers.registry import (
    OPTIMIZERS,
    create_optimizer,
    optimizer_class,
    optimizer_names,
    optimizers_by_switch,
    register_optimizer,
)

__all__ = [
    "DEFAULT_EPSILON",
    "OPTIMIZERS",
    "Optimizer",
    "create_optimizer",
    "optimizer_class",
    "optimizer_names",
    "optimizers_by_switch",
    "register_optimizer",
]
