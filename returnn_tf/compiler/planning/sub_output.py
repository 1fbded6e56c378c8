"""A further output of a layer, as a layer."""

from __future__ import annotations

from typing import Any

from returnn_tf.graph.layer import Layer


class SubOutputLayer(Layer):
    """A further output of a layer, as a layer.

    :param sub_name: the part of the path after that of its layer
    """

    class_name = "part"

    def __init__(self, sub_name: str) -> None:
        super().__init__()
        self.sub_name = sub_name

    def emit(self, ctx: Any) -> Any:
        """Emit nothing: the layer that it is part of sets the value."""
        return ctx.value(self.source, self.sub_name)
