"""The registries of layer and loss classes. A new class is one new file with one decorator; nothing else changes."""

from __future__ import annotations

from returnn_tf.config.registry import OptionClasses

LAYERS = OptionClasses("layer class", "returnn_tf.layers", plugins="returnn_tf.layers")
LOSSES = OptionClasses("loss", "returnn_tf.layers.losses", plugins="returnn_tf.losses")

register_layer = LAYERS.register
register_loss = LOSSES.register
