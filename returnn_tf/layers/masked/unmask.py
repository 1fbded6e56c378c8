"""`unmask`: selected frames put back to where a mask selected them."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.node import Node
from returnn_tf.graph.option_types import InitialOutput
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.masked.held_in_stream import held_in_stream, pass_on_held
from returnn_tf.layers.masked.held_initial import KEYWORDS, plan_held_initial
from returnn_tf.layers.masked.masked_computation import MaskedComputationLayer, initial_in_layout
from returnn_tf.layers.masked.pack import batch_of, check_mask, in_full_layout, leading, picked
from returnn_tf.ops.frames.masking import last_picked, spread
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf

_COUNT = "count"


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

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: the source with the frames of the mask."""
        data = ctx.single_source()
        self._masked = _masked_layer(self.source)
        packed = self._packed_dim(ctx, data)
        if packed is None:
            self._mode = self._emit_copy
            return data
        self._packed_layout = leading(data, batch_of(data, self.mask.output), packed)
        if ctx.in_step and ctx.loop_dim is None:
            return self._step_template(ctx, packed)
        frames = ctx.loop_dim if ctx.loop_dim is not None else self.mask.output.time_dim
        if frames is None:
            raise ctx.error("the mask %r %s has no time axis." % (self.mask.path, self.mask.output))
        check_mask(ctx, self.mask, frames)
        self._frames = frames
        output = self._packed_layout.with_dim(self._packed_layout.dims.index(packed), frames)
        if frames.is_loop and output.time_axis == output.dims.index(frames):
            output = output.replace(time_axis=None)
        self._plan_initial(ctx, output.without_axes([output.dims.index(frames)]))
        self._mode = self._emit_all
        return output

    def _packed_dim(self, ctx: PlanContext, data: Data) -> Optional[Dim]:
        """Return the dim of selected frames in the source; None if there are none to put back."""
        if data.unknown:
            return None
        if not ctx.in_step and ctx.loop_dim is None:
            if self._masked is not None and self._masked.frames in data.dims:
                return self._masked.frames
            if data.time_dim is None:
                raise ctx.error("the source %s has no time axis with selected frames." % data)
            return data.time_dim
        frames = self._masked.frames if self._masked is not None else None
        return frames if frames is not None and frames in data.dims else None

    def _plan_initial(self, ctx: PlanContext, data: Data) -> None:
        if self.initial_output is None and self._masked is not None:
            self.initial = self._masked.initial
            self._initial_owner: Node = self._masked.node
            return
        self.initial = plan_held_initial(ctx, self.initial_output, data, None, None)
        self._initial_owner = ctx.node

    def _step_template(self, ctx: PlanContext, packed: Dim) -> Data:
        check_mask(ctx, self.mask, None)
        layout = self._packed_layout
        output = layout.without_axes([layout.dims.index(packed)])
        self._plan_initial(ctx, output)
        batch = batch_of(output)
        self._count_data = Data(() if batch is None else (batch,), "int32")
        ctx.loop_state(_COUNT, self._count_data, lambda emit: tf.fill(_stack(emit.shape(self._count_data)), -1))
        self._mode = self._emit_step
        return output

    def emit(self, ctx: EmitContext) -> Any:
        """Emit what was planned: a copy, one step, or all frames."""
        return self._mode(ctx)

    def _emit_copy(self, ctx: EmitContext) -> Any:
        return ctx.source()

    def _emit_all(self, ctx: EmitContext) -> Any:
        batch = batch_of(self._packed_layout)
        index = last_picked(picked(ctx, self.mask, batch, self._frames))
        x = in_full_layout(ctx, self.source, self._packed_layout)
        initial = initial_in_layout(type(ctx)(self._initial_owner, ctx.lowering), self, ctx.output, self._frames)
        initial = held_in_stream(ctx, ctx.output, self._frames, initial)
        y = self._spread(x, index, initial, batch)
        pass_on_held(ctx, ctx.output, self._frames, initial, y)
        return y

    def _emit_step(self, ctx: EmitContext) -> Any:
        """Emit one step, counting the selected frames."""
        step = ctx.broadcast(self.mask, self._count_data)
        count = ctx.loop_state(_COUNT) + tf.cast(step, tf.int32)
        ctx.set_loop_state(_COUNT, count)
        x = in_full_layout(ctx, self.source, self._packed_layout)
        batch = batch_of(self._packed_layout)
        initial = tf.convert_to_tensor(self.initial.emit(type(ctx)(self._initial_owner, ctx.lowering), ctx.output))
        if initial.shape.rank:
            initial = tf.expand_dims(initial, 0 if batch is None else 1)
        index = tf.reshape(count, [-1, 1])
        y = self._spread(x, index, initial, batch)
        return tf.squeeze(y, axis=0 if batch is None else 1)

    def _spread(self, x: Any, index: Any, initial: Any, batch: Optional[Dim]) -> Any:
        if self.skip_initial:
            index = tf.maximum(index, 0)
        if batch is None:
            return spread(x[None], index, initial[None] if initial.shape.rank else initial)[0]
        return spread(x, index, initial)


def _masked_layer(node: Node) -> Optional[MaskedComputationLayer]:
    """Return the layer that selected the frames of a node, found along the first sources."""
    while not isinstance(node.layer, MaskedComputationLayer):
        inner = node.layer.inner
        if isinstance(inner, Node):
            node = inner
        elif node.sources:
            node = node.sources[0]
        else:
            return None
    return node.layer


def _stack(shape: Any) -> Any:
    return tf.stack(shape) if shape else []
