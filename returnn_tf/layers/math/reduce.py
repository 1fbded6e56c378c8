"""`reduce`, `math_norm` and `reduce_out`: reduction of axes, or of pieces of the feature axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config import did_you_mean
from returnn_tf.config.errors import LoopError
from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axes
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.frames.reduce import REDUCE_MODES, canonical_mode, is_arg_mode, masked_reduce, p_norm
from returnn_tf.ops.frames.shape import move_axis
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


def given_axes(ctx: PlanContext, data: Data, axis: Any, axes: Any) -> list[int]:
    """Resolve the options ``axis`` or ``axes`` to at least one axis; only "T?" may match none.

    :raises ConfigError: none or both given, or no such axis
    """
    if (axis is None) == (axes is None):
        raise ctx.error("give exactly one of the options 'axis' and 'axes', e.g. 'axis': 'T'.")
    desc = axes if axis is None else axis
    found = ctx.axes(data, desc)
    if not found and str(desc).lower() not in ("t?", "time?"):
        raise ctx.error("%s means no axis of %s." % (desc if not isinstance(desc, str) else repr(desc), data))
    return found


def reduced_template(ctx: PlanContext, data: Data, axes: list[int], keep_dims: bool) -> Data:
    """Remove the axes, or keep them with size 1 by ``keep_dims``; then time and feature axis keep their marks."""
    if not keep_dims:
        return data.without_axes(axes)
    for axis in axes:
        is_feature = axis == data.feature_axis
        data = data.with_dim(axis, ctx.new_feature(1) if is_feature else ctx.new_spatial(1, "reduced"))
    return data


@dataclasses.dataclass(frozen=True, eq=False)
class ReducePlan(LayerPlan):
    """The plan of `reduce` and `math_norm`.

    :param axes: the reduced ones, in the input
    :param batch_move: where the batch axis of the result is, and where it goes; None: it stays
    """

    axes: Sequence[int]
    batch_move: Optional[tuple[int, int]] = None


@dataclasses.dataclass(eq=False, repr=False)
class _ReduceAxes(ConcatInputLayer, Planned[ReducePlan]):
    """The common part of `reduce` and `math_norm`."""

    keep_dims: bool = option(False, help="keep the axes with size 1")
    use_time_mask: Optional[bool] = option(None, help="False: frames after the end of a sequence count too")

    def reduced(self, ctx: PlanContext, axis: Any, axes: Any) -> ReducePlan:
        """Infer the axes, and the template without them."""
        data = self.input_template(ctx)
        found = given_axes(ctx, data, axis, axes)
        return ReducePlan(reduced_template(ctx, data, found, self.keep_dims), found)

    def frames(self, ctx: EmitContext) -> tuple[Any, Optional[Any]]:
        """Return the input, and the mask of the frames that count, None for all.

        :raises LoopError: the batch axis is reduced, and has the hypotheses of the search of a loop
        """
        x, mask, batch = self.emit_input(ctx), self._frame_mask(ctx), self.input.batch_axis
        if batch is None or batch not in self.plan.axes:
            return x, mask
        hyps = ctx.lowering.search.hypotheses
        moved = self.input.beam if self.input.loop_axes else None
        in_step = hyps is not None and hyps.beam > 1
        if (in_step and ctx.node in hyps.followers) or (moved and moved.size > 1):
            raise LoopError(
                "Layer %r reduces the batch axis of %s, which has the hypotheses of the search in each step: those of "
                "all sequences would be mixed, and the result would depend on whether the layer is computed in the "
                "loop. Reduce it after the loop, behind a 'decide'." % (ctx.node.path, self.input)
            )
        if not in_step:
            return x, mask
        # Each sequence is there once per hypothesis, with the same values.
        one = tuple(slice(None, None, hyps.beam if axis == batch else 1) for axis in range(self.input.rank))
        return x[one], mask if mask is None or mask.shape[batch] == 1 else mask[one]

    def _frame_mask(self, ctx: EmitContext) -> Optional[Any]:
        if self.use_time_mask is False:
            return None
        # Without a batch axis the frames belong to all sequences together.
        axes = [a for a in self.plan.axes if self.input.batch_axis is not None or _has_mask(ctx, self.input, a)]
        return ctx.masks(self.input, axes)


def _has_mask(ctx: EmitContext, data: Data, axis: int) -> bool:
    """Return whether the lengths of an axis vary with no axis that the data lack."""
    dim = data.dims[axis]
    if ctx.differs_by_frame(dim):
        return all(data.axis_of_steps(over) is not None for over in ctx.lengths_over(dim))
    return bool(ctx.lens(dim).shape.rank == 0)


def _check_dtype(ctx: PlanContext, data: Data, mode: str) -> None:
    """Check that a mode is defined for the values of the source."""
    if (mode in ("any", "all")) != (data.dtype == "bool"):
        raise ctx.error(
            "the source is %s, but modes 'any' and 'all' are for bools, the others for numbers. Cast it." % data.dtype
        )
    if data.dtype.startswith("complex") and mode not in ("sum", "mean", "prod"):
        raise ctx.error("mode %r needs real numbers, but the source is %s. Use sum, mean or prod." % (mode, data))


@register_layer("reduce")
class ReduceLayer(_ReduceAxes):
    """Sum, mean, maximum etc. over some axes.

    Frames after the end of a sequence don't count where a dynamic axis is reduced; a mean divides by the number of
    frames that count, at least 1. If batch and time are reduced together, it is over all frames of all sequences;
    over batch alone, the frames after the ends count. In the loop of a search, values that depend on a choice or on
    ``prev:`` can't be reduced over batch, which has the hypotheses. "argmax" and "argmin" give int32 indices, sparse in
    the reduced dim.

    No parameters. Lengths: removed with the reduced axes, else unchanged.

    Example::

        network = {
            "label": {"class": "reduce", "mode": "argmax", "axis": "F", "from": "data", "is_output_layer": True},
            "output": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"}}
    """

    mode: str = option(help="'sum', 'mean', 'avg', 'max', 'min', 'prod', 'logsumexp', 'any', 'all', 'argmax', 'argmin'")
    axis: Optional[Axes] = option(None, help="the axis to reduce, or a list of axes")
    axes: Optional[Axes] = option(None, help="the same as axis", old="'axis'")
    enforce_batch_dim_axis: Optional[int] = option(None, help="index of the batch axis in the output")

    def template(self, ctx: PlanContext) -> ReducePlan:
        """Infer the output without the axes."""
        mode = canonical_mode(self.mode)
        if mode not in REDUCE_MODES:
            raise ctx.error("unknown mode %r. %s" % (self.mode, did_you_mean(self.mode, REDUCE_MODES)))
        found = self.reduced(ctx, self.axis, self.axes)
        out = found.output
        _check_dtype(ctx, self.input, mode)
        if is_arg_mode(mode):
            if len(found.axes) != 1:
                raise ctx.error("mode %r is over a single axis, got %d." % (self.mode, len(found.axes)))
            dim = self.input.dims[found.axes[0]]
            out = out.replace(dtype="int32", sparse_dim=dim, feature_axis=None, vocab=None)
        if self.n_out is not None and out.feature_axis is not None and out.dim != self.n_out:
            raise ctx.error("n_out is %d, but the result is %s. Omit n_out." % (self.n_out, out))
        batch = out.batch_axis
        batch_move = None
        if self.enforce_batch_dim_axis is not None and not 0 <= self.enforce_batch_dim_axis < out.rank:
            raise ctx.error("enforce_batch_dim_axis is %d, but the output is %s." % (self.enforce_batch_dim_axis, out))
        if self.enforce_batch_dim_axis is not None and batch not in (None, self.enforce_batch_dim_axis):
            order = [i for i in range(out.rank) if i != batch]
            order.insert(self.enforce_batch_dim_axis, batch)
            batch_move = (batch, self.enforce_batch_dim_axis)
            out = out.permuted(order)
        return ReducePlan(out, found.axes, batch_move)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one reduction, after a where for the mask."""
        x, mask = self.frames(ctx)
        y = masked_reduce(canonical_mode(self.mode), x, self.plan.axes, mask, keepdims=self.keep_dims)
        return y if self.plan.batch_move is None else move_axis(y, ctx.output.rank, *self.plan.batch_move)


@register_layer("math_norm")
class MathNormLayer(_ReduceAxes):
    """The p-norm ``sum(|x| ** p) ** (1 / p)`` over some axes; infinite p gives the largest absolute value.

    Frames after the end of a sequence don't count. No parameters. Lengths: as `reduce`.

    Example::

        network = {"output": {"class": "math_norm", "p": 2, "axis": "F", "from": "data"}}
    """

    takes_ints = False
    p: float = option(help="the exponent, positive")
    axis: Optional[Axes] = option(None, help="the axis to reduce, or a list of axes")
    axes: Optional[Axes] = option(None, help="the same as axis", old="'axis'")

    def template(self, ctx: PlanContext) -> ReducePlan:
        """Infer the output without the axes."""
        if not self.p > 0:
            raise ctx.error("p must be positive, got %s." % self.p)
        found = self.reduced(ctx, self.axis, self.axes)
        dtype = {"complex64": "float32", "complex128": "float64"}.get(found.output.dtype, found.output.dtype)
        return ReducePlan(found.output.replace(dtype=dtype), found.axes)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit power, sum, root."""
        x, mask = self.frames(ctx)
        return p_norm(x, self.p, self.plan.axes, mask, keepdims=self.keep_dims)


@register_layer("reduce_out")
class ReduceOutLayer(ConcatInputLayer):
    """Every ``num_pieces`` neighbouring features reduced to one, e.g. maxout (Goodfellow et al. 2013).

    The feature axis [n] is seen as [n / num_pieces, num_pieces] and the second part is reduced.
    No parameters. Lengths: unchanged.

    Example::

        network = {"output": {"class": "reduce_out", "mode": "max", "num_pieces": 2, "from": "data"}}
    """

    mode: str = option(help="'max', 'mean', 'sum', ... as in reduce")
    num_pieces: int = option(help="number of features to reduce to one")

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: feature axis replaced."""
        mode = canonical_mode(self.mode)
        if mode not in REDUCE_MODES or is_arg_mode(mode):
            raise ctx.error("unknown mode %r. %s" % (self.mode, did_you_mean(self.mode, REDUCE_MODES)))
        data = self.input_template(ctx)
        _check_dtype(ctx, data, mode)
        size = ctx.need_static(ctx.need_feature(data), "the feature axis of the source")
        if self.num_pieces < 1 or size % self.num_pieces:
            raise ctx.error("the feature axis of size %d is not divisible by num_pieces %d." % (size, self.num_pieces))
        if self.n_out is not None and self.n_out != size // self.num_pieces:
            raise ctx.error("n_out is %d, but the result has %d features." % (self.n_out, size // self.num_pieces))
        assert data.feature_axis is not None
        out = ctx.bind(self.out_dim, ctx.new_feature(size // self.num_pieces))
        return data.with_dim(data.feature_axis, out).replace(vocab=None)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit reshape and reduction."""
        axis = self.input.feature_axis
        assert axis is not None
        shape = ctx.shape(self.input)
        shape[axis : axis + 1] = [shape[axis] // self.num_pieces, self.num_pieces]
        return masked_reduce(canonical_mode(self.mode), tf.reshape(self.emit_input(ctx), shape), [axis + 1])
