"""The optimizers, one file per family; importing this package registers them all."""

from returnn_tf.engine.update.optimizers import adam, adaptive, experimental, gradient_descent, keras_style, proximal
from returnn_tf.engine.update.optimizers.base import DEFAULT_EPSILON, Optimizer
from returnn_tf.engine.update.optimizers.registry import (
    create_optimizer,
    optimizer_class,
    optimizer_names,
    register_optimizer,
)

__all__ = [
    "DEFAULT_EPSILON",
    "Optimizer",
    "adam",
    "adaptive",
    "create_optimizer",
    "experimental",
    "gradient_descent",
    "keras_style",
    "optimizer_class",
    "optimizer_names",
    "proximal",
    "register_optimizer",
]
