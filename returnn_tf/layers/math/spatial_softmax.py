"""`softmax_over_spatial` (attention weights) and `batch_softmax`: softmax over valid frames."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.config.options import LayerOrNumber, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axis
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.attention_parts import note_weights
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.loop_axis import with_frames, with_steps_of
from returnn_tf.ops.frames.shape import expand_at, move_axis, moved_axis_perm, to_layout
from returnn_tf.ops.softmax import masked_softmax
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class SoftmaxOverSpatialPlan(LayerPlan):
    """The plan of `SoftmaxOverSpatialLayer`.

    :param frames: the input, with the steps of the loop if start or window vary with them
    :param axis: of the softmax
    :param moved: the same with this axis as its last one
    """

    frames: Data
    axis: int
    moved: Data


@register_layer("softmax_over_spatial")
class SoftmaxOverSpatialLayer(ConcatInputLayer, Planned[SoftmaxOverSpatialPlan]):
    """``y = softmax(energy_factor * x)`` over one axis, by default time; that axis is the last one of the output.

    Frames after the end of a sequence, before ``start`` or outside the window
    ``window_start <= frame < window_start + window_size`` get exactly 0 (in log_space -inf). Where no frame is left,
    all are 0. No parameters. Lengths: unchanged.

    Example::

        network = {
            "energy": {"class": "linear", "activation": None, "n_out": 1, "from": "data"},
            "output": {"class": "softmax_over_spatial", "energy_factor": 0.5, "from": "energy"}}
    """

    gives_attention_weights = True
    axis: Optional[Axis] = option(None, help="the axis of the softmax (default: time)")
    energy_factor: Optional[float] = option(None, help="factor of the source")
    start: Optional[LayerOrNumber] = option(None, help="layer or number: first frame to include", refs=True)
    window_start: Optional[LayerOrNumber] = option(None, help="layer or number: first frame of the window", refs=True)
    window_size: Optional[LayerOrNumber] = option(
        None, help="layer or number: number of frames of the window", refs=True
    )
    use_time_mask: Optional[bool] = option(None, help="False: frames after the end of a sequence count too")
    log_space: bool = option(False, help="compute the log softmax instead")

    @property
    def in_log_space(self) -> bool:
        """Return the option ``log_space``."""
        return self.log_space

    def template(self, ctx: PlanContext) -> SoftmaxOverSpatialPlan:
        """Infer the output: the axis moved to the end."""
        data = with_steps_of(ctx, self.input_template(ctx), [self.start, self.window_start, self.window_size])
        if (self.window_start is None) != (self.window_size is None):
            raise ctx.error("window_start and window_size go together; give both or none.")
        axis = self._find_axis(ctx, data)
        if not data.dtype.startswith(("float", "bfloat")):
            raise ctx.error("the source has dtype %s, but energies must be floats." % data.dtype)
        moved = data.permuted(moved_axis_perm(data.rank, axis, data.rank - 1))
        rest = moved.without_axes([data.rank - 1])
        for name in ("start", "window_start", "window_size"):
            node = getattr(self, name)
            if isinstance(node, Node):
                self._check_position(ctx, name, node, rest)
        return SoftmaxOverSpatialPlan(moved.replace(vocab=None), data, axis, moved)

    def _find_axis(self, ctx: PlanContext, data: Data) -> int:
        if self.axis is not None:
            return ctx.axis(data, self.axis)
        if data.time_axis is not None:
            return data.time_axis
        dynamic = [i for i in data.dynamic_axes if i not in data.loop_axes]
        if len(dynamic) == 1:
            return dynamic[0]
        raise ctx.error("the source %s has no time axis. Name the axis of the softmax by the option 'axis'." % data)

    def _check_position(self, ctx: PlanContext, name: str, node: Node, rest: Data) -> None:
        for dim in node.output.dims:
            if dim.size != 1 and not any(dim.agrees_with(d) or (dim.is_batch and d.is_batch) for d in rest.dims):
                raise ctx.error("%s is %s, but its axis %s is not one of %s." % (name, node.output, dim, rest))

    def emit(self, ctx: EmitContext) -> Any:
        """Emit transpose, masks, softmax over the last axis."""
        frames = self.plan.frames
        energies = with_frames(ctx, self.emit_input(ctx), self.input, frames)
        x = move_axis(energies, frames.rank, self.plan.axis, frames.rank - 1)
        if self.energy_factor is not None and self.energy_factor != 1:
            x = x * self.energy_factor
        y = masked_softmax(x, self._mask(ctx), log_space=self.log_space)
        if self._sees_all_frames():
            perm = moved_axis_perm(frames.rank, self.plan.axis, frames.rank - 1)
            note_weights(
                ctx, y, energies, self.plan.moved, perm, 1.0 if self.energy_factor is None else self.energy_factor
            )
        return y

    def masks_padding(self) -> bool:
        """Return whether frames after the end of a sequence have no weight."""
        over_frames = self.plan.frames.dims[self.plan.axis].is_dynamic()
        return over_frames and self.use_time_mask is not False and not self.log_space

    def ignores_padding(self) -> bool:
        """Return whether they have none."""
        return self.use_time_mask is not False and (not self.dropout or self.drops_by_frame())

    def _sees_all_frames(self) -> bool:
        """Return whether these are weights of all frames of one source, and of no others."""
        limited = self.start is not None or self.window_start is not None or self.use_time_mask is False
        return not (limited or self.log_space or self.dropout or len(self.sources) != 1)

    def _mask(self, ctx: EmitContext) -> Optional[Any]:
        """Return the mask of valid frames [..., axis]; None if all are."""
        data = self.plan.moved
        last = data.rank - 1
        dim = data.dims[last]
        parts = []
        if self.use_time_mask is not False and dim.is_dynamic():
            parts.append(ctx.mask(data, last))
        frames = expand_at(tf.range(ctx.size(dim)), range(last))
        if self.start is not None:
            parts.append(frames >= self._position(ctx, self.start))
        if self.window_start is not None:
            first = self._position(ctx, self.window_start)
            parts += [frames >= first, frames < first + self._position(ctx, self.window_size)]
        mask = None
        for part in parts:
            mask = part if mask is None else tf.logical_and(mask, part)
        return mask

    def _position(self, ctx: EmitContext, value: Any) -> Any:
        if not isinstance(value, Node):
            return tf.constant(int(value))
        return tf.cast(to_layout(ctx.value(value), value.output, self.plan.moved), tf.int32)


@register_layer("batch_softmax")
class BatchSoftmaxLayer(ConcatInputLayer):
    """Softmax over all frames and features of a sequence jointly: the outputs of each sequence sum to 1.

    Frames after the end get 0. No parameters. Lengths: unchanged.

    Example::

        network = {"output": {"class": "batch_softmax", "from": "data"}}
    """

    takes_ints = False
    takes_complex = False

    def template(self, ctx: PlanContext) -> Data:
        """Return the template of the source."""
        data = self.input_template(ctx)
        ctx.need_feature(data)
        return data

    def emit(self, ctx: EmitContext) -> Any:
        """Emit softmax over the flattened axes."""
        data = self.input
        axes = [i for i in range(data.rank) if i not in (data.batch_axis, *data.loop_axes)]
        return masked_softmax(self.emit_input(ctx), ctx.masks(data, axes), axes=axes)
