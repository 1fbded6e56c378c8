"""Losses as layers: `loss`, and `sparse_softmax_cross_entropy_with_logits`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from returnn_tf.config.option_values import map_strings, referenced_names
from returnn_tf.config.options import LayerRef, check_options, declared_options, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.loss import Loss, LossContext, LossNode, LossPlanContext
from returnn_tf.graph.option_types import Axis
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import LOSSES, register_layer
from returnn_tf.ops.cross_entropy import sparse_softmax_cross_entropy
from returnn_tf.ops.frames.shape import move_axis, sizes_of, to_layout
from returnn_tf.tensor import SEQ_TAG, Data
from returnn_tf.tensor.match import match_axes
from returnn_tf.util.lazy_tf import tf

_PARTS = ("loss", "error")


@dataclasses.dataclass(frozen=True, eq=False)
class LossLayerPlan(LayerPlan):
    """The plan of `LossLayer`.

    :param loss_node: the loss, as if it were attached to the source
    """

    loss_node: LossNode


@register_layer("loss")
class LossLayer(Planned[LossLayerPlan]):
    """The values of a loss before summation, e.g. the cross entropy of every frame, as an output.

    The source is the layer that would otherwise have the loss. The output of frame-wise losses has its layout without
    the feature axis, padded frames included; that of losses on sequences is [batch].
    Sub outputs: ``loss``, the values, and ``error``, the errors, such as 1 for a wrong label.
    Parameters: none. Lengths: unchanged.

    Example::

        network = {
            "p": {"class": "softmax", "n_out": 3, "from": "data"},
            "output": {"class": "loss", "loss_": "ce", "target_": "classes", "from": "p"}}
    """

    loss_: str = option(help="name of the loss")
    loss_opts_: Optional[dict[str, Any]] = option(None, help="options of the loss")
    target_: Optional[str] = option(None, help="data key or layer:<name>; default: classes")
    use_error: bool = option(False, help="output the errors instead of the values")

    @classmethod
    def references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return the target, and the layers in the options of the loss."""
        yield options.get("target_") or "classes"
        loss = LOSSES.get(options.get("loss_"), "The option 'loss_'")
        for name, value in (options.get("loss_opts_") or {}).items():
            info = declared_options(loss).get(name)
            if info is not None and info.refs and value is not None:
                yield from referenced_names(info, value)

    def template(self, ctx: PlanContext) -> LossLayerPlan:
        """Infer the output as the loss defines it."""
        loss_node = self._plan(ctx)
        return LossLayerPlan(loss_node.loss.unreduced_template(ctx.single_source(), ctx.float_dtype), loss_node)

    def sub_node(self, ctx: PlanContext, name: str) -> Optional[Node]:
        """Return this layer, or the one with the other part, planned when something needs it."""
        if name not in _PARTS:
            return None
        if name == ("error" if self.use_error else "loss"):
            return self.node
        path = "%s/%s" % (self.node.path, name)
        planned = next((node for node in ctx.planner.planned_nodes if node.path == path), None)
        if planned is not None:
            return planned
        options: dict[str, Any] = {"loss_": self.loss_, "loss_opts_": self.loss_opts_, "target_": self.target_}
        options["use_error"] = name == "error"
        other = LossLayer(**options)
        return ctx.planner.implicit_layer(self.node, name, other, self.sources)

    def sub_names(self) -> Sequence[str]:
        """Return both parts."""
        return _PARTS

    def _plan(self, ctx: PlanContext) -> LossNode:
        """Plan the loss with its options, as if it were attached to the source."""
        cls = LOSSES.get(self.loss_, "the option 'loss_'")
        check_options(cls, self.loss_opts_ or {}, where="loss %r" % self.loss_)
        loss: Loss = cls()
        infos = declared_options(cls)
        for name, value in (self.loss_opts_ or {}).items():
            if infos[name].refs and value is not None:
                value = map_strings(infos[name], value, lambda ref: ctx.depend(ctx.planner.target_node(ctx.node, ref)))
            setattr(loss, infos[name].attribute, infos[name].taken(value))
        target: Optional[Node] = None
        if loss.needs_target or (loss.takes_target and self.target_):
            target = ctx.depend(ctx.planner.target_node(ctx.node, self.target_ or "classes"))
        ctx.single_source()
        found = loss.check(LossPlanContext(self.source, target, ctx.semantics))
        seq_tags = ctx.depend(ctx.planner.extern_node(SEQ_TAG)) if loss.needs_seq_tags else None
        return LossNode(ctx.node.path, loss, target, ctx.node, seq_tags=seq_tags, found=found)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the losses before they are summed."""
        return self.plan.loss_node.loss.unreduced(
            LossContext(self.plan.loss_node, EmitContext(self.source, ctx.lowering)), error=self.use_error
        )


@dataclasses.dataclass(frozen=True, eq=False)
class SparseSoftmaxCrossEntropyWithLogitsPlan(LayerPlan):
    """The plan of `SparseSoftmaxCrossEntropyWithLogitsLayer`.

    :param class_axis: the axis of the logits with the classes
    :param axes: where the axes of the targets are in the output
    """

    class_axis: Any
    axes: Sequence[Optional[int]]


@register_layer("sparse_softmax_cross_entropy_with_logits")
class SparseSoftmaxCrossEntropyWithLogitsLayer(Planned[SparseSoftmaxCrossEntropyWithLogitsPlan]):
    """``-log softmax(logits)[targets]`` over one axis of ``logits``, which the output lacks.

    Parameters: none. Lengths: unchanged.

    Example::

        from returnn_tf.tensor import FeatureDim, SpatialDim, batch_dim

        time = SpatialDim("time")
        extern_data = {
            "data": {"dim_tags": [batch_dim, time, FeatureDim("f", 4)]},
            "classes": {"dim_tags": [batch_dim, time], "sparse": True, "dim": 3}}
        network = {
            "z": {"class": "linear", "activation": None, "n_out": 3, "from": "data"},
            "output": {"class": "sparse_softmax_cross_entropy_with_logits", "logits": "z", "targets": "data:classes"}}
    """

    needs_sources = False
    logits: LayerRef = option(help="layer with unnormalised values", refs=True)
    targets: LayerRef = option(help="layer or data:key with the labels", refs=True)
    axis: Optional[Axis] = option(None, help="the class axis of logits; default: the feature axis")

    def template(self, ctx: PlanContext) -> SparseSoftmaxCrossEntropyWithLogitsPlan:
        """Infer the output: the logits without the class axis."""
        data, targets = self.logits.output, self.targets.output
        if self.axis is None:
            ctx.need_feature(data, "logits")
            class_axis = data.feature_axis
        else:
            class_axis = ctx.axis(data, self.axis)
        classes = data.dims[class_axis].size
        if not targets.sparse:
            raise ctx.error("targets must be labels (sparse), but they are %s." % targets)
        if classes is not None and targets.dim is not None and classes != targets.dim:
            raise ctx.error(
                "logits have %d classes but the targets %r have %d labels." % (classes, self.targets.path, targets.dim)
            )
        out: Data = data.without_axes([class_axis])
        axes = _pair_axes(targets, out)
        missing = [str(targets.dims[a]) for a, into in enumerate(axes) if into is None]
        if missing:
            raise ctx.error(
                "the targets %s have the axis %s, which logits %s lack. If both mean the same frames, declare it by a "
                "reinterpret_data layer with size_base, or by one Dim for both." % (targets, ", ".join(missing), data)
            )
        return SparseSoftmaxCrossEntropyWithLogitsPlan(out.replace(vocab=None), class_axis, axes)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one op; the targets are repeated along axes that they lack."""
        data = self.logits.output
        logits = move_axis(ctx.value(self.logits), data.rank, self.plan.class_axis, data.rank - 1)
        labels = to_layout(ctx.value(self.targets), self.targets.output, ctx.output, self.plan.axes)
        labels = tf.broadcast_to(labels, tf.stack(sizes_of(logits)[:-1]))
        mask = ctx.masks(ctx.output, ctx.output.dynamic_axes)
        if mask is not None:
            labels = tf.where(mask, labels, tf.zeros_like(labels))
        return sparse_softmax_cross_entropy(logits, labels)


def _pair_axes(targets: Data, into: Data) -> list[Optional[int]]:
    """Return the axis of ``into`` for each axis of the targets, or None.

    Axes that have no counterpart by their dims are paired in order if their sizes are the same.
    """
    axes: list[Optional[int]] = match_axes(targets, into)
    left = [axis for axis, found in enumerate(axes) if found is None]
    free = [axis for axis in range(into.rank) if axis not in axes]
    if [targets.dims[axis].size for axis in left] == [into.dims[axis].size for axis in free]:
        for axis, found in zip(left, free):
            if targets.dims[axis].size is not None:
                axes[axis] = found
    return axes
