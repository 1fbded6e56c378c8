"""Values of the layers of a loop, seen from outside: `get_rec_accumulated`, `rec_last_output`."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.config.errors import LoopError, did_you_mean
from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.rec.rec import RecLayer
from returnn_tf.layers.rec.state import last_frame
from returnn_tf.loops.frame import previous_value
from returnn_tf.loops.plan import PreviousValue
from returnn_tf.ops.frames.shape import expand_at
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class GetRecAccumulatedPlan(LayerPlan):
    """The plan of `GetRecAccumulatedLayer`.

    :param inner: the layer of the loop, with its values of all steps
    """

    inner: Node


@register_layer("get_rec_accumulated")
class GetRecAccumulatedLayer(Planned[GetRecAccumulatedPlan]):
    """The values of a layer of a loop in all steps, like ``<loop>/<layer>``. The layer needs ``is_output_layer``.

    Lengths: the steps of the loop.

    Example::

        network = {
            "loop": {"class": "rec", "from": "data", "unit": {
                "h": {"class": "linear", "activation": "tanh", "n_out": 3, "from": ["data:source", "prev:h"],
                      "is_output_layer": True},
                "output": {"class": "linear", "activation": None, "n_out": 2, "from": "h"}}},
            "output": {"class": "get_rec_accumulated", "from": "loop", "sub_layer": "h"}}
    """

    sub_layer: str = option(help="name of the layer inside the loop")

    def template(self, ctx: PlanContext) -> GetRecAccumulatedPlan:
        """Infer the output: [steps, batch, ...]."""
        ctx.single_source()
        inner = layer_of_loop(ctx, self.source, self.sub_layer, "is_output_layer")
        return GetRecAccumulatedPlan(inner.output, inner)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit no op."""
        ctx.forward_aux(self.plan.inner)
        return ctx.value(self.plan.inner)


@dataclasses.dataclass(frozen=True, eq=False)
class RecLastOutputPlan(LayerPlan):
    """The plan of `RecLastOutputLayer`.

    :param inner: the layer of the loop, with its values of all steps
    :param prev: the value before the first step, if the loop carries that of the layer
    """

    inner: Node
    prev: Optional[PreviousValue] = None


@register_layer("rec_last_output")
class RecLastOutputLayer(Planned[RecLastOutputPlan]):
    """The value of a layer of a loop in the last step of each sequence. The layer needs ``need_last``.

    Lengths: the step axis is removed. A sequence without steps gets the initial output of the layer, zeros by default.
    A value without batch axis is that of the last step of all.

    Example::

        network = {
            "loop": {"class": "rec", "from": "data", "unit": {
                "h": {"class": "linear", "activation": "tanh", "n_out": 3, "from": ["data:source", "prev:h"],
                      "need_last": True},
                "output": {"class": "linear", "activation": None, "n_out": 2, "from": "h"}}},
            "output": {"class": "rec_last_output", "rec_layer": "loop", "sub_layer_name": "h"}}
    """

    needs_sources = False
    rec_layer: LayerRef = option(help="the loop, or a subnetwork or copy with its output", refs=True)
    sub_layer_name: str = option(help="name of the layer inside the loop")

    def template(self, ctx: PlanContext) -> RecLastOutputPlan:
        """Infer the output: [batch, ...]."""
        inner = layer_of_loop(ctx, self.rec_layer, self.sub_layer_name, "need_last")
        data = inner.output
        if data.time_axis is None:
            return RecLastOutputPlan(data, inner)  # equal in all steps
        prev = previous_value(inner)
        if prev is not None and (data.beam is not None or prev.initial.is_computed):
            prev = None
        if prev is not None and prev.initial.node is not None:
            ctx.depend(prev.initial.node)
        return RecLastOutputPlan(data.without_axes([data.time_axis]), inner, prev)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the last step of each sequence."""
        last, data, prev = last_frame(ctx, self.plan.inner), self.plan.inner.output, self.plan.prev
        if prev is None or data.time_dim is None:
            return last
        first = prev.initial.emit(ctx, ctx.output)
        lens = ctx.lens(data.time_dim)
        if lens.shape.rank and ctx.output.batch_axis is None:
            lens = tf.reduce_max(lens)
        elif lens.shape.rank:
            lens = expand_at(lens, [i for i in range(ctx.output.rank) if i != ctx.output.batch_axis])
        return tf.where(lens > 0, last, first)


def layer_of_loop(ctx: PlanContext, loop: Any, name: str, needed: str) -> Node:
    """Return a layer of a loop, with its values of all steps.

    :param loop: a `rec` layer, or a subnetwork or copy that passes on its output
    :param needed: the option that the layer must have
    :raises ConfigError: no loop, no such layer, or its values are not kept
    """
    given = loop
    while isinstance(loop, Node) and not isinstance(loop.layer, RecLayer):
        loop = loop.sources[0] if loop.layer.forwards_state and len(loop.sources) == 1 else loop.passes_on
    if not isinstance(loop, Node) or not isinstance(loop.layer, RecLayer) or not isinstance(loop.layer.unit, dict):
        raise LoopError("%r is not a 'rec' layer with a network as unit." % (getattr(given, "path", given),))
    node = loop.layer.sub_node(ctx, name)
    if node is not None:
        return ctx.depend(node)
    if name not in loop.layer.unit and name.partition("/")[0] not in loop.layer.unit:
        raise LoopError("loop %r has no layer %r. %s" % (loop.path, name, did_you_mean(name, loop.layer.unit)))
    raise LoopError(
        "the values of layer %r of loop %r are not kept. Give that layer the option %r: True."
        % (name, loop.path, needed)
    )
