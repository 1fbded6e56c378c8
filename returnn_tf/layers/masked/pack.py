"""The frames that a mask selects, packed, or alone in a step; created by `masked_computation`."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer, Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.ops.frames.empty_axes import at_least_one
from returnn_tf.ops.frames.masking import packed_frames, packed_lens
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class PackPlan(LayerPlan):
    """The plan of `PackLayer`.

    :param full: the first source with the batch axis first and the frames second
    """

    full: Data


class PackLayer(Planned[PackPlan]):
    """The first source at the frames where the second one is true.

    :param frames: the dim with the frames; a source without it is equal in all frames
    :param packed: the dim that replaces it, with the numbers of selected frames as its lengths
    """

    class_name = "pack"

    def __init__(self, frames: Dim, packed: Dim) -> None:
        super().__init__()
        self.frames, self.packed = frames, packed

    def template(self, ctx: Any) -> PackPlan:
        """Infer the output: batch axis first, packed axis second, then the others."""
        mask = self.sources[1].output
        data = leading(self.source.output, batch_of(self.source.output, mask), self.frames)
        return PackPlan(data.with_dim(data.dims.index(self.frames), self.packed), data)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a gather of the frames."""
        x = in_full_layout(ctx, self.source, self.plan.full)
        mask = picked(ctx, self.sources[1], batch_of(self.plan.full), self.frames)
        lens = packed_lens(mask)
        # At least one frame, so that later layers never see an axis of size 0.
        size = tf.reduce_max(tf.concat([lens, [1]], axis=0))
        places = packed_frames(mask, size)
        x = at_least_one(x, self.plan.full.dims.index(self.frames))
        if self.plan.full.batch_axis is None:
            ctx.define_lens(self.packed, lens[0], size)
            return _padded(tf.gather(x, places[0]), tf.range(size) < lens[0])
        ctx.define_lens(self.packed, lens, size)
        return _padded(tf.gather(x, places, batch_dims=1), tf.sequence_mask(lens, size))


def _padded(x: Any, inside: Any) -> Any:
    """Set padded indices to 0, which every layer can handle, unlike possibly those of unselected frames.

    :param x: [..., more axes], with the axes of ``inside`` first
    """
    if not x.dtype.is_integer:
        return x
    more = tf.ones([x.shape.rank - inside.shape.rank], tf.int32)
    return tf.where(tf.reshape(inside, tf.concat([tf.shape(inside), more], axis=0)), x, tf.zeros_like(x))


class PickedIndexLayer(Layer):
    """In a step of a loop: the indices of the first source where the second one is true, else 0.

    The unit of `masked_computation` is computed for the whole batch there, even for sequences whose frame is not
    selected. That frame may be a label that the unit does not know, such as the blank of a transducer.
    """

    class_name = "picked_index"

    @staticmethod
    def suits(source: Data, mask: Data) -> bool:
        """Return whether the source holds indices, each with a value of the mask."""
        return source.dtype.startswith(("int", "uint")) and set(mask.dims) <= set(source.dims)

    def template(self, ctx: Any) -> Data:
        """Return the template of the first source."""
        return self.source.output

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one where op."""
        x = ctx.source()
        return tf.where(ctx.broadcast(self.sources[1], ctx.output), x, tf.zeros_like(x))


def batch_of(*datas: Data) -> Optional[Dim]:
    """Return the batch dim of the first template that has one."""
    return next((d for data in datas for d in data.dims if d.is_batch), None)


def leading(data: Data, batch: Optional[Dim], frames: Dim) -> Data:
    """Return the template with the batch axis first and the frames second; missing ones are added."""
    if frames not in data.dims:
        data = data.with_axis(0, frames)
    if batch is not None and data.batch_axis is None:
        data = data.with_axis(0, batch)
    first = [axis for axis in (data.batch_axis, data.dims.index(frames)) if axis is not None]
    return data.permuted(first + [axis for axis in range(data.rank) if axis not in first])


def in_full_layout(ctx: EmitContext, node: Node, layout: Data) -> Any:
    """Return the value of a node in the layout, repeated along axes that it lacks."""
    x = ctx.broadcast(node, layout)
    return x if node.output.rank == layout.rank else tf.broadcast_to(x, tf.stack(ctx.shape(layout)))


def picked(ctx: EmitContext, mask: Node, batch: Optional[Dim], frames: Dim) -> Any:
    """Return the mask as bool [batch or 1, frames], false in the padding."""
    dims = (frames,) if batch is None else (batch, frames)
    value = ctx.broadcast(mask, Data(dims, "bool"))
    if frames.is_dynamic():
        value = tf.logical_and(value, ctx.seq_mask(frames))
    value = tf.broadcast_to(value, tf.stack([ctx.size(d) for d in dims]))
    return tf.expand_dims(value, 0) if batch is None else value


def check_mask(ctx: PlanContext, mask: Any, frames: Optional[Dim]) -> None:
    """Check that a mask is bool with one value per sequence and frame.

    :param frames: the dim of the frames, None in a step of a loop
    :raises ConfigError: shows the actual template
    """
    if not isinstance(mask, Node):
        raise ctx.error("the option 'mask' must name a layer with a bool for each frame, not %r." % (mask,))
    data = mask.output
    if data.unknown:
        return
    if data.dtype != "bool":
        raise ctx.error(
            "the mask %r must be bool, but it is %s. Compare it, e.g. by a layer of class 'compare'."
            % (mask.path, data)
        )
    rest = [dim for dim in data.dims if not dim.is_batch and dim is not frames and dim.size != 1]
    if rest:
        raise ctx.error(
            "the mask %r is %s, but it must have one value for each %s. Reduce the axis %s, or let the frames of mask "
            "and source be the same dim (reinterpret_data with size_base)."
            % (mask.path, data, "sequence" if frames is None else "frame of %s" % frames, rest[0])
        )
