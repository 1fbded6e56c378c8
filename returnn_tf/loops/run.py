"""The layer that runs a loop."""

from __future__ import annotations

from typing import Any

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer
from returnn_tf.loops.frame import LoopFrame
from returnn_tf.loops.plan import LoopPlan


class LoopRunLayer(Layer):
    """The loop of a step network. Its node has the layers of a step as ``inner``."""

    class_name = "loop"
    is_connector = True

    def __init__(self, loop: LoopPlan) -> None:
        super().__init__()
        self.loop = loop

    def freeze(self) -> None:
        """Forbid all further changes."""
        self.loop.freeze()
        super().freeze()

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the number of steps; the collected values are further outputs by path."""
        return LoopFrame(self.loop, ctx).run()
