"""`reinterpret_data`: the same values with another meaning of axes, dims or entries."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axes
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.math.cast import is_int
from returnn_tf.layers.shared.axis_marks import with_feature_default
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.frames.shape import moved_axis_perm, transpose
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf

_UNSET: Any = "unset"
_FIELDS = {"t": "time_axis", "f": "feature_axis"}
_LONG = {"batch": "b", "time": "t", "feature": "f"}


@dataclasses.dataclass(frozen=True, eq=False)
class ReinterpretDataPlan(LayerPlan):
    """The plan of `ReinterpretDataLayer`.

    :param perm: order of the axes of the input in the output
    :param renamed: the old and the new dim, where the new one is dynamic
    """

    perm: Sequence[int]
    renamed: Sequence[tuple[Dim, Dim]]


@register_layer("reinterpret_data")
class ReinterpretDataLayer(ConcatInputLayer, Planned[ReinterpretDataPlan]):
    """Changes what the axes and the entries of the source mean; the values stay.

    Lengths: unchanged; with size_base those of the time axis there, with set_dim_tags those of the dims, where known.
    A batch axis that becomes another dim has one length, the number of sequences.

    Example::

        extern_data = {"data": {"dim": 4}, "other": {"dim": 4}}
        network = {
            "r": {"class": "reinterpret_data", "size_base": "data", "from": "data:other"},
            "output": {"class": "combine", "kind": "add", "from": ["data", "r"]}}
    """

    only_reshapes = True
    joins_features = True
    switch_axes: Optional[Axes] = option(None, help="two axes that exchange their meaning, e.g. 'bt'; no transpose")
    size_base: Optional[LayerRef] = option(None, help="layer whose time dim becomes the time dim", refs=True)
    batch_dim_base: Optional[LayerRef] = option(None, help="layer whose batch dim becomes the batch dim", refs=True)
    set_axes: Optional[dict[str, Any]] = option(None, help="{'T' or 'F': axis or None}: the time and the feature axis")
    set_dim_tags: Optional[dict[Any, Dim]] = option(None, help="{axis: new dim}")
    enforce_batch_major: bool = option(False, help="move the batch axis to the front")
    enforce_time_major: bool = option(False, help="move the time axis to the front")
    set_sparse: Optional[bool] = option(None, help="whether the entries are label indices")
    set_sparse_dim: Union[None, int, str, Dim] = option("unset", help="number or dim of the labels; None: dense")
    increase_sparse_dim: Optional[int] = option(None, help="number of labels to add")
    expect_sparse_dim: Optional[tuple[int, str]] = option(
        None, help="(number, text): how many labels the source must have, and what says so, for the error"
    )

    def template(self, ctx: PlanContext) -> ReinterpretDataPlan:
        """Infer the output: the changes in the order of the options."""
        source = data = self.input_template(ctx)
        self._check_labels(ctx, source)
        perm = list(range(data.rank))
        renamed: list[tuple[Dim, Dim]] = []
        if self.enforce_batch_major:
            data, perm = _to_front(data, data.batch_axis, perm)
        if self.enforce_time_major:
            data, perm = _to_front(data, data.time_axis, perm)
        if self.switch_axes:
            data = self._switch(ctx, data)
        data = self._with_sizes(ctx, data)
        if self.set_axes:
            data = self._with_axes(ctx, data)
        if self.set_dim_tags:
            data, renamed = self._with_dims(ctx, data)
        data = self._with_labels(ctx, data)
        if source.sparse and not data.sparse:
            data = data.replace(vocab=None)
        return ReinterpretDataPlan(data, perm, renamed)

    def _check_labels(self, ctx: PlanContext, source: Data) -> None:
        """Check the number of labels of the source, if one is expected.

        :raises ConfigError: it has another one, or none
        """
        if self.expect_sparse_dim is None:
            return
        number, text = self.expect_sparse_dim
        found = source.sparse_dim
        if found is None:
            raise ctx.error("%s is %d, but the source has no labels, it is %s." % (text, number, source))
        if found.size is not None and found.size != number:
            raise ctx.error("%s is %d, but the source has %d labels. Give %d." % (text, number, *2 * (found.size,)))

    def _switch(self, ctx: PlanContext, data: Data) -> Data:
        axes = ctx.axes(data, self.switch_axes)
        if len(axes) != 2:
            raise ctx.error("switch_axes %r must mean two axes of %s." % (self.switch_axes, data))
        return _exchanged(data, *axes)

    def _with_sizes(self, ctx: PlanContext, data: Data) -> Data:
        if self.size_base is not None:
            base = self.size_base.output.time_dim
            if (data.time_axis is None and base is not None) or (data.time_axis is not None and base is None):
                raise ctx.error(
                    "size_base: both need a time axis, but the source is %s and layer %r is %s."
                    % (data, self.size_base.path, self.size_base.output)
                )
            if data.time_axis is not None and base is not None:
                data = data.with_dim(data.time_axis, base)
        if self.batch_dim_base is not None:
            base_data = self.batch_dim_base.output
            if data.batch_axis is None or base_data.batch_axis is None:
                raise ctx.error("batch_dim_base: both need a batch axis, but the source is %s." % data)
            data = data.with_dim(data.batch_axis, base_data.dims[base_data.batch_axis])
        return data

    def _with_axes(self, ctx: PlanContext, data: Data) -> Data:
        before = data
        assert self.set_axes is not None
        for key, desc in self.set_axes.items():
            letter = _LONG.get(key.lower(), key.lower())
            if letter not in ("b", "t", "f"):
                raise ctx.error("set_axes: the keys are 'B', 'T' and 'F', got %r." % key)
            axis = None if desc is None else ctx.axis(before, desc)
            if letter == "b":
                if axis is None or before.batch_axis is None:
                    raise ctx.error("set_axes: the batch axis can only be changed if the source has one.")
                if axis != before.batch_axis:
                    data = _exchanged_dims(data, axis, before.batch_axis)
            else:
                data = data.replace(**{_FIELDS[letter]: axis})
        keys = {_LONG.get(k.lower(), k.lower()) for k in self.set_axes}
        if data.feature_axis is not None and data.feature_axis == data.time_axis and len(keys & {"t", "f"}) == 1:
            # The axis can't be both; the mark that the option does not name is removed.
            data = data.replace(**{_FIELDS["f" if "t" in keys else "t"]: None})
            if "f" in keys:
                data = data.with_time_axis_default()
        return data

    def _with_dims(self, ctx: PlanContext, data: Data) -> tuple[Data, list[tuple[Dim, Dim]]]:
        assert self.set_dim_tags is not None
        renamed = []
        before = data
        axes = ctx.each_axis(before, list(self.set_dim_tags))
        for axis, dim in zip(axes, self.set_dim_tags.values()):
            old = before.dims[axis]
            if old.size is not None and dim.size is None and dim.expr is None:
                dim = ctx.bind(dim, Dim(dim.kind, old.size, dim.description, auto=True))
            if old.size is not None and dim.size != old.size:
                raise ctx.error("set_dim_tags: the axis has %s, which can't become %s." % (old, dim))
            if old.is_batch and not dim.is_batch and self._has_size(ctx, dim):
                raise ctx.error("set_dim_tags: the batch axis can't become %s, whose size is known." % dim)
            if dim.is_dynamic() and not dim.is_batch:
                if ctx.planner.node_with_dim(self.node, dim) is not None:
                    ctx.depend_on_dim(dim)
                renamed.append((old, dim))
            data = data.with_dim(axis, dim)
        return data, renamed

    def _has_size(self, ctx: PlanContext, dim: Dim) -> bool:
        return dim.size is not None or ctx.knows_dim(dim)

    def _with_labels(self, ctx: PlanContext, data: Data) -> Data:
        dim = data.sparse_dim
        if self.set_sparse_dim != _UNSET:
            given: Any = self.set_sparse_dim
            if isinstance(given, str):
                raise ctx.error("set_sparse_dim must be a number, a dim or None, got %r." % given)
            dim = ctx.new_feature(given, "%s:labels" % self.node.path) if isinstance(given, int) else given
        if self.set_sparse is False:
            dim = None
        elif self.set_sparse and dim is None:
            if data.feature_dim is None or data.feature_dim.size is None or not is_int(data.dtype):
                raise ctx.error("set_sparse: give set_sparse_dim, the number of labels; %s does not define it." % data)
            dim = data.feature_dim
        if self.increase_sparse_dim and dim is not None:
            dim = dim + self.increase_sparse_dim
        if dim is not None and not is_int(data.dtype):
            raise ctx.error("label indices must be integers, but the source is %s. Use a cast layer." % data.dtype)
        if dim is data.sparse_dim:
            return data
        if dim is not None and dim.labels_of is None:
            dim.labels_of = data.sparse_dim
        data = data.replace(sparse_dim=dim, vocab=None)
        return data.replace(feature_axis=None) if dim is not None else self._dense(data)

    def _dense(self, data: Data) -> Data:
        named = {_LONG.get(k.lower(), k.lower()) for k in self.set_axes or ()}
        return data if "f" in named else with_feature_default(data)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit no op, or a transpose."""
        for old, new in self.plan.renamed:
            if not ctx.has_lens(new):
                # A batch axis has as many entries as sequences, for all of them.
                size = tf.convert_to_tensor(ctx.size(old))
                ctx.define_lens(new, size if old.is_batch else ctx.lens(old), size=size)
        return transpose(self.emit_input(ctx), self.plan.perm)


def _to_front(data: Data, axis: Optional[int], perm: list[int]) -> tuple[Data, list[int]]:
    """Move an axis to the front, of the template and of the permutation that leads to it."""
    if axis is None or axis == 0:
        return data, perm
    moved = moved_axis_perm(data.rank, axis, 0)
    return data.permuted(moved), [perm[a] for a in moved]


def _exchanged_dims(data: Data, first: int, second: int) -> Data:
    a, b = data.dims[first], data.dims[second]
    return data.with_dim(first, b).with_dim(second, a)


def _exchanged(data: Data, first: int, second: int) -> Data:
    """Swap the meaning of two axes."""
    where: Mapping[Optional[int], int] = {first: second, second: first}
    if data.batch_axis in where:
        data = _exchanged_dims(data, first, second)
    return data.replace(
        time_axis=where.get(data.time_axis, data.time_axis),
        feature_axis=where.get(data.feature_axis, data.feature_axis),
    )
