"""The common part of `conv`, `pool` and `transposed_conv`: the axes they run over, sizes, padding and lengths."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional, Union

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.ops.dense.convolution import AxisPadding
from returnn_tf.ops.frames.shape import transpose, with_sizes
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf

_PADDINGS = ("same", "valid", "same_static")


@dataclasses.dataclass
class SpatialAxes:
    """The axes of a source in the order [batch, others, spatial, feature].

    :param data: the template of the source
    :param lead: batch and all other axes, which count as batch
    :param spatial: the axes that the window moves along
    """

    data: Data
    lead: list[int]
    spatial: list[int]

    @property
    def order(self) -> list[int]:
        """Return all axes."""
        assert self.data.feature_axis is not None
        return self.lead + self.spatial + [self.data.feature_axis]

    @property
    def dims(self) -> list[Dim]:
        """Return the dims of the spatial axes."""
        return [self.data.dims[i] for i in self.spatial]

    def template(self, spatial_dims: Sequence[Dim], feature: Optional[Dim] = None) -> Data:
        """Return the output template in this order, with new spatial dims and a new feature dim."""
        data = self.data.permuted(self.order)
        for i, dim in enumerate(spatial_dims):
            data = data.with_dim(len(self.lead) + i, dim)
        if feature is not None:
            data = data.with_dim(data.rank - 1, feature)
        return data.replace(vocab=None)

    def to_op(self, ctx: EmitContext, x: Any, *, use_time_mask: bool) -> Any:
        """Bring ``x`` to [N, spatial..., feature].

        :param use_time_mask: zeros in the frames after the end of a sequence
        """
        if use_time_mask:
            mask = ctx.masks(self.data, self.spatial)
            if mask is not None:
                x = tf.where(mask, x, tf.zeros_like(x))
        return to_lead_form(transpose(x, self.order), len(self.lead))

    def from_op(self, ctx: EmitContext, y: Any, out: Data) -> Any:
        """Bring [N, spatial..., feature] to the layout of the output."""
        return y if len(self.lead) == 1 else tf.reshape(y, ctx.shape(out))


def to_lead_form(x: Any, count: int) -> Any:
    """Merge the first ``count`` axes into one; insert an axis of size 1 if ``count`` is 0."""
    if count == 1:
        return x
    if count == 0:
        return x[None]
    shape = tf.shape(x)
    y = tf.reshape(x, tf.concat([[-1], shape[count:]], axis=0))
    return with_sizes(y, [None] + x.shape.as_list()[count:])


def spatial_axes(ctx: PlanContext, data: Data, given: Any, count: int, what: str) -> SpatialAxes:
    """Find the axes.

    :param given: option in_spatial_dims, or None: all axes but batch and feature
    :param count: number of axes of the window
    :param what: the option that determines it, e.g. "filter_size"
    """
    ctx.need_feature(data)
    found = data.spatial_axes
    if given is not None:
        descs = list(given) if isinstance(given, (list, tuple)) else [given]
        found = ctx.each_axis(data, descs)
    elif len(found) > count and ctx.behavior_version < 8:
        # Old versions guess: dynamic axes first.
        found = sorted(sorted(found, key=lambda i: not data.dims[i].is_dynamic())[:count])
    if len(found) != count:
        raise ctx.error(
            "%s has %d %s, but %s %d: %s. %s"
            % (
                what,
                count,
                "axis" if count == 1 else "axes",
                "in_spatial_dims has" if given is not None else "the source %s has the spatial axes" % data,
                len(found),
                ", ".join(str(data.dims[i]) for i in found) or "none",
                "Name equally many." if given is not None else "Name the axes by the option 'in_spatial_dims'.",
            )
        )
    batch = [] if data.batch_axis is None else [data.batch_axis]
    bad = [i for i in found if i in (data.batch_axis, data.feature_axis)]
    if bad or len(set(found)) != count:
        raise ctx.error(
            "in_spatial_dims must be different axes other than batch and feature, got %s of %s."
            % (", ".join(str(data.dims[i]) for i in found), data)
        )
    lead = batch + [i for i in range(data.rank) if i not in batch + found and i != data.feature_axis]
    return SpatialAxes(data, lead, found)


def per_axis(ctx: PlanContext, name: str, value: Any, count: int) -> list[int]:
    """Return a size per axis: an int applies to all. Dims count by their size.

    :param name: of the option
    """
    values = [value] * count if isinstance(value, int) else list(value)
    values = [ctx.need_static(v, "a dim in %s" % name) if isinstance(v, Dim) else v for v in values]
    if len(values) == 1 and count > 1:
        values = values * count
    if len(values) != count or not all(isinstance(v, int) and not isinstance(v, bool) and v >= 1 for v in values):
        raise ctx.error("%s must be a positive number, or one for each of the %d axes; got %r." % (name, count, value))
    return values


def check_padding(ctx: PlanContext, value: Any, count: int) -> list[AxisPadding]:
    """Return the padding of each axis: "same", "valid", "same_static" or (left, right)."""
    values = list(value) if isinstance(value, (list, tuple)) else [value] * count
    if len(values) == 1 and count > 1:
        values = values * count
    result: list[AxisPadding] = []
    for item in values:
        if isinstance(item, str) and item.lower() in _PADDINGS:
            result.append(item.lower())
        elif isinstance(item, int) and item >= 0:
            result.append((item, item))
        elif isinstance(item, (list, tuple)) and len(item) == 2 and all(isinstance(i, int) and i >= 0 for i in item):
            result.append((item[0], item[1]))
        else:
            raise ctx.error(
                "padding must be 'same', 'valid', 'same_static', a number of frames or a pair (left, right), or a list "
                "with one of these per axis; got %r." % (value,)
            )
    if len(result) != count:
        raise ctx.error("padding has %d entries for %d axes: %r." % (len(result), count, value))
    return result


def _fixed_padding(dim: Dim, padding: AxisPadding, size: int, stride: int, dilation: int) -> AxisPadding:
    """Express "same_static" by the other kinds: the padding of the window on dynamic axes, "same" on static ones."""
    if padding != "same_static":
        return padding
    if dim.size is not None:
        return "same"
    total = (size - 1) * dilation
    left = max(total + 1 - stride, 0) // 2
    return left, total - left


_REMARK = (
    "with stride %d, padding 'same' places the window of %d frames by the length of the longest sequence in the batch, "
    "so that a sequence gets other values in another batch. With padding 'same_static' it gets the same values in all."
)


@dataclasses.dataclass(frozen=True)
class Window:
    """The window of a convolution or pooling along spatial axes: one entry per axis.

    :param axes: where it moves along
    :param padding: "same", "valid", or the frames in front and behind
    """

    axes: SpatialAxes
    size: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    padding: Sequence[AxisPadding]

    def remark(self) -> str:
        """Return a remark if "same" places the window by the length of the array, and so of the longest sequence.

        "same" adds ``(ceil(n / stride) - 1) * stride + extent - n`` frames, half of them in front: with a stride, their
        number varies with n.
        """
        for dim, pad, size, stride, dilation in zip(
            self.axes.dims, self.padding, self.size, self.strides, self.dilations
        ):
            extent = (size - 1) * dilation + 1
            if pad == "same" and dim.size is None and max(extent - stride, 0) // 2 != (extent - 1) // 2:
                return _REMARK % (stride, extent)
        return ""


def plan_window(
    ctx: PlanContext, data: Data, in_spatial_dims: Any, size: Any, strides: Any, padding: Any, dilations: Any, what: str
) -> tuple[Window, list[Dim]]:
    """Plan a window by the options of a layer; return it, and the dims of its axes in the output.

    :param what: the option with the size
    """
    count = 1 if isinstance(size, int) else len(size)
    if not 1 <= count <= 3:
        raise ctx.error("%s must have 1 to 3 entries, got %r." % (what, size))
    axes = spatial_axes(ctx, data, in_spatial_dims, count, what)
    sizes = per_axis(ctx, what, size, count)
    strides = per_axis(ctx, "strides", sizes if strides is None else strides, count)
    dilations = per_axis(ctx, "dilation_rate", dilations, count)
    given = check_padding(ctx, padding, count)
    steps = list(zip(sizes, strides, dilations))
    fixed = [_fixed_padding(dim, pad, *step) for dim, pad, step in zip(axes.dims, given, steps)]
    dims = [conv_dim(dim, *step, pad) for dim, pad, step in zip(axes.dims, given, steps)]
    return Window(axes, sizes, strides, dilations, fixed), dims


def conv_dim(dim: Dim, size: int, stride: int, dilation: int, padding: AxisPadding) -> Dim:
    """Return the dim of the output.

    Its length is ``ceil(n / stride)`` for same, else ``ceil((n + pad - (size - 1) * dilation) / stride)``.
    """
    if padding in ("same", "same_static"):
        return dim.ceildiv_right(stride)
    missing = (size - 1) * dilation - (0 if isinstance(padding, str) else sum(padding))
    grown: Union[Dim, Any] = dim - missing if missing >= 0 else dim + -missing
    return grown.ceildiv_right(stride)


def bind_spatial(ctx: PlanContext, declared: Any, dims: list[Dim], before: list[Dim]) -> list[Dim]:
    """Bind the new dims to those of the option out_spatial_dims, and give them names by the layer.

    :param before: the dims of these axes in the source
    """
    given: list[Any] = list(declared) if isinstance(declared, (list, tuple)) else [declared] * len(dims)
    if len(given) != len(dims) or (len(dims) > 1 and isinstance(declared, Dim)):
        count = len(given) if isinstance(declared, (list, tuple)) else 1
        raise ctx.error("out_spatial_dims has %d dims, but there are %d axes." % (count, len(dims)))
    result = [ctx.bind(d, dim) for d, dim in zip(given, dims)]
    for i, (dim, old) in enumerate(zip(result, before)):
        ctx.name_dim(dim, "%%s:conv:s%d" % i, passed=dim is old)
    return result
