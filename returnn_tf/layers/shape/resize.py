"""`resize`: resampling of an axis."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Optional, Union

from returnn_tf.config.options import LayerOrNumber, option, probability
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axis
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shape.prefix_postfix import frame_axis
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.dense.resize import RESIZE_KINDS, resize
from returnn_tf.ops.frames.shape import size_of, transpose
from returnn_tf.ops.frames.windows import interleave
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class ResizePlan(LayerPlan):
    """The plan of `ResizeLayer`.

    :param order: of the axes of the input in the output
    """

    order: Sequence[int]


@register_layer("resize")
class ResizeLayer(ConcatInputLayer, Planned[ResizePlan]):
    """Makes one axis ``factor`` times as long: by repetition, by interpolation, or by filling the gaps.

    Output frame t is at ``t / factor`` of the source. Kind "nn" takes the frame before that position, "linear" and
    "cubic" interpolate over the whole array, "fill" puts ``factor - 1`` frames with ``fill_value`` after every frame;
    with ``fill_dropout`` each of these is dropped in training with this probability, the same ones in all sequences.
    The output is [batch, axis, others].

    No parameters. Lengths: ``ceil(n * factor)``; with fill_dropout in training the number of remaining frames.

    Example::

        network = {"output": {"class": "resize", "axis": "T", "factor": 2, "kind": "linear", "from": "data"}}
    """

    factor: LayerOrNumber = option(help="factor of the length: a number, or a layer with one", refs=True)
    axis: Axis = option(help="the axis to resize")
    kind: str = option("nn", choices=(*RESIZE_KINDS, "fill"), help="how to compute the new frames; nn: the nearest")
    fill_value: Union[None, int, float, bool] = option(None, help="kind 'fill': value of the new frames (default 0)")
    fill_dropout: float = option(
        0.0, check=probability, help="kind 'fill': fraction of the new frames to drop in training"
    )

    def template(self, ctx: PlanContext) -> ResizePlan:
        """Infer the output: batch, the longer axis, others."""
        data = self.input_template(ctx)
        axis = frame_axis(ctx, data, self.axis)
        self._check_kind(ctx, data)
        self._check_factor(ctx)
        front = [axis] if data.batch_axis is None else [data.batch_axis, axis]
        order = front + [i for i in range(data.rank) if i not in front]
        out = data.permuted(order)
        return ResizePlan(out.with_dim(len(front) - 1, ctx.bind(self.out_dim, self._new_dim(ctx, data, axis))), order)

    def _check_factor(self, ctx: PlanContext) -> None:
        if isinstance(self.factor, Node):
            self._check_layer(ctx, self.factor)
        elif isinstance(self.factor, str) or not 0 < self.factor < math.inf:
            raise ctx.error("factor must be positive and finite, got %s." % self.factor)
        elif self.kind == "fill" and self.factor != int(self.factor):
            raise ctx.error("kind 'fill' needs a whole number as factor, got %s." % self.factor)

    def _check_kind(self, ctx: PlanContext, data: Data) -> None:
        if self.kind != "fill" and (self.fill_value is not None or self.fill_dropout):
            raise ctx.error("fill_value and fill_dropout are for kind 'fill' only.")
        if self.kind in ("linear", "cubic") and data.dtype != "float32":
            raise ctx.error("kind %r needs a source of float32, not %s." % (self.kind, data.dtype))

    def _check_layer(self, ctx: PlanContext, node: Node) -> None:
        data = node.output
        if data.unknown:
            return
        if data.rank or data.sparse or data.dtype not in ("int32", "int64", "float32", "float64"):
            raise ctx.error("factor: the layer %r must give one number, not %s." % (node.path, data))
        if self.kind == "fill":
            raise ctx.error("kind 'fill' needs a number as factor, not the layer %r." % node.path)

    def _new_dim(self, ctx: PlanContext, data: Data, axis: int) -> Dim:
        dim, factor = data.dims[axis], self.factor
        if isinstance(factor, Node):
            return ctx.new_spatial(None, "resized")
        if dim.size is not None and not self.fill_dropout:
            size = int(-(-dim.size * factor // 1))
            return ctx.new_feature(size) if axis == data.feature_axis else ctx.new_spatial(size, "resized")
        if factor == int(factor) and not self.fill_dropout:
            return dim * int(factor)
        return ctx.new_spatial(None, "resized")

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a resize op with all other axes as one."""
        x = transpose(self.emit_input(ctx), self.plan.order)
        at = 0 if self.input.batch_axis is None else 1
        dim, out_dim = self.input.dims[self.plan.order[at]], ctx.output.dims[at]
        frames = size_of(x, at)
        if self.kind == "fill":
            return self._fill(ctx, x, at, dim, out_dim)
        if out_dim.size is None and out_dim.expr is None:
            ctx.define_lens(out_dim, self._longer(ctx, ctx.lens(dim)), size=self._longer(ctx, frames))
        shape = [size_of(x, i) for i in range(x.shape.rank)]
        y = tf.reshape(x, tf.stack([shape[0] if at else 1, frames, -1]))
        y = resize(y, self.kind, ctx.size(out_dim))
        shape[at] = ctx.size(out_dim)
        return tf.reshape(y, tf.stack(shape))

    def _longer(self, ctx: EmitContext, lens: Any) -> Any:
        factor = tf.cast(ctx.value(self.factor), tf.float32) if isinstance(self.factor, Node) else self.factor
        return tf.cast(tf.math.ceil(tf.cast(lens, tf.float32) * factor), tf.int32)

    def _fill(self, ctx: EmitContext, x: Any, at: int, dim: Dim, out_dim: Dim) -> Any:
        factor = int(self.factor)
        new = tf.fill(tf.shape(x), tf.cast(self.fill_value or 0, x.dtype))
        y = interleave([x] + [new] * (factor - 1), at)
        if not self.fill_dropout:
            return y
        kept, lens = self._kept_frames(ctx, ctx.size(dim), ctx.lens(dim), factor)
        ctx.define_lens(out_dim, lens, size=tf.shape(kept)[0])
        return tf.gather(y, kept, axis=at)

    def _kept_frames(self, ctx: EmitContext, frames: Any, lens: Any, factor: int) -> tuple[Any, Any]:
        """Return (indices of the frames that fill_dropout keeps, their number in each sequence)."""
        index = tf.range(frames * factor)
        keep = index % factor == 0
        if ctx.train:
            draws = tf.random.stateless_uniform(tf.shape(index), ctx.seed("fill_dropout"))
            keep = tf.logical_or(keep, draws >= self.fill_dropout)
        else:
            keep = tf.ones_like(keep)
        before: Optional[Any] = tf.cumsum(tf.concat([[0], tf.cast(keep, tf.int32)], axis=0))
        return tf.boolean_mask(index, keep), tf.gather(before, lens * factor)
