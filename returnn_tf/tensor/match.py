"""The correspondence of axes of several templates, and their common layout for broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from returnn_tf.config import ConfigError
from returnn_tf.tensor.data import Data


def match_axes(data: Data, into: Data) -> list[Optional[int]]:
    """Return, for each axis of ``data``, the axis of ``into`` with the same dim, or None.

    Identical dims first; then the feature axes with each other, a size of 1 fits any other; then dims that agree (see
    `Dim.agrees_with`).
    """
    result: list[Optional[int]] = [None] * data.rank
    free = list(range(into.rank))

    def take(axis: int, target: int) -> None:
        result[axis] = target
        free.remove(target)

    for a, dim in enumerate(data.dims):
        target = next((t for t in free if into.dims[t] is dim or (dim.is_batch and into.dims[t].is_batch)), None)
        if target is not None:
            take(a, target)
    fa, fi = data.feature_axis, into.feature_axis
    if fa is not None and result[fa] is None and fi in free and fi is not None:
        if data.dims[fa].agrees_with(into.dims[fi]) or 1 in (data.dims[fa].size, into.dims[fi].size):
            take(fa, fi)
    for a, dim in enumerate(data.dims):
        if result[a] is None:
            target = next((t for t in free if dim.agrees_with(into.dims[t])), None)
            if target is not None:
                take(a, target)
    return result


def common_layout(datas: Sequence[Data], *, allow_broadcast_all: bool = False, ignore_feature: bool = False) -> Data:
    """Return the layout that all templates broadcast to: the one with the most axes, the earliest among equals.

    :param allow_broadcast_all: if no single template has all axes: append the axes that are missing
    :param ignore_feature: the sizes of the feature axes may differ (they will be concatenated)
    :raises ConfigError: if no template has all axes and ``allow_broadcast_all`` is off
    """
    # While a loop is planned, the value of its previous step may still be unknown: it fits everywhere.
    datas = [d for d in datas if not d.unknown] or datas
    common = max(datas, key=lambda d: d.rank - len(d.loop_axes))
    for data in datas:
        matched = match_axes(data, common)
        for a, target in enumerate(matched):
            if target is not None and common.dims[target].size == 1:
                common = common.with_dim(target, data.dims[a])
        missing = [
            a
            for a, target in enumerate(matched)
            if target is None
            and data.dims[a].size != 1
            and not data.dims[a].is_loop
            and not (ignore_feature and a == data.feature_axis and common.feature_axis is not None)
        ]
        if not missing:
            continue
        if not allow_broadcast_all:
            raise ConfigError(
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
    """Insert the missing axes before the feature axis; a missing feature axis goes to the end."""
    for a in missing:
        is_feature = a == data.feature_axis and common.feature_axis is None
        axis = common.rank
        if not is_feature and common.feature_axis is not None:
            axis = common.feature_axis
        if data.dims[a].is_batch:
            axis = 0
        common = common.with_axis(axis, data.dims[a], feature=is_feature)
        if common.time_axis is None and a == data.time_axis:
            common = common.replace(time_axis=axis)
    return common
