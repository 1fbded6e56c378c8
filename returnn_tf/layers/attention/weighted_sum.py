"""The correspondence of axes of attention weights and base: the plan of a weighted sum over frames."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.ops.dense.attention import product_sum
from returnn_tf.ops.dense.in_beam import product_in_beam
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.data import default_time_axis
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass
class WeightedSum:
    """``out[b, w, c, f] = sum over t of weights[b, w, c, t] * base[b, t, c, f]``.

    :param output: template of the result: batch, axes of the weights only, all other axes of the base
    :param squeezed: axes of the weights of size 1 that are dropped first
    :param labels: labels of the remaining axes of the weights, of the base, and of the result
    """

    output: Data
    squeezed: list[int]
    labels: tuple[list[Any], list[Any], list[Any]]

    def all_labels(self, weights: Data) -> tuple[list[Any], list[Any], list[Any]]:
        """Return ``labels``, with those of squeezed axes of the weights too.

        :param weights: the template of the weights
        """
        rest = iter(self.labels[0])
        of_weights = ["squeezed%d" % i if i in self.squeezed else next(rest) for i in range(weights.rank)]
        return of_weights, *self.labels[1:]

    @property
    def product_order(self) -> list[int]:
        """Return the order of the axes of the base in which products need no copy: shared ones, time, all others."""
        of_weights, of_base, out = self.labels
        shared = sorted((label for label in of_base if label in of_weights and label in out), key=out.index)
        order = [*shared, *(label for label in of_base if label not in out)]
        return [of_base.index(label) for label in [*order, *(label for label in of_base if label not in order)]]

    def squeeze(self, weights: Any) -> Any:
        """Return the weights without the axes that are dropped."""
        return tf.squeeze(weights, axis=self.squeezed) if self.squeezed else weights

    def emit(self, ctx: EmitContext, weights: Any, base: Any) -> Any:
        """Emit the sum; tensors in the layout of their templates."""
        operands = [(self.squeeze(weights), self.labels[0]), (base, self.labels[1])]
        return product_sum(operands, self.labels[2], product_dtype=ctx.product_dtype)

    def emit_ordered(self, ctx: EmitContext, weights: Any, base: Any) -> Any:
        """Emit the sum.

        :param weights: without the axes that are dropped; the result has an axis of steps in front if the weights do
        :param base: with its axes in `product_order`
        """
        of_weights, of_base, out = self.labels
        steps = ["steps"] if weights.shape.rank > len(of_weights) else []
        operands = [(weights, [*steps, *of_weights]), (base, [of_base[axis] for axis in self.product_order])]
        return product_sum(operands, [*steps, *out], product_dtype=ctx.product_dtype)

    def emit_in_beam(self, ctx: EmitContext, weights: Any, base: Any, beam: int) -> Any:
        """Emit the sum where the base exists once per sequence, the weights once per hypothesis.

        :param beam: hypotheses per sequence; neighbours in the batch axis of the weights and of the result
        """
        labels, of_base, out = self.labels
        batch = out[next(i for i, dim in enumerate(self.output.dims) if dim.is_batch)]
        if batch not in labels:  # the weights are the same for all sequences
            return self.emit(ctx, weights, tf.repeat(base, beam, axis=of_base.index(batch)))
        return product_in_beam(
            (base, of_base),
            (self.squeeze(weights), labels),
            out,
            batch=batch,
            beam=beam,
            with_gradient=ctx.train,
            product_dtype=ctx.product_dtype,
        )


def plan_weighted_sum(ctx: PlanContext, weights: Data, base: Data, *, squeeze: bool) -> WeightedSum:
    """Find the axes of a weighted sum over the time axis of the base.

    :param squeeze: drop axes of size 1 that only the weights have
    :raises ConfigError: the weights have no such axis
    """
    time = _summed_axis(ctx, weights, base)
    pairs = _pairs(ctx, weights, base, time)
    squeezed = [i for i, d in enumerate(weights.dims) if squeeze and i not in pairs and d.size == 1]
    labels_base: list[Any] = ["base%d" % i for i in range(base.rank)]
    labels_weights = [
        labels_base[pairs[i]] if i in pairs else "weights%d" % i for i in range(weights.rank) if i not in squeezed
    ]
    where: dict[Any, Any] = {label: base.dims[i] for i, label in enumerate(labels_base)}
    where.update({"weights%d" % i: weights.dims[i] for i in range(weights.rank)})
    own = [label for label in labels_weights if label not in labels_base]
    out = [*own, *(label for i, label in enumerate(labels_base) if i != time)]
    out.sort(key=lambda label: not where[label].is_batch)  # the batch axis first
    dims = tuple(where[label] for label in out)
    feature = None if base.feature_axis in (None, time) else out.index(labels_base[base.feature_axis or 0])
    output = Data(dims, base.dtype, feature_axis=feature, time_axis=default_time_axis(dims, exclude=feature))
    return WeightedSum(output, squeezed, (labels_weights, labels_base, out))


def queries_axis(query: Data, dims: Sequence[Dim]) -> Optional[int]:
    """Return the axis of the queries among the axes of attention weights; None: one query for all frames.

    :param query: template of what attends
    :param dims: of the weights
    """
    frames = [axis for axis in query.dynamic_axes if axis != query.feature_axis]
    if query.time_axis is not None:
        frames = [query.time_axis]
    return dims.index(query.dims[frames[-1]]) if frames else None


def _summed_axis(ctx: PlanContext, weights: Data, base: Data) -> int:
    """Return the axis of the base to sum over: its time axis, else an axis shared with the weights."""
    if base.time_axis is not None:
        return base.time_axis
    for i, dim in enumerate(base.dims):
        if i != base.feature_axis and not dim.is_batch and not dim.is_loop and dim in weights.dims:
            return i
    raise ctx.error(
        "the base %s has no time axis to sum over, and no other axis that the weights %s have." % (base, weights)
    )


def _pairs(ctx: PlanContext, weights: Data, base: Data, time: int) -> dict[int, int]:
    """Map axes of the weights to axes of the base."""
    pairs: dict[int, int] = {}

    def take(axis: Optional[int], target: int) -> None:
        if axis is not None and axis not in pairs and target not in pairs.values():
            pairs[axis] = target

    take(_same_axis(weights, base, time), time)
    if time not in pairs.values():
        raise ctx.error(
            "the weights %s have no axis %s, over which the base %s is summed. If they have one of the same lengths, "
            "declare it by a reinterpret_data layer (option size_base) or by declaring one Dim for both."
            % (weights, base.dims[time], base)
        )
    for target, dim in enumerate(base.dims):
        take(next((i for i, d in enumerate(weights.dims) if d is dim or (d.is_batch and dim.is_batch)), None), target)
    # Heads that two layers created from one number; never the features of the base, even if equal in size.
    for axis, dim in enumerate(weights.dims):
        for target, other in enumerate(base.dims):
            if axis not in pairs and target != base.feature_axis and dim.agrees_with(other):
                take(axis, target)
    return pairs


def _same_axis(weights: Data, base: Data, time: int) -> Optional[int]:
    dim = base.dims[time]
    found = weights.axes_of(dim)
    if found:
        # The same dim twice, as of queries and keys: the softmax was over the last one.
        return found[-1]
    agreeing = [i for i, d in enumerate(weights.dims) if i != weights.feature_axis and d.agrees_with(dim)]
    return agreeing[-1] if agreeing else None
