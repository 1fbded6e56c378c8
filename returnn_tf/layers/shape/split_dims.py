"""`split_dims`: one axis split into several; `split_batch_time`: inverse of the merge of batch and time."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxisOption, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Number, Shape
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.axis_marks import with_feature_default
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.frames.pad import pad_array
from returnn_tf.ops.frames.shape import size_of, sizes_of, split_axis
from returnn_tf.tensor import Data, Dim, DimKind


@dataclasses.dataclass(frozen=True, eq=False)
class SplitDimsPlan(LayerPlan):
    """The plan of `SplitDimsLayer`.

    :param axis: the split one
    :param open_part: index of the inferred part, or None
    :param known: product of the given sizes
    :param rest: what remains for the open part
    """

    axis: int
    open_part: Optional[int]
    known: int
    rest: Dim


@register_layer("split_dims")
class SplitDimsLayer(ConcatInputLayer, Planned[SplitDimsPlan]):
    """The inverse of `merge_dims`: with ``dims`` = (m, n), entry ``i * n + j`` becomes entry ``(i, j)``.

    One of the dims may be -1 or of unknown size, and is inferred. A dynamic axis is padded to a multiple first.
    The last part of feature kind (else the last one) of a split feature axis is the feature axis, the inferred part
    (else the first one) of a split time axis is the time axis. Without a feature axis, the output has the one that is
    the default for its dims. A batch axis is split into the batch dim and the axes that were merged into it; another
    axis may be split into the batch dim and others, where it has that many entries.
    Lengths: ``ceil(lengths / n)``, n being the product of the given sizes; those of a part whose lengths are known.

    Example::

        network = {"output": {"class": "split_dims", "axis": "F", "dims": (2, -1), "from": "data"}}
    """

    only_reshapes = True
    axis: AxisOption = option(help="the axis to split")
    dims: Shape = option(help="sizes or dims of the parts, one may be -1")
    pad_to_multiples: Optional[bool] = option(None, help="pad the axis to a multiple (default: if it is dynamic)")
    pad_value: Number = option(0, help="padding value")

    def template(self, ctx: PlanContext) -> SplitDimsPlan:
        """Infer the output: the parts instead of the axis."""
        data = self.input_template(ctx)
        axis = ctx.axis(data, self.axis)
        dim = data.dims[axis]
        given = list(self.dims)
        sizes = [d for d in given if isinstance(d, int)]
        if dim.is_batch and len(sizes) == len(given) and sorted(sizes) == [-1] + [1] * (len(sizes) - 1):
            given = [dim if d == -1 else d for d in sizes]  # what remains is the batch axis itself
        has_batch = any(isinstance(d, Dim) and d.is_batch for d in given)
        if dim.is_batch and not has_batch:
            raise ctx.error("dims %s: the batch axis is split into batch_dim and others." % _show(given))
        if has_batch and not dim.is_batch and (dim.size is not None or data.batch_axis is not None):
            raise ctx.error(
                "dims %s: only a batch axis, or a dynamic axis of a source without one, is split into batch_dim and "
                "others." % _show(given)
            )
        open_part = self._open_part(ctx, given)
        known = 1
        known_dims = []
        for i, part in enumerate(given):
            if i != open_part and isinstance(part, Dim) and part.size is None:
                ctx.depend_on_dim(part)
                known_dims.append(part)
            elif i != open_part:
                known *= (part.size or 0) if isinstance(part, Dim) else part
        rest = self._rest_dim(ctx, dim, known, None if open_part is None and not known_dims else known_dims)
        if has_batch and not dim.is_batch:
            rest = ctx.new_spatial(None, "%s_split_dims")  # has no lengths by sequence
        parts = [self._part(ctx, dim, part, i, rest if i == open_part else None) for i, part in enumerate(given)]
        out = self._out(data, axis, parts, open_part)
        return SplitDimsPlan(out, axis=axis, open_part=open_part, known=known, rest=rest)

    def _open_part(self, ctx: PlanContext, given: list[Any]) -> Optional[int]:
        """Return the index of the inferred part, or None."""
        unknown = [i for i, d in enumerate(given) if _is_open(d) and not self._is_known(ctx, d)]
        if not unknown:  # a single one with known lengths may still be declared to be what remains
            unknown = [i for i, d in enumerate(given) if _is_open(d) and not d.is_batch]
            unknown = unknown if len(unknown) == 1 and not any(isinstance(d, Dim) and d.is_batch for d in given) else []
        if len(unknown) > 1:
            raise ctx.error("dims %s: only one of them can be -1 or a dim of unknown size." % _show(given))
        return unknown[0] if unknown else None

    def _is_known(self, ctx: PlanContext, part: Any) -> bool:
        return isinstance(part, Dim) and ctx.knows_dim(part)

    def _rest_dim(self, ctx: PlanContext, dim: Dim, known: int, known_dims: Optional[list[Dim]]) -> Dim:
        """Return the size that remains for the open part.

        :param known: product of the given sizes
        :param known_dims: the dims of known lengths; None: there is no open part, and all sizes are given
        """
        pads = dim.is_dynamic() if self.pad_to_multiples is None else self.pad_to_multiples
        if known <= 0:
            raise ctx.error("dims %s: sizes must be positive, except for one -1." % _show(self.dims))
        if known_dims is None:
            if dim.size is None:
                raise ctx.error("the axis %s is dynamic, so one of the dims %s must be -1." % (dim, _show(self.dims)))
            if dim.size != known and not (pads and dim.size <= known):
                raise ctx.error("dims %s multiply to %d, but the axis has %s." % (_show(self.dims), known, dim))
        elif dim.size is not None and dim.size % known and not pads:
            raise ctx.error(
                "the size of the axis %s is not a multiple of %d. Choose other dims, or set pad_to_multiples."
                % (dim, known)
            )
        for part in known_dims or ():
            dim = dim.div_left(part) if not part.is_batch else dim
        return dim.as_kind(DimKind.SPATIAL).ceildiv_right(known) if dim.is_batch else dim.ceildiv_right(known)

    def _part(self, ctx: PlanContext, old: Dim, given: Any, index: int, rest: Optional[Dim]) -> Dim:
        """Return the dim of a part.

        :param given: the size or dim in the option
        :param rest: what remains of the axis, for the open part; None for others
        """
        if isinstance(given, Dim) and rest is None:
            return given
        name = "%s_split_dims%d" % (self.node.path.rpartition("/")[2], index)
        if rest is None:
            return Dim(_kind_of_part(old), given, name, auto=True)
        if rest.size is not None and rest is not old and not isinstance(given, Dim):
            return Dim(_kind_of_part(old), rest.size, rest.description or name, auto=True)
        result = ctx.bind(given if isinstance(given, Dim) else None, rest)
        ctx.name_dim(result, name)
        return result

    def _out(self, data: Data, axis: int, parts: list[Dim], open_part: Optional[int]) -> Data:
        grown = len(parts) - 1

        def moved(old: Optional[int]) -> Optional[int]:
            return old if old is None or old < axis else old + grown

        feature, time = moved(data.feature_axis), moved(data.time_axis)
        if data.feature_axis == axis:
            of_kind = [i for i, part in enumerate(parts) if part.kind is DimKind.FEATURE]
            feature = axis + (of_kind[-1] if of_kind else grown)
        if data.time_axis == axis:
            of_kind = [i for i, part in enumerate(parts) if part.kind is DimKind.SPATIAL]
            time = axis + (open_part if open_part is not None else of_kind[0] if of_kind else 0)
        dims = data.dims[:axis] + tuple(parts) + data.dims[axis + 1 :]
        out = data.replace(dims=dims, feature_axis=feature, time_axis=time).with_time_axis_default()
        return with_feature_default(out)

    def ignores_padding(self) -> bool:
        """Return whether no frames are split."""
        return not self.input.dims[self.plan.axis].is_dynamic() and not self.dropout

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a reshape; of a dynamic axis after padding."""
        x = self.emit_input(ctx)
        axis, dim = self.plan.axis, self.input.dims[self.plan.axis]
        size = size_of(x, axis)
        parts = list(ctx.output.dims[axis : axis + len(self.dims)])
        known: Any = self.plan.known
        for i, part in enumerate(parts):
            if i != self.plan.open_part and part.size is None and not (part.is_batch and dim.is_batch):
                known = known * ctx.size(part)
        rest = -(-size // known)
        if not dim.is_batch and (dim.is_dynamic() or (dim.size is not None and dim.size % self.plan.known)):
            pads: list[Any] = [0] * self.input.rank
            pads[axis] = rest * known - size
            x = pad_array(x, [0] * self.input.rank, pads, self.pad_value)
        inferred = [i for i, part in enumerate(parts) if i == self.plan.open_part or (part.is_batch and dim.is_batch)]
        if self.plan.rest in parts and self.plan.rest.size is None:
            if self.plan.rest.expr is not None:
                ctx.define_size(self.plan.rest, rest)
            elif self.plan.rest is not dim and not ctx.has_lens(self.plan.rest):
                ctx.define_lens(self.plan.rest, rest)  # the same for all sequences
        return split_axis(x, axis, [rest if i in inferred else ctx.size(d) for i, d in enumerate(parts)])


def _is_open(part: Any) -> bool:
    return part.size is None if isinstance(part, Dim) else part == -1


def _kind_of_part(old: Dim) -> DimKind:
    return DimKind.FEATURE if old.kind is DimKind.FEATURE else DimKind.SPATIAL


def _show(dims: Any) -> str:
    return "(%s)" % ", ".join(map(str, dims))


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
