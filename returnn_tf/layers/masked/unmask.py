"""`unmask`: selected frames put back to where a mask selected them."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional, Union

from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer, Node
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import InitialOutput
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.masked.held import HeldPartLayer, HeldPlan, initial_in_layout
from returnn_tf.layers.masked.held_initial import KEYWORDS, HeldInitial, held_in_stream, pass_on_held, plan_held_initial
from returnn_tf.layers.masked.masked_computation import MaskedComputationLayer
from returnn_tf.layers.masked.pack import batch_of, check_mask, in_full_layout, leading, picked
from returnn_tf.ops.frames.masking import last_picked, spread
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf

_COUNT = "count"


@dataclasses.dataclass(frozen=True, eq=False)
class UnmaskPlan(LayerPlan):
    """The plan of `UnmaskLayer`, where it is no copy.

    :param packed: the layout of the source, batch axis and selected frames first
    :param initial: the output before the first selected frame
    :param initial_owner: the layer that this is declared for
    :param frames: the dim of all frames; None: one step of a loop
    :param count: for one step: the layout of the number of frames selected so far
    """

    packed: Data
    initial: HeldInitial
    initial_owner: Node
    frames: Optional[Dim]
    count: Optional[Data] = None


@register_layer("unmask")
class UnmaskLayer(Layer):
    """For each frame the last selected frame of the source up to it, before the first one ``initial_output``.

    In a loop `masked_computation` outputs a value in each step anyway, so there this is a copy, except for sources
    that consist of selected frames themselves, e.g. by ``masked_from``.

    Lengths: those of the mask.

    Example::

        network = {
            "energy": {"class": "reduce", "mode": "sum", "axes": "F", "from": "data"},
            "mask": {"class": "compare", "kind": "greater", "value": 0.0, "from": "energy"},
            "h": {"class": "masked_computation", "mask": "mask", "from": "data",
                  "unit": {"class": "linear", "activation": "tanh", "n_out": 3}},
            "output": {"class": "unmask", "mask": "mask", "from": "h"}}
    """

    has_memory = True
    computes_all_steps = True
    keeps_features = True
    mask: LayerRef = option(help="layer with a bool per frame: the positions of the source frames", refs=True)
    skip_initial: bool = option(
        False,
        help="before the first selected frame output that frame, not initial_output; for masks that start true",
    )
    initial_output: InitialOutput = option(
        None, help="output before the first selected frame; default: that of the layer with the mask, else zeros",
        refs=True, keywords=KEYWORDS,
    )  # fmt: skip

    def template(self, ctx: PlanContext) -> Union[Data, UnmaskPlan]:
        """Infer the output: the source with the frames of the mask."""
        data = ctx.single_source()
        masked = _masked_layer(self.source)
        selected = masked.found.frames if masked is not None and isinstance(masked.found, HeldPlan) else None
        packed = self._packed_dim(ctx, data, selected)
        if packed is None:
            return data
        layout = leading(data, batch_of(data, self.mask.output), packed)
        if ctx.in_step and ctx.loop_dim is None:
            check_mask(ctx, self.mask, None)
            output = layout.without_axes([layout.dims.index(packed)])
            initial = self._planned_initial(ctx, masked, output)
            batch = batch_of(output)
            count = Data(() if batch is None else (batch,), "int32")
            ctx.loop_state(_COUNT, count, lambda emit: tf.fill(_stack(emit.shape(count)), -1))
            return UnmaskPlan(output, layout, *initial, frames=None, count=count)
        frames = ctx.loop_dim if ctx.loop_dim is not None else self.mask.output.time_dim
        if frames is None:
            raise ctx.error("the mask %r %s has no time axis." % (self.mask.path, self.mask.output))
        check_mask(ctx, self.mask, frames)
        output = layout.with_dim(layout.dims.index(packed), frames)
        if frames.is_loop and output.time_axis == output.dims.index(frames):
            output = output.replace(time_axis=None)
        initial = self._planned_initial(ctx, masked, output.without_axes([output.dims.index(frames)]))
        return UnmaskPlan(output, layout, *initial, frames=frames)

    def _packed_dim(self, ctx: PlanContext, data: Data, selected: Optional[Dim]) -> Optional[Dim]:
        """Return the dim of selected frames in the source; None if no frames were selected.

        :param selected: the dim of the frames that the layer with the mask selected
        """
        if data.unknown:
            return None
        if selected is not None and selected in data.dims:
            return selected
        if ctx.in_step or ctx.loop_dim is not None:
            return None
        if data.time_dim is None:
            raise ctx.error("the source %s has no time axis with selected frames." % data)
        return data.time_dim

    def _planned_initial(self, ctx: PlanContext, masked: Optional[Node], data: Data) -> tuple[HeldInitial, Node]:
        if self.initial_output is None and masked is not None and isinstance(masked.found, HeldPlan):
            return masked.found.initial, masked
        return plan_held_initial(ctx, self.initial_output, data, None, None), ctx.node

    def emit(self, ctx: EmitContext) -> Any:
        """Emit what was planned: a copy, one step, or all frames."""
        plan = self.plan
        if not isinstance(plan, UnmaskPlan):
            return ctx.source()
        x, batch = in_full_layout(ctx, self.source, plan.packed), batch_of(plan.packed)
        owner = type(ctx)(plan.initial_owner, ctx.lowering)
        if plan.frames is None:
            return self._emit_step(
                ctx, x, batch, plan.count, tf.convert_to_tensor(plan.initial.emit(owner, ctx.output))
            )
        index = last_picked(picked(ctx, self.mask, batch, plan.frames))
        initial = initial_in_layout(owner, plan.initial, ctx.output, plan.frames)
        initial = held_in_stream(ctx, ctx.output, plan.frames, initial)
        y = self._spread(x, index, initial, batch)
        pass_on_held(ctx, ctx.output, plan.frames, initial, y)
        return y

    def _emit_step(self, ctx: EmitContext, x: Any, batch: Optional[Dim], layout: Any, initial: Any) -> Any:
        """Emit one step, counting the selected frames.

        :param layout: of their number
        """
        count = ctx.loop_state(_COUNT) + tf.cast(ctx.broadcast(self.mask, layout), tf.int32)
        ctx.set_loop_state(_COUNT, count)
        if initial.shape.rank:
            initial = tf.expand_dims(initial, 0 if batch is None else 1)
        y = self._spread(x, tf.reshape(count, [-1, 1]), initial, batch)
        return tf.squeeze(y, axis=0 if batch is None else 1)

    def _spread(self, x: Any, index: Any, initial: Any, batch: Optional[Dim]) -> Any:
        if self.skip_initial:
            index = tf.maximum(index, 0)
        if batch is None:
            return spread(x[None], index, initial[None] if initial.shape.rank else initial)[0]
        return spread(x, index, initial)


def _masked_layer(node: Node) -> Optional[Node]:
    """Return the layer that selected the frames of a node, found along the first sources."""
    while not isinstance(node.layer, (MaskedComputationLayer, HeldPartLayer)):
        if node.passes_on is not None:
            node = node.passes_on
        elif node.sources:
            node = node.sources[0]
        else:
            return None
    return node


def _stack(shape: Any) -> Any:
    return tf.stack(shape) if shape else []
