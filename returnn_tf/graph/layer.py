"""The base of all layer classes: the two things a layer does.

A layer class declares its options as typed fields, infers the template of its output (`template`, no TensorFlow), and
emits its ops (`emit`). See `returnn_tf.layers.math.linear` for a model to follow.
"""

from __future__ import annotations

import dataclasses
from typing import Any, List, Optional, Sequence, Tuple, Union

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer_base import LayerBase
from returnn_tf.graph.node import Node
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.tensor import Data, Dim


@dataclasses.dataclass(eq=False, repr=False)
class Layer(LayerBase):
    """A layer: `LayerBase` has the options of all layers, and the facts that a class may declare about itself."""

    node: Node = dataclasses.field(init=False)

    def template(self, ctx: PlanContext) -> Data:
        """The template of the output; parameters are declared here. No TensorFlow.

        :raises ConfigError: by ``ctx.error``, if the sources or options don't fit
        """
        return super().template(ctx)

    def emit(self, ctx: EmitContext) -> Any:
        """The ops. The value has the dims and the axis order of the template."""
        return super().emit(ctx)

    def before_loop(self, ctx: EmitContext) -> None:
        """Make what all steps share, for a layer in a loop, and keep it by ``ctx.set_aux``. It may do nothing."""

    def sub_node(self, ctx: PlanContext, name: str) -> Optional[Node]:
        """The layer that is reached as ``<this layer>/<name>``, or None."""
        return None

    @property
    def sources(self) -> List[Node]:
        """What ``from`` says."""
        return self.node.sources

    @property
    def source(self) -> Node:
        """The first source."""
        return self.node.sources[0]

    def sub_names(self) -> Sequence[str]:
        """Names of all further outputs, for error messages."""
        return tuple(self.node.sub_outputs)


AxisOption = Union[Dim, str, int]
AxesOption = Union[Dim, str, int, List[Any], Tuple[Any, ...], set]
