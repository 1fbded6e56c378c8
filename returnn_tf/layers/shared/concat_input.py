"""Layers that see all their sources as one tensor: concatenated in the feature axis, with dropout in training."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional

from returnn_tf.config.options import dropout_rate, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer, Node
from returnn_tf.graph.option_types import Axes, NoiseShape
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.ops.frames.shape import to_layout
from returnn_tf.tensor import Data, Dim, resolve_axes
from returnn_tf.tensor.match import common_layout, match_axes
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(eq=False, repr=False)
class ConcatInputLayer(Layer):
    """Options of layers with one, possibly concatenated, input."""

    in_dim: Optional[Dim] = option(None, help="axis to use as the feature axis of the source, or the dim of its labels")
    dropout: Optional[float] = option(0.0, check=dropout_rate, help="dropout on the input in training; None: none")
    dropout_axis: Optional[Axes] = option(
        None, help="axes with own dropout masks (default: all static axes)", needs="dropout"
    )
    dropout_noise_shape: NoiseShape = option(
        None,
        help="{axis: 1 or None}: axes with 1 share the mask; {'*': None}: none does; or a list for all axes",
        needs="dropout",
    )
    dropout_on_forward: bool = option(False, help="apply dropout outside training too", needs="dropout")
    mask: Optional[str] = option(None, choices=(None, "unity"), help="obsolete", inert="'unity' masks nothing")

    @property
    def input(self) -> Data:
        """The template of the one input, as `input_template` inferred it."""
        assert self.node.input is not None, "layer %s did not call input_template" % self.node.path
        return self.node.input

    def input_template(self, ctx: PlanContext) -> Data:
        """Infer the template of the single input: the source, or all sources concatenated."""
        data = concat_template(ctx, self.sources)
        if self.dropout and data.sparse:
            ctx.need_feature(data, "the source of the dropout")
        if self.in_dim is not None and self.in_dim != data.sparse_dim:
            axis = ctx.axis(data, self.in_dim)
            data = data.replace(feature_axis=axis, time_axis=None if data.time_axis == axis else data.time_axis)
        if self.dropout:
            _check_noise_shape(ctx, data, self)
        self.node.input = data
        return data

    def emit_input(self, ctx: EmitContext) -> Any:
        """Return the tensor in the layout of ``self.input``."""
        data = self.input
        x = emit_concat(ctx, self.sources, data)
        if self.dropout and (ctx.train or self.dropout_on_forward):
            shape = dropout_noise_shape(ctx, data, self)
            x = ctx.dropout(x, self.dropout, noise_shape=shape, of=self.mask_name())
        return x

    def drops_by_frame(self) -> bool:
        """Return whether the dropout has a mask for all frames, or a number for each entry; also without dropout."""
        usual = self.dropout_axis is None and self.dropout_noise_shape in (None, {"*": None})
        return self.in_dim is None and (usual or not self.dropout)

    def mask_name(self) -> str:
        """Return the name of the dropout mask: layers with the same sources and options share it."""
        options = (self.dropout, self.dropout_axis, self.dropout_noise_shape)
        return "%s %r" % (" ".join(node.path for node in self.sources), options)


def concat_template(ctx: PlanContext, sources: list[Node]) -> Data:
    """Return the template of all sources concatenated in the feature axis; a single source is returned unchanged.

    :raises ConfigError: sparse sources, sources without feature axis, dims that don't fit
    """
    if not sources:
        raise ctx.error("needs a source: add 'from', e.g. 'from': 'data'.")
    if len(sources) == 1:
        return sources[0].output
    for node in sources:
        ctx.need_feature(node.output, "source %r" % node.path)
    allow = ctx.behavior_version < 4 or ctx.node.layer.out_shape is not None
    return concat_layout(sources, allow_broadcast_all=allow)


def concat_layout(sources: list[Node], *, allow_broadcast_all: bool = False) -> Data:
    """Return `concat_template` for sources known to have features: those summed, in the common layout.

    :param allow_broadcast_all: whether it is allowed that no source has all axes
    """
    first = sources[0].output
    if len(sources) == 1:
        return first
    datas = [node.output for node in sources]
    common = common_layout(datas, allow_broadcast_all=allow_broadcast_all, ignore_feature=True)
    dim = first.feature_dim
    assert dim is not None
    for data in datas[1:]:
        assert data.feature_dim is not None
        dim = dim + data.feature_dim
    assert common.feature_axis is not None
    return common.with_dim(common.feature_axis, dim)


def emit_concat(ctx: EmitContext, sources: list[Node], data: Data) -> Any:
    """Concatenate; axes that a source lacks are broadcast.

    :param data: template of the result
    """
    if len(sources) == 1:
        return ctx.source(0) if sources is ctx.node.sources else ctx.value(sources[0])
    parts = []
    for node in sources:
        mapping = _with_feature(node.output, data)
        part = to_layout(ctx.value(node), node.output, data, mapping)
        missing = [t for t in range(data.rank) if t not in mapping]
        if missing:
            shape = [ctx.size(data.dims[t]) if t in missing else tf.shape(part)[t] for t in range(data.rank)]
            part = tf.broadcast_to(part, tf.stack(shape))
        parts.append(part)
    return tf.concat(parts, axis=data.feature_axis)


def _with_feature(data: Data, common: Data) -> list[Optional[int]]:
    """Match axes by `match_axes`, pairing the feature axes whatever their sizes are."""
    assert data.feature_axis is not None and common.feature_axis is not None
    rest = match_axes(data.without_axes([data.feature_axis]), common.without_axes([common.feature_axis]))
    mapping = [t if t is None or t < common.feature_axis else t + 1 for t in rest]
    mapping.insert(data.feature_axis, common.feature_axis)
    return mapping


def _check_noise_shape(ctx: PlanContext, data: Data, layer: ConcatInputLayer) -> None:
    """Check the options that say which entries have their own dropout mask.

    :raises ConfigError: a wrong axis or size
    """
    given = layer.dropout_noise_shape
    if layer.dropout_axis is not None:
        ctx.axes(data, layer.dropout_axis)
    if isinstance(given, (list, tuple)) and len(given) != data.rank - len(data.loop_axes):
        raise ctx.error(
            "dropout_noise_shape has %d entries, but the source is %s. Give one for each axis, in this order."
            % (len(given), data)
        )
    for axes, value in _noise_entries(given, lambda desc: ctx.axes(data, desc), data):
        for size in [data.dims[axis].size for axis in axes] if value not in (None, -1, 1) else []:
            if size != value:
                raise ctx.error("dropout_noise_shape has the size %r for an axis of %s. Use 1 or None." % (value, data))


def _noise_entries(given: Any, axes_of: Callable[[Any], list[int]], data: Data) -> list[tuple[list[int], Any]]:
    """Return dropout_noise_shape as pairs (axes, value); later ones override earlier ones."""
    if given is None:
        return []
    if isinstance(given, (list, tuple)):
        axes = [axis for axis in range(data.rank) if not data.dims[axis].is_loop]
        return [([axis], value) for axis, value in zip(axes, given)]
    rest = [(list(range(data.rank)), given["*"])] if "*" in given else []
    return rest + [(axes_of(desc), value) for desc, value in given.items() if desc != "*"]


def dropout_noise_shape(ctx: EmitContext, data: Data, layer: Any) -> Optional[list[Any]]:
    """Return the sizes of the dropout mask: 1 on batch and dynamic axes unless the options override it.

    :return: None if the mask is drawn for every entry
    """
    if layer.dropout_axis is not None:
        own = ctx_axes(ctx, data, layer.dropout_axis)
        if len(own) == data.rank:
            return None
        return [ctx.size(d) if i in own else 1 for i, d in enumerate(data.dims)]
    sizes: list[Any] = [1 if d.size is None else d.size for d in data.dims]
    shared = {axis for axis, d in enumerate(data.dims) if d.size is None}
    for axes, value in _noise_entries(layer.dropout_noise_shape, lambda desc: ctx_axes(ctx, data, desc), data):
        for axis in axes:
            own_number = value in (None, -1) or value == data.dims[axis].size
            sizes[axis] = ctx.size(data.dims[axis]) if own_number else value
            shared = shared - {axis} if own_number else shared | {axis}
    return sizes if shared else None


def ctx_axes(ctx: EmitContext, data: Data, desc: Any) -> list[int]:
    """Resolve axes by description while emitting."""
    return resolve_axes(data, desc, behavior_version=ctx.behavior_version)
