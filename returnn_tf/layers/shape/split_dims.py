"""`split_dims`: one axis split into several; `split_batch_time`: inverse of the merge of batch and time."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxisOption
from returnn_tf.graph.option_types import Number, Shape
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.frames.pad import pad_array
from returnn_tf.ops.frames.shape import size_of, sizes_of, split_axis
from returnn_tf.tensor import Data, Dim, DimKind


@register_layer("split_dims")
class SplitDimsLayer(ConcatInputLayer):
    """The inverse of `merge_dims`: with ``dims`` = (m, n), entry ``i * n + j`` becomes entry ``(i, j)``.

    One of the dims may be -1 and is inferred. If a dynamic axis is split, it is padded to a multiple first.
    Of a split feature axis, the last part is the feature axis.
    Lengths: ``ceil(lengths / n)``, n being the product of the given sizes.

    Example::

        network = {"output": {"class": "split_dims", "axis": "F", "dims": (2, -1), "from": "data"}}
    """

    axis: AxisOption = option(help="the axis to split")
    dims: Shape = option(help="sizes or dims of the parts, one may be -1")
    pad_to_multiples: Optional[bool] = option(None, help="pad the axis to a multiple (default: if it is dynamic)")
    pad_value: Number = option(0, help="padding value")

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: the parts instead of the axis."""
        data = self.input_template(ctx)
        self.split = axis = ctx.axis(data, self.axis)
        dim = data.dims[axis]
        given = list(self.dims)
        open_parts = [i for i, d in enumerate(given) if _is_open(d)]
        if len(open_parts) > 1:
            raise ctx.error("dims %s: only one of them can be -1 or a dim of unknown size." % (tuple(given),))
        self.known = 1
        for part in given:
            if not _is_open(part):
                self.known *= (part.size or 0) if isinstance(part, Dim) else part
        self.rest = self._rest_dim(ctx, dim, bool(open_parts))
        parts = [self._part(ctx, data, i) for i in range(len(given))]
        return self._out(data, parts, open_parts)

    def _rest_dim(self, ctx: PlanContext, dim: Dim, has_open: bool) -> Dim:
        """Return the size that remains for the open part."""
        pads = dim.is_dynamic if self.pad_to_multiples is None else self.pad_to_multiples
        if self.known <= 0:
            raise ctx.error("dims %s: sizes must be positive, except for one -1." % (tuple(self.dims),))
        if not has_open:
            if dim.size is None:
                raise ctx.error("the axis %s is dynamic, so one of the dims %s must be -1." % (dim, tuple(self.dims)))
            if dim.size != self.known and not (pads and dim.size <= self.known):
                raise ctx.error(
                    "dims %s multiply to %d, but the axis has %s." % (tuple(map(str, self.dims)), self.known, dim)
                )
        elif dim.size is not None and dim.size % self.known and not pads:
            raise ctx.error(
                "the size of the axis %s is not a multiple of %d. Choose other dims, or set pad_to_multiples."
                % (dim, self.known)
            )
        return dim.ceildiv_right(self.known)

    def _part(self, ctx: PlanContext, data: Data, index: int) -> Dim:
        given = self.dims[index]
        if isinstance(given, Dim) and not _is_open(given):
            return given
        is_feature = self.split == data.feature_axis and index == len(self.dims) - 1
        if _is_open(given):
            rest = self.rest
            if rest.size is not None and rest is not data.dims[self.split] and not isinstance(given, Dim):
                kind = DimKind.FEATURE if is_feature else DimKind.SPATIAL
                rest = Dim(kind, rest.size, rest.description or "%s:split%d" % (self.node.path, index), auto=True)
            return ctx.bind(given, rest) if isinstance(given, Dim) else rest
        name = "%s:split%d" % (self.node.path, index)
        return ctx.new_feature(given, name) if is_feature else Dim(DimKind.SPATIAL, given, name, auto=True)

    def _out(self, data: Data, parts: list[Dim], open_parts: list[int]) -> Data:
        axis, grown = self.split, len(parts) - 1

        def moved(old: Optional[int]) -> Optional[int]:
            return old if old is None or old < axis else old + grown

        feature, time = moved(data.feature_axis), moved(data.time_axis)
        if data.time_axis == axis:
            time = axis + (open_parts[0] if open_parts else 0)
        dims = data.dims[:axis] + tuple(parts) + data.dims[axis + 1 :]
        return data.replace(dims=dims, feature_axis=feature, time_axis=time)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a reshape; of a dynamic axis after padding."""
        x = self.emit_input(ctx)
        axis, dim = self.split, self.input.dims[self.split]
        size = size_of(x, axis)
        rest = -(-size // self.known)
        if dim.is_dynamic or (dim.size is not None and dim.size % self.known):
            pads: list[Any] = [0] * self.input.rank
            pads[axis] = rest * self.known - size
            x = pad_array(x, [0] * self.input.rank, pads, self.pad_value)
        parts = ctx.output.dims[axis : axis + len(self.dims)]
        if self.rest.size is None and self.rest.expr is not None and self.rest in parts:
            ctx.define_size(self.rest, rest)
        sizes = [rest if _is_open(d) else (d.size if isinstance(d, Dim) else d) for d in self.dims]
        return split_axis(x, axis, sizes)


def _is_open(part: Any) -> bool:
    return part.size is None if isinstance(part, Dim) else part == -1


@register_layer("split_batch_time")
class SplitBatchTimeLayer(ConcatInputLayer):
    """[batch * time, ...] becomes [batch, time, ...] again, after a `merge_dims` of batch and time.

    Lengths: those of ``base``.

    Example::

        network = {
            "m": {"class": "merge_dims", "axes": ["B", "T"], "from": "data"},
            "l": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "m"},
            "output": {"class": "split_batch_time", "base": "data", "from": "l"}}
    """

    base: LayerRef = option(help="layer with the batch and time axes", refs=True)

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: batch and time of the base instead of the batch axis."""
        data, base = self.input_template(ctx), self.base.output
        axis = data.batch_axis
        if axis is None or base.batch_axis is None or base.time_dim is None:
            raise ctx.error("the source needs a batch axis, the base %s batch and time." % base)
        time = None if data.time_axis == axis else data.time_axis
        return (
            data.replace(time_axis=time)
            .with_dim(axis, base.dims[base.batch_axis])
            .with_axis(axis + 1, base.time_dim, time=True)
        )

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a reshape."""
        x = self.emit_input(ctx)
        base, axis = self.base.output, self.input.batch_axis
        assert axis is not None
        shape = sizes_of(ctx.value(self.base))
        return split_axis(x, axis, [shape[base.batch_axis], shape[base.time_axis]])
