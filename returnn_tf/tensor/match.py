"""The correspondence of axes of several templates, and their common layout for broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from returnn_tf.config.errors import DimError
from returnn_tf.tensor.data import Data, default_feature_axis
from returnn_tf.tensor.dim import Dim, DimKind


def match_axes(data: Data, into: Data, *, strict: bool = False, ones: bool = True) -> list[Optional[int]]:
    """Return, for each axis of ``data``, the axis of ``into`` with the same dim, or None.

    Identical dims first, see `pair_same`; then dims that agree (see `Dim.agrees_with`), the feature axes with each
    other before others, and those that agree strictly before others.

    :param strict: whether dims that users declared agree with no others
    :param ones: whether feature axes of size 1 fit any other
    """
    result: list[Optional[int]] = [None] * data.rank
    free = list(range(into.rank))

    def take(axis: int, target: int) -> None:
        result[axis] = target
        free.remove(target)

    for a, same in pair_same(data, range(data.rank), into, free):
        take(a, same)
    fa, fi = data.feature_axis, into.feature_axis
    for only_strict in (True,) if strict else (True, False):
        if fa is not None and result[fa] is None and fi in free and fi is not None:
            fits = ones and not only_strict and 1 in (data.dims[fa].size, into.dims[fi].size)
            if fits or data.dims[fa].agrees_with(into.dims[fi], strict=only_strict):
                take(fa, fi)
        for a, dim in enumerate(data.dims):
            if result[a] is None:
                target = next((t for t in free if dim.agrees_with(into.dims[t], strict=only_strict)), None)
                if target is not None:
                    take(a, target)
    if strict and ones and fa is not None and result[fa] is None and fi in free and fi is not None:
        if 1 in (data.dims[fa].size, into.dims[fi].size):
            take(fa, fi)
    return result


def pair_same(one: Data, axes: Sequence[int], other: Data, others: Sequence[int]) -> list[tuple[int, int]]:
    """Pair axes of two templates that have the same dim, or are batch axes.

    Where a template has a dim several times, the axes with higher match priorities come first, then the earlier ones.

    :param axes: of ``one``
    :param others: axes of ``other``
    """
    pairs, free = [], list(others)
    for axis in sorted(axes, key=lambda a: -one.dims[a].match_priority):
        dim = one.dims[axis].unprioritized()
        same = [t for t in free if other.dims[t].unprioritized() is dim or (dim.is_batch and other.dims[t].is_batch)]
        if same:
            target = max(same, key=lambda t: other.dims[t].match_priority)
            free.remove(target)
            pairs.append((axis, target))
    return pairs


def common_layout(
    datas: Sequence[Data],
    *,
    allow_broadcast_all: bool = False,
    ignore_feature: bool = False,
    strict: bool = False,
    ones: bool = True,
) -> Data:
    """Return the layout that all templates broadcast to: the one with the most axes, the earliest among equals.

    :param allow_broadcast_all: if no single template has all axes: add those that are missing; a batch axis in front,
        an axis of feature kind after the feature axis, a dynamic one after the last dynamic one, others after the last
        spatial one. Without batch axes that is always allowed, e.g. for a table of two ranges, except for another
        feature axis
    :param ignore_feature: the sizes of the feature axes may differ (they will be concatenated)
    :param strict: whether dims that users declared agree with no others of their size
    :param ones: whether axes of size 1 fit any other
    :raises ConfigError: if no template has all axes and ``allow_broadcast_all`` is off
    """
    # While a loop is planned, the value of its previous step may still be unknown: it fits everywhere.
    datas = [d for d in datas if not d.unknown] or datas
    is_table = all(d.batch_axis is None and not d.loop_axes for d in datas)
    common = max(datas, key=lambda d: d.rank - len(d.loop_axes))
    for data in datas:
        matched = match_axes(data, common, strict=strict, ones=ones)
        for a, target in enumerate(matched):
            if target is not None and common.dims[target].size == 1:
                common = common.with_dim(target, data.dims[a])
        missing = [
            a
            for a, target in enumerate(matched)
            if target is None
            and not (ones and data.dims[a].size == 1)
            and not data.dims[a].is_loop
            and not (ignore_feature and a == data.feature_axis and common.feature_axis is not None)
        ]
        if not missing:
            continue
        has_other_feature = common.feature_axis is not None and data.feature_axis in missing
        if not allow_broadcast_all and (not is_table or has_other_feature):
            sizes = [data.dims[data.feature_axis].size for data in datas if data.feature_axis is not None]
            if missing == [data.feature_axis] and len({size for size in sizes if size != 1}) > 1:
                raise DimError(
                    "The dims don't fit: the sources have different numbers of features, %s. Give them the same n_out, "
                    "or put a linear layer behind one of them." % ", ".join(map(str, sizes))
                )
            raise DimError(
                "The dims don't fit: %s has the axis %s, which is in no other source with all axes; the sources "
                "are %s. "
                "If both axes have the same lengths, declare it with a reinterpret_data layer (option size_base) or by "
                "declaring one Dim for both; to combine every frame with every frame, set allow_broadcast_all_sources."
                % (data, ", ".join(str(data.dims[a]) for a in missing), "; ".join(str(d) for d in datas))
            )
        common = _with_missing(common, data, missing)
    for data in datas:
        for a in data.loop_axes:
            if data.dims[a] not in common.dims:
                common = common.with_axis(0, data.dims[a])
    return common


def _with_missing(common: Data, data: Data, missing: Sequence[int]) -> Data:
    """Insert axes of a template that the layout lacks, one by one, by the kinds of their dims.

    A dim of feature kind becomes the feature axis if the layout has none, or if the layout has the one that is the
    default for its dims, and the new one is the default then.
    """
    for a in missing:
        dim, is_default = data.dims[a], common.feature_axis == default_feature_axis(common.dims, common.time_axis)
        axis = _place(common, dim)
        is_time = common.time_axis is None and a == data.time_axis
        common = common.with_axis(axis, dim, time=is_time)
        if common.version == 2 or (dim.kind is not DimKind.FEATURE and a != data.feature_axis):
            continue
        by_default = is_default and axis == default_feature_axis(common.dims, common.time_axis)
        if common.sparse_dim is None and (common.feature_axis is None or by_default):
            common = common.replace(feature_axis=axis)
    return common


def _place(common: Data, dim: Dim) -> int:
    """Return the index where a new axis is inserted."""
    feature = common.feature_axis
    if dim.is_batch:
        return 0
    if dim.kind is DimKind.FEATURE:
        return common.rank if feature is None else feature + 1
    dynamic = [i for i in common.dynamic_axes if not common.dims[i].is_loop]
    if dim.is_dynamic() and dynamic:
        return dynamic[-1] + 1
    if common.spatial_axes:
        return common.spatial_axes[-1] + 1
    return common.rank if feature is None else feature


def union_of_axes(layouts: Sequence[Sequence[Dim]]) -> tuple[Dim, ...]:
    """Return the dims of several tensors, each once; any batch dim is the batch axis."""
    result: list[Dim] = []
    for dim in [dim for dims in layouts for dim in dims]:
        if dim not in result and not (dim.is_batch and any(d.is_batch for d in result)):
            result.append(dim)
    return tuple(result)
