"""A further output of a layer, as a layer."""

from __future__ import annotations

from typing import Any

from returnn_tf.graph.layer import Layer


class SubOutputLayer(Layer):
    """A further output of a layer, as a layer.

    :param sub_name: the part of the path behind that of its layer
    """

    class_name = "part"

    def __init__(self, sub_name: str) -> None:
        super().__init__()
        self.sub_name = sub_name

    def emit(self, ctx: Any) -> Any:
        """Set by the layer that it is part of."""
        return ctx.value(self.source, self.sub_name)
