"""``from returnn.tf.layers.basic import ...`` (once TFNetworkLayer): the bases of layer classes in configs."""

from __future__ import annotations

from typing import Any

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.compat.modules.layers.base_template import concat_view
from returnn_tf.compat.modules.layers.internal import InternalLayer
from returnn_tf.compat.modules.layers.layer_base import CopyLayer, LayerBase, _ConcatInputLayer
from returnn_tf.compat.modules.layers.loss_base import Loss
from returnn_tf.compat.modules.layers.registering import (
    SelectSearchSourcesLayer,
    auto_register_layer_classes,
    get_layer_class,
    register_layer_class,
    register_loss_class,
)
from returnn_tf.compat.modules.layers.specific import specific_layer

register_compat(__name__, "returnn.tf.layers.basic", "TFNetworkLayer")
register_compat(__name__, "returnn.tf.layers.base")

__all__ = [
    "CopyLayer",
    "InternalLayer",
    "LayerBase",
    "Loss",
    "SelectSearchSourcesLayer",
    "_ConcatInputLayer",
    "auto_register_layer_classes",
    "concat_sources",
    "get_concat_sources_data_template",
    "get_layer_class",
    "register_layer_class",
    "register_loss_class",
]


def __getattr__(name: str) -> Any:
    found = specific_layer(name)
    if found is None:
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    return found


def concat_sources(src_layers: Any) -> Any:
    """Return the view of the outputs of layers side by side along the features."""
    return concat_view([layer.output for layer in src_layers])


def get_concat_sources_data_template(src_layers: Any, name: Any = None) -> Any:
    """Return the template of `concat_sources`."""
    return concat_sources(src_layers).copy_template(name)
