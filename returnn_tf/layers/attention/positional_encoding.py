"""`positional_encoding`: sinusoids of the position of each frame."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.config import ConfigError
from returnn_tf.config.options import LayerOrNumber, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxisOption, Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.loop_axis import frames_of, with_frames
from returnn_tf.layers.shared.numbers import need_numbers
from returnn_tf.ops.frames.positions import sinusoids
from returnn_tf.ops.frames.shape import to_layout
from returnn_tf.tensor import Data
from returnn_tf.tensor.match import common_layout
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class PositionalEncodingPlan(LayerPlan):
    """The plan of `PositionalEncodingLayer`.

    :param frames: the input, with the axis of the steps of a loop
    :param axis: that of the positions, in ``frames``; None: a step of a loop
    :param steps: the layout of the positions
    :param position: the layout of the positions with the offset
    """

    frames: Data
    axis: Optional[int]
    steps: Data
    position: Data


@register_layer("positional_encoding")
class PositionalEncodingLayer(ConcatInputLayer, Planned[PositionalEncodingPlan]):
    """``y[t] = [sin(t / s_0), ..., sin(t / s_n), cos(t / s_0), ..., cos(t / s_n)]``, with add_to_input ``x[t] + y[t]``.

    The time scales s go from 1 to 10000, in equal ratios; with an odd n_out the last feature is 0. Frames count from
    0. In a loop, and without a time axis, t is the step index.

    No parameters. Lengths: unchanged. Vaswani et al. 2017.

    Example::

        network = {"output": {"class": "positional_encoding", "add_to_input": True, "from": "data"}}
    """

    has_memory = True
    computes_all_steps = True
    add_to_input: bool = option(False, help="add the encoding to the source instead of replacing it")
    axis: Optional[AxisOption] = option(
        None, help="axis of the frames; default: time. In a loop, single_step_dim or the dim of its steps"
    )
    constant: int = option(-1, help="if not negative: this position for all frames")
    offset: Optional[LayerOrNumber] = option(
        None, help="number or layer [batch] or [batch, time] to add to the positions", refs=True
    )

    def template(self, ctx: PlanContext) -> PositionalEncodingPlan:
        """Infer the output: the feature axis replaced, for sparse sources appended."""
        data = self.input_template(ctx)
        frames, axis = frames_of(ctx, data, "T" if self.axis is None else self.axis)
        if axis is None and frames.batch_axis is not None:
            steps = Data((frames.dims[frames.batch_axis],), "int32")
        else:
            steps = Data(() if axis is None else (frames.dims[axis],), "int32")
        if axis is None:
            ctx.loop_state("position", steps, lambda emit: tf.zeros(_shape(emit, steps), "int32"))
        position = steps
        if isinstance(self.offset, Node):
            position = self._with_offset(ctx, steps, self.offset.output)
        return PositionalEncodingPlan(
            self._output(ctx, frames), frames=frames, axis=axis, steps=steps, position=position
        )

    def _output(self, ctx: PlanContext, frames: Data) -> Data:
        if self.add_to_input:
            need_numbers(ctx, frames, "add_to_input", floats=True)
            size = ctx.need_static(ctx.need_feature(frames), "the feature axis of the source")
            if self.n_out not in (None, size):
                raise ctx.error("n_out is %s, but add_to_input adds to %d features. Omit it." % (self.n_out, size))
            return frames.replace(vocab=None)
        out = ctx.out_feature(default=frames.feature_dim)
        ctx.need_static(out, "out_dim")
        sparse = frames.sparse_dim is not None
        data = frames.replace(dtype=ctx.float_dtype, sparse_dim=None, vocab=None)
        if sparse or data.feature_axis is None:
            return data.with_axis(data.rank, out, feature=True)
        return data.with_feature(data.feature_axis, out)

    def _with_offset(self, ctx: PlanContext, steps: Data, offset: Data) -> Data:
        if offset.feature_axis is not None and offset.dims[offset.feature_axis].size != 1:
            raise ctx.error("offset is %s, but it must be one number by sequence or by frame." % offset)
        if offset.feature_axis is not None:
            offset = offset.without_axes([offset.feature_axis])
        try:
            return common_layout([steps, offset.replace(dtype="int32")], allow_broadcast_all=True)
        except ConfigError as exc:
            raise ctx.error("offset does not fit to the frames: %s" % exc) from exc

    def emit(self, ctx: EmitContext) -> Any:
        """Emit sinusoids of all positions at once."""
        data = ctx.output
        n_out = data.dim
        assert n_out is not None and data.feature_dim is not None
        layout, positions = self._positions(ctx)
        signal = sinusoids(positions, n_out, ctx.float_dtype)
        layout = layout.with_axis(layout.rank, data.feature_dim, feature=True)
        signal = to_layout(signal, layout, data)
        if not self.add_to_input:
            return tf.broadcast_to(signal, _shape(ctx, data))
        return with_frames(ctx, self.emit_input(ctx), self.input, self.plan.frames) + tf.cast(signal, data.dtype)

    def ignores_padding(self) -> bool:
        """Return True: it adds to each frame what depends on its position."""
        return not self.dropout or self.drops_by_frame()

    def _positions(self, ctx: EmitContext) -> tuple[Data, Any]:
        """Return the positions, and their template."""
        steps, position = self._counter(ctx)
        if self.constant >= 0:
            position = tf.fill(tf.shape(position), self.constant)
        if self.offset is None:
            return steps, position
        if not isinstance(self.offset, Node):
            return steps, tf.cast(position, ctx.float_dtype) + float(self.offset)
        layout = common_layout([steps, self.plan.position], allow_broadcast_all=True)
        position = to_layout(position, steps, layout)
        return layout, position + tf.cast(to_layout(ctx.value(self.offset), self.offset.output, layout), tf.int32)

    def _counter(self, ctx: EmitContext) -> tuple[Data, Any]:
        """Return the position of each frame with its template; in a step of a loop, the step of each sequence."""
        if self.plan.axis is None:
            position = ctx.loop_state("position")
            ctx.set_loop_state("position", position + 1)
            return self.plan.steps, position
        dim = self.plan.steps.dims[0]
        position = tf.range(ctx.size(dim))
        if not ctx.continues or not dim.is_dynamic() or self.constant >= 0:
            return self.plan.steps, position
        batch = self.plan.frames.batch_axis
        seqs = Data(() if batch is None else (self.plan.frames.dims[batch],), "int32")
        before = ctx.state_before("position", seqs, tf.zeros(_shape(ctx, seqs), tf.int32))
        ctx.state_after("position", seqs, before + ctx.lens(dim))
        return Data((*seqs.dims, dim), "int32"), tf.expand_dims(before, -1) + position


def _shape(ctx: EmitContext, data: Data) -> Any:
    sizes = ctx.shape(data)
    return tf.stack(sizes) if sizes else []
