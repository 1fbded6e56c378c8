"""`concat`: concatenation of the sources along any axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.ops.frames.shape import to_layout
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.match import common_layout, match_axes
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class ConcatPlan(LayerPlan):
    """The plan of `ConcatLayer`.

    :param axes: the concatenated axis of each source
    :param rests: the other axes of each source
    :param common: the other axes of all sources together
    :param position: of the concatenated axis in the output
    """

    axes: Sequence[int]
    rests: Sequence[Data]
    common: Data
    position: int


@register_layer("concat")
class ConcatLayer(Planned[ConcatPlan]):
    """Concatenates along one axis of each source: ``from`` is a list of pairs (layer, axis).

    The axes are in the order of the first source. A source without batch axis is repeated for all sequences.
    Lengths: summed. With dynamic axes the padded arrays are concatenated: the padding of one source stays in front of
    the next source, and counts as frames if a sequence of the first source is shorter than the longest.

    Example::

        network = {
            "a": {"class": "linear", "activation": "tanh", "n_out": 2, "from": "data"},
            "output": {"class": "concat", "from": [("data", "F"), ("a", "F")]}}
    """

    joins_features = True
    allow_broadcast: bool = option(False, help="repeat a source along axes that it lacks")
    out_dim: Optional[Dim] = option(None, help="the new dim, the sum of the dims of the sources")

    #: Per source the axis as a tuple of one entry; set by the compiler.

    @classmethod
    def source_list(cls, given: Any) -> list[Any]:
        """Return pairs (layer, axis) as tuples."""
        if isinstance(given, (list, tuple)) and len(given) == 2 and isinstance(given[0], str) and _is_axis(given[1]):
            return [tuple(given)]
        return [tuple(s) if isinstance(s, list) else s for s in super().source_list(given)]

    def template(self, ctx: PlanContext) -> ConcatPlan:
        """Infer the output: the first source with the larger axis."""
        if not self.sources:
            raise ctx.error("needs sources: 'from': [(layer, axis), ...].")
        for node, axis in zip(self.sources, self.source_options):
            if axis is None or len(axis) != 1:
                raise ctx.error("'from' must hold pairs (layer, axis), e.g. (%r, 'F')." % node.path)
        datas = [node.output for node in self.sources]
        first = datas[0]
        for data in datas[1:]:
            if data.dtype != first.dtype or data.sparse != first.sparse:
                raise ctx.error("the sources must have one dtype, got %s and %s. Use a cast layer." % (first, data))
        axes = [ctx.axis(data, axis[0]) for data, axis in zip(datas, self.source_options)]
        rests = [data.without_axes([axis]) for data, axis in zip(datas, axes)]
        batch = next((dim for rest in rests for dim in rest.dims if dim.is_batch), None)
        adds_batch = batch is not None and rests[0].batch_axis is None
        like = rests[0].with_axis(0, batch) if batch is not None and adds_batch else rests[0]
        common = self._common(ctx, datas, rests, like)
        dim = first.dims[axes[0]]
        for data, axis in zip(datas[1:], axes[1:]):
            dim = dim + data.dims[axis]
        dim = ctx.bind(self.out_dim, dim)
        is_feature = first.feature_axis == axes[0]
        position = min(axes[0] + int(adds_batch), common.rank)
        if is_feature and common.rank > like.rank:
            position = common.rank
        return ConcatPlan(
            common.with_axis(position, dim, feature=is_feature, time=first.time_axis == axes[0]).replace(
                sparse_dim=first.sparse_dim
            ),
            axes=axes,
            rests=rests,
            common=common,
            position=position,
        )

    def _common(self, ctx: PlanContext, datas: list[Data], rests: list[Data], like: Data) -> Data:
        """Return all axes but the concatenated one.

        :param like: those of the first source, and the batch axis if any source has it
        """
        for data, rest in zip(datas, rests):
            missing = [d for d, t in zip(rest.dims, match_axes(rest, like)) if t is None]
            missing += [d for d, t in zip(like.dims, match_axes(like, rest)) if t is None and not d.is_batch]
            if missing and not self.allow_broadcast:
                raise ctx.error(
                    "the sources %s and %s have different axes besides the concatenated ones: %s. Set allow_broadcast "
                    "to repeat a missing axis. Declare axes equal by reinterpret_data or by one Dim."
                    % (datas[0], data, ", ".join(map(str, missing)))
                )
        return common_layout([like, *rests[1:]], allow_broadcast_all=True) if self.allow_broadcast else like

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one concat op."""
        common, position = self.plan.common, self.plan.position
        shape = ctx.shape(common)
        parts = []
        for node, axis, rest in zip(self.sources, self.plan.axes, self.plan.rests):
            data, dim = node.output, node.output.dims[axis]
            into = common.with_axis(position, dim)
            targets = match_axes(rest, common)
            mapping = [t if t is None or t < position else t + 1 for t in targets]
            mapping.insert(axis, position)
            part = to_layout(ctx.value(node), data, into, mapping)
            if rest.rank < common.rank:
                sizes = shape[:position] + [tf.shape(part)[position]] + shape[position:]
                part = tf.broadcast_to(part, tf.stack(sizes))
            parts.append(part)
        return tf.concat(parts, axis=position)


def _is_axis(value: Any) -> bool:
    """Return whether the second entry of a list of two is an axis rather than another source."""
    return isinstance(value, (int, Dim)) or (isinstance(value, str) and value.upper() in ("B", "T", "F"))
