"""The base of all layer classes: inferring a template and emitting ops.

A layer class declares its options as typed fields, infers the template of its output (`template`, no TensorFlow), and
emits its ops (`emit`). `returnn_tf.layers.math.linear` is a model to follow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Optional, TypeVar, Union, cast

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer_base import LayerBase
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.node import Node
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.tensor import Data, Dim


@dataclasses.dataclass(eq=False, repr=False)
class Layer(LayerBase):
    """A layer: `LayerBase` holds the options of all layers, and the facts that a class may declare about itself."""

    node: Node = dataclasses.field(init=False)

    def template(self, ctx: PlanContext) -> Union[Data, LayerPlan]:
        """Infer the template of the output, and declare the parameters. No TensorFlow.

        :return: the template; or a record with what else was found, which the other methods get as `plan`
        :raises ConfigError: by ``ctx.error``, if the sources or options are invalid
        """
        return super().template(ctx)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the ops. The value has the dims and the axis order of the template."""
        return super().emit(ctx)

    def emit_weights(self, ctx: EmitContext) -> Any:
        """Emit the attention weights inside, before dropout, once more; see `returnn_tf.compiler.inner_weights`."""
        return super().emit_weights(ctx)

    def before_loop(self, ctx: EmitContext) -> None:
        """Compute what all steps share, for a layer in a loop, and store it by ``ctx.set_aux``. May do nothing."""

    def factors(self) -> Mapping[str, bool]:
        """Return the matrices by which a step multiplies its input, [batch, features], and whether each is transposed.

        A search keeps these in an order that suits products with few rows, see `returnn_tf.loops.packed`.
        """
        return {}

    def sub_node(self, ctx: PlanContext, name: str) -> Optional[Node]:
        """Return the layer that is reached as ``<this layer>/<name>``, or None."""
        return None

    def differentiates_by(self) -> Sequence[Node]:
        """Return the layers by whose values this one may take a derivative; later ops then really start from these."""
        return ()

    @property
    def sources(self) -> list[Node]:
        """Return the layers that ``from`` names."""
        return self.node.sources

    @property
    def source(self) -> Node:
        """Return the first source."""
        return self.node.sources[0]

    def sub_names(self) -> Sequence[str]:
        """Return the names of all further outputs, for error messages."""
        return tuple(self.node.sub_outputs)


P = TypeVar("P", bound=LayerPlan)


class Planned(Layer, Generic[P]):
    """A layer whose `template` returns a record of the type P."""

    @property
    def plan(self) -> P:
        """What `template` found."""
        return cast(P, super().plan)


AxisOption = Union[Dim, str, int]
AxesOption = Union[Dim, str, int, list[Any], tuple[Any, ...], set[Any]]
