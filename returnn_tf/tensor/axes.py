"""Axis descriptions, e.g. ``"T"``, ``"spatial:0"``, ``"dim:3"``, ``"stag:window"``, resolved to axes of a `Data`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional, Union

from returnn_tf.config.errors import AxisError, ConfigError, did_you_mean
from returnn_tf.tensor.data import Data
from returnn_tf.tensor.dim import Dim, DimKind
from returnn_tf.tensor.dim_names import NO_NAMES, DimNames

AxisDesc = Union[Dim, str, int]

_MARKED: dict[str, Callable[[Data], Optional[int]]] = {
    "b": lambda data: data.batch_axis,
    "t": lambda data: data.time_axis,
    "f": lambda data: data.feature_axis,
}
_LONG_NAMES = {"batch": "b", "time": "t", "feature": "f", "non_spatial": "f"}

# Names for several axes; with ``:i`` appended, the i-th of them.
_GROUPS: dict[str, Callable[[Data], list[int]]] = {
    "spatial": lambda data: data.spatial_axes,
    "dynamic": lambda data: [i for i in data.dynamic_axes if i not in data.loop_axes],
    "static": lambda data: [i for i, d in enumerate(data.dims) if d.size is not None and not d.is_loop],
    "spatial_except_time": lambda data: [i for i in data.spatial_axes if i != data.time_axis],
    "except_time": lambda data: [i for i in _GROUPS["except_batch"](data) if i != data.time_axis],
    "except_batch": lambda data: [i for i in range(data.rank) if i not in (data.batch_axis, *data.loop_axes)],
    "*": lambda data: [i for i in range(data.rank) if i not in data.loop_axes],
}
_SHORT_GROUPS = {"s": "spatial", "dyn": "dynamic", "d": "dynamic"}
_NAMES = ["B", "T", "T?", "F", *_GROUPS, "dyn", "dim:<size>", "stag:<part of the name>", "tag:<part of the name>"]
_NAMES += ["stag-single:<index>:<part of the name>"]


def resolve_axes(
    data: Data,
    desc: Union[AxisDesc, None, Sequence[AxisDesc]],
    *,
    behavior_version: int = 0,
    names: DimNames = NO_NAMES,
) -> list[int]:
    """Return the indices of the axes that a description denotes, in its order.

    None, an empty string or list, "T?" and names of groups such as "spatial" may denote no axis.

    :param data: template with the axes
    :param desc: a dim, a name, an int (counted with batch; not since behavior version 5), or a list of them
    :param names: further names of dims
    :raises ConfigError: for an unknown name, one which this behavior version does not allow, or one without an axis
    """
    if isinstance(desc, (list, tuple, set, frozenset)):
        each = resolve_each(data, list(desc), behavior_version=behavior_version, names=names)
        return list(dict.fromkeys(axis for axes in each for axis in axes))
    if desc is None:
        return []
    if isinstance(desc, Dim):
        return _need_one(data, desc, axes_of(data, desc))
    if isinstance(desc, bool) or not isinstance(desc, (int, str)):
        raise AxisError("An axis is named by a dim, a string or a list of them, not by %r." % (desc,))
    if isinstance(desc, int):
        return _by_index(data, desc, behavior_version)
    return _by_name(data, desc, behavior_version, names)


def resolve_each(
    data: Data, descs: Sequence[Any], *, behavior_version: int = 0, names: DimNames = NO_NAMES
) -> list[list[int]]:
    """Return the indices of the axes that each description denotes.

    Of dims that differ in match priority only, each means an axis of its own.

    :raises ConfigError: see `resolve_axes`
    """
    found: dict[int, list[int]] = {}
    taken: list[int] = []
    for i in sorted(range(len(descs)), key=lambda i: -descs[i].match_priority if isinstance(descs[i], Dim) else 0):
        axes = resolve_axes(data, descs[i], behavior_version=behavior_version, names=names)
        if isinstance(descs[i], Dim) and axes[0] in taken:
            axes = data.axes_of(descs[i], without=taken) or axes
        found[i] = axes
        taken += axes
    return [found[i] for i in range(len(descs))]


def resolve_axis(data: Data, desc: AxisDesc, *, behavior_version: int = 0, names: DimNames = NO_NAMES) -> int:
    """Return the index of the single axis that a description denotes.

    :raises ConfigError: it denotes no axis, or more than one
    """
    axes = resolve_axes(data, desc, behavior_version=behavior_version, names=names)
    if len(axes) != 1:
        raise _no_single_axis(data, desc, axes)
    return axes[0]


def axes_of(data: Data, dim: Dim) -> list[int]:
    """Return the indices of all axes with a dim; any batch dim denotes the batch axis."""
    axes = data.axes_of(dim)
    return [data.batch_axis] if not axes and dim.is_batch and data.batch_axis is not None else axes


def _no_single_axis(data: Data, desc: Any, axes: list[int]) -> ConfigError:
    twice = isinstance(desc, Dim) and len(axes) > 1
    hint = " Where a tensor has a dim twice, mark the axis to take by dim.copy(match_priority=1)." if twice else ""
    return AxisError(
        "Axis %s means %s axis of %s. Name one axis by its dim, by a letter of B, T, F, or by one of: %s.%s"
        % (_show(desc), "no" if not axes else "more than one", data, ", ".join(_NAMES[3:]), hint)
    )


def _by_index(data: Data, index: int, behavior_version: int) -> list[int]:
    if behavior_version >= 5:
        raise AxisError(
            "Axis %d is an index, which depends on the order of the axes and is not allowed since behavior version 5. "
            "Name the axis, e.g. 'T', 'F' or 'dim:<size>'." % index
        )
    if not -data.rank <= index < data.rank:
        raise AxisError("Axis %d does not exist: %s has %d axes." % (index, data, data.rank))
    return [index % data.rank]


def _by_name(data: Data, desc: str, behavior_version: int, names: DimNames) -> list[int]:
    name = desc.strip().lower()
    name = _LONG_NAMES.get(name, name)
    if name == "":
        return []
    if name in ("t?", "time?"):
        return [] if data.time_axis is None else [data.time_axis]
    if _group(name) is not None:
        return _GROUPS[_group(name) or ""](data)
    if set(name) <= set("btf"):
        return [_marked(data, desc, letter) for letter in name]
    prefix, _, text = name.partition(":")
    if prefix == "dim" and text.isdigit():
        found = [i for i, d in enumerate(data.dims) if d.size == int(text) and not d.is_loop]
        return _need_one(data, desc, found)
    if prefix in ("stag", "tag"):
        return _need_one(data, desc, _by_tag(data, text, names, only_spatial=prefix == "stag"))
    if prefix == "stag-single":
        return _indexed_tag(data, desc, text, names)
    group, _, index = name.rpartition(":")
    if _group(group) is not None and index.lstrip("-").isdigit():
        return _indexed_group(data, desc, _group(group) or "", int(index), behavior_version)
    raise AxisError("Axis %r is not a known name. %s" % (desc, did_you_mean(desc, _NAMES)))


def _group(name: str) -> Optional[str]:
    name = _SHORT_GROUPS.get(name, name)
    return name if name in _GROUPS else None


def _marked(data: Data, desc: str, letter: str) -> int:
    axis = _MARKED[letter](data)
    if axis is None:
        kind = {"b": "batch", "t": "time", "f": "feature"}[letter]
        raise AxisError(
            "Axis %r means no axis of %s, which has no %s axis. Name an axis by its dim, or mark one by set_axes of "
            "reinterpret_data or, for data that extern_data declares by 'dims', by 'version': 1 there."
            % (desc, data, kind)
        )
    return axis


def _need_one(data: Data, desc: Union[Dim, str], axes: list[int]) -> list[int]:
    if len(axes) != 1:
        raise _no_single_axis(data, desc, axes)
    return axes


def _indexed_group(data: Data, desc: str, group: str, index: int, behavior_version: int) -> list[int]:
    if behavior_version >= 7:
        raise AxisError(
            "Axis %r depends on the order of the axes and is not allowed since behavior version 7. "
            "Name the axis by its dim, 'dim:<size>' or 'stag:<part of the name>'." % desc
        )
    return _entry(data, desc, _GROUPS[group](data), index)


def _indexed_tag(data: Data, desc: str, text: str, names: DimNames) -> list[int]:
    index, _, part = text.partition(":")
    if not index.lstrip("-").isdigit() or not part:
        raise AxisError("Axis %r: write 'stag-single:<index>:<part of the name>', e.g. 'stag-single:0:time'." % desc)
    return _entry(data, desc, _by_tag(data, part, names, only_spatial=True), int(index))


def _entry(data: Data, desc: str, axes: list[int], index: int) -> list[int]:
    if not -len(axes) <= index < len(axes):
        raise AxisError("Axis %r does not exist: %s has %d such axes." % (desc, data, len(axes)))
    return [axes[index]]


def _by_tag(data: Data, text: str, names: DimNames, *, only_spatial: bool) -> list[int]:
    """Return the axes with a text in one of the names of their dims."""
    axes = []
    for i, d in enumerate(data.dims):
        is_spatial = d.kind is DimKind.SPATIAL or (d.kind is DimKind.FEATURE and i != data.feature_axis)
        if is_spatial or not (only_spatial or d.is_loop):
            axes.append(i)
    found = [i for i in axes if text in names.text(data.dims[i])]
    return found or [i for i in axes if text in names.text(data.dims[i], passed=True)]


def _show(desc: Any) -> str:
    return str(desc) if isinstance(desc, Dim) else repr(desc)
