"""The registries of layer and loss classes. A new class is one new file with one decorator; nothing else changes."""

from __future__ import annotations

from returnn_tf.config.registry import OptionClasses

_NOT_PUBLIC = "it needs a package that is not public. Compute %s by other layers, or register a class of your own."
LAYERS = OptionClasses(
    "layer class",
    "returnn_tf.layers",
    plugins="returnn_tf.layers",
    absent={
        "mask_based_gevbeamforming": _NOT_PUBLIC % "the beamformer",
        "mask_based_mvdrbeamforming": _NOT_PUBLIC % "the beamformer",
        "parametric_wiener_filter": _NOT_PUBLIC % "the filter",
    },
)

LOSSES = OptionClasses("loss", "returnn_tf.layers.losses", plugins="returnn_tf.losses")

register_layer = LAYERS.register
register_loss = LOSSES.register
