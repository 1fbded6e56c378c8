"""`expand_dims`: insertion of an axis; `squeeze`: removal of axes of size 1."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional, Union

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxesOption, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.axis_marks import with_feature_default
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.frames.shape import move_axis, moved_axis_perm
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf

_FEATURE = ("f", "feature")
_SPATIAL = ("t", "time", "spatial")


@dataclasses.dataclass(frozen=True, eq=False)
class ExpandDimsPlan(LayerPlan):
    """The plan of `ExpandDimsLayer`.

    :param new_axis: its index in the output
    """

    new_axis: int


@register_layer("expand_dims")
class ExpandDimsLayer(ConcatInputLayer, Planned[ExpandDimsPlan]):
    """A new axis, of size 1 or with the values repeated ``dim`` times.

    axis "F": after the feature axis; the new one becomes the feature axis, the old one a plain one. axis "T" or
    "spatial": after the time axis, else after the batch axis. An int (until behavior version 4): the index of the new
    axis, batch included.
    Lengths: unchanged; those of ``dim`` for the new axis.

    Example::

        network = {"output": {"class": "expand_dims", "axis": "F", "from": "data"}}
    """

    only_reshapes = True
    axis: Union[str, int] = option(help="'F', 'T' or 'spatial': position of the new axis")
    dim: Union[int, Dim] = option(1, help="size or dim of the new axis")

    def template(self, ctx: PlanContext) -> ExpandDimsPlan:
        """Infer the output: the new axis in its place."""
        data = self.input_template(ctx)
        name = self.axis.lower() if isinstance(self.axis, str) else ""
        is_feature = name in _FEATURE and data.sparse_dim is None
        new_axis = self._index(ctx, data, name)
        dim = self.dim
        if not isinstance(dim, Dim):
            if dim < 1:
                raise ctx.error("dim must be positive, got %d." % dim)
            dim = ctx.new_feature(dim) if is_feature else ctx.new_spatial(dim, "expanded")
        ctx.depend_on_dim(dim)
        is_time = name in _SPATIAL and data.time_axis is None
        return ExpandDimsPlan(
            with_feature_default(data.with_axis(new_axis, dim, feature=is_feature, time=is_time)), new_axis
        )

    def _index(self, ctx: PlanContext, data: Data, name: str) -> int:
        if isinstance(self.axis, int):
            if ctx.behavior_version >= 5:
                raise ctx.error(
                    "axis %d: an index is not allowed since behavior version 5. Use 'F' or 'spatial'." % self.axis
                )
            index = self.axis if self.axis >= 0 else self.axis + data.rank + 1
            if not 0 <= index <= data.rank:
                raise ctx.error("axis %d is out of range for %s." % (self.axis, data))
            return index
        if name in _FEATURE:
            return data.rank if data.feature_axis is None else data.feature_axis + 1
        if name in _SPATIAL:
            before = data.time_axis if data.time_axis is not None else data.batch_axis
            return 0 if before is None else before + 1
        raise ctx.error("axis %r: must be 'F' or 'spatial', the position of the new axis." % self.axis)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a reshape, and a broadcast if the axis is larger than 1."""
        x = tf.expand_dims(self.emit_input(ctx), self.plan.new_axis)
        dim = ctx.output.dims[self.plan.new_axis]
        if dim.size == 1:
            return x
        shape: list[Any] = [tf.shape(x)[a] for a in range(ctx.output.rank)]
        shape[self.plan.new_axis] = ctx.size(dim)
        return tf.broadcast_to(x, tf.stack(shape))


@dataclasses.dataclass(frozen=True, eq=False)
class SqueezePlan(LayerPlan):
    """The plan of `SqueezeLayer`.

    :param batch_to: where the batch axis goes first; None: it stays
    :param removed: the axes that go
    :param template_before: the layout with these axes
    """

    batch_to: Optional[int]
    removed: Sequence[int]
    template_before: Data


@register_layer("squeeze")
class SqueezeLayer(ConcatInputLayer, Planned[SqueezePlan]):
    """Removes axes of size 1. That a dynamic axis has this size is checked in every step.

    Labels have no axis "F" to remove: in behavior version 0 that changes nothing, later it is an error.

    If the feature axis is removed, the last remaining static axis becomes the feature axis.
    Lengths: unchanged.

    Example::

        network = {
            "a": {"class": "expand_dims", "axis": "F", "from": "data"},
            "output": {"class": "squeeze", "axis": "F", "from": "a"}}
    """

    only_reshapes = True
    axis: AxesOption = option(help="the axes to remove, or 'auto' for all static axes of size 1")
    enforce_batch_dim_axis: Optional[int] = option(None, help="move the batch axis to this index first")
    allow_no_op: bool = option(False, help="do not fail if there is no such axis")

    def template(self, ctx: PlanContext) -> SqueezePlan:
        """Infer the output without these axes."""
        data = self.input_template(ctx)
        batch_to = None
        if self.enforce_batch_dim_axis is not None and data.batch_axis not in (None, self.enforce_batch_dim_axis):
            batch_to = self.enforce_batch_dim_axis
            assert data.batch_axis is not None
            data = data.permuted(moved_axis_perm(data.rank, data.batch_axis, batch_to))
        if isinstance(self.axis, str) and self.axis.lower() == "auto":
            removed = [a for a, d in enumerate(data.dims) if d.size == 1]
        else:
            none = isinstance(self.axis, (str, Dim)) and not ctx.has_axis(data, self.axis)
            if none and not (self.allow_no_op or self._lacks_feature(ctx, data)):
                raise ctx.error("%s has no axis %r. Set allow_no_op if that is intended." % (data, self.axis))
            removed = [] if none else ctx.axes(data, self.axis)
        template_before = data
        for axis in removed:
            if data.dims[axis].size not in (1, None) or data.dims[axis].is_batch:
                raise ctx.error(
                    "the axis %s of %s can't be removed, only axes of size 1 can. Use reduce or gather."
                    % (data.dims[axis], data)
                )
        return SqueezePlan(
            with_feature_default(data.without_axes(removed).with_time_axis_default()),
            batch_to,
            removed,
            template_before,
        )

    def _lacks_feature(self, ctx: PlanContext, data: Data) -> bool:
        """Return whether the axis is the feature axis of labels, which old configs squeeze."""
        is_feature = isinstance(self.axis, str) and self.axis.lower() in ("f", "feature")
        return ctx.behavior_version < 1 and data.sparse and is_feature

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a reshape."""
        x = self.emit_input(ctx)
        if self.plan.batch_to is not None and self.input.batch_axis is not None:
            x = move_axis(x, self.input.rank, self.input.batch_axis, self.plan.batch_to)
        for axis in self.plan.removed:
            if x.shape[axis] is None:
                text = "Layer %r: the axis %s can only be removed where it has size 1, but it has:" % (
                    ctx.node.path,
                    self.plan.template_before.dims[axis],
                )
                size = tf.shape(x)[axis]
                with tf.control_dependencies([tf.debugging.Assert(tf.equal(size, 1), [text, size])]):
                    x = tf.identity(x)
        return tf.squeeze(x, axis=self.plan.removed) if self.plan.removed else x
