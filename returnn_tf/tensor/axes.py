"""Axis descriptions, e.g. ``"T"``, ``"spatial:0"``, ``"dim:3"``, ``"stag:window"``, resolved to axes of a `Data`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional, Union

from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.tensor.data import Data
from returnn_tf.tensor.dim import Dim, DimKind

AxisDesc = Union[Dim, str, int]

_MARKED: dict[str, Callable[[Data], Optional[int]]] = {
    "b": lambda data: data.batch_axis,
    "t": lambda data: data.time_axis,
    "f": lambda data: data.feature_axis,
}
_LONG_NAMES = {"batch": "b", "time": "t", "feature": "f"}

# Names for several axes; with ``:i`` appended, the i-th of them.
_GROUPS: dict[str, Callable[[Data], list[int]]] = {
    "spatial": lambda data: data.spatial_axes,
    "s": lambda data: data.spatial_axes,
    "dyn": lambda data: [i for i in data.dynamic_axes if i not in data.loop_axes],
    "dynamic": lambda data: [i for i in data.dynamic_axes if i not in data.loop_axes],
    "static": lambda data: [i for i, d in enumerate(data.dims) if d.size is not None and not d.is_loop],
    "spatial_except_time": lambda data: [i for i in data.spatial_axes if i != data.time_axis],
    "except_time": lambda data: [i for i in _GROUPS["except_batch"](data) if i != data.time_axis],
    "except_batch": lambda data: [i for i in range(data.rank) if i not in (data.batch_axis, *data.loop_axes)],
}
_NAMES = ["B", "T", "F", *_GROUPS, "dim:<size>", "stag:<part of the name>", "tag:<part of the name>"]


def resolve_axes(data: Data, desc: Union[AxisDesc, Sequence[AxisDesc]], *, behavior_version: int = 0) -> list[int]:
    """Return the indices of the axes that a description denotes, in its order; empty if there are none.

    :param data: template with the axes
    :param desc: a dim, a name, an int (counted with batch; not since behavior version 5), or a list of them
    :raises ConfigError: for an unknown name, or one which this behavior version does not allow
    """
    if isinstance(desc, (list, tuple, set, frozenset)):
        axes: list[int] = []
        for part in desc:
            axes += [a for a in resolve_axes(data, part, behavior_version=behavior_version) if a not in axes]
        return axes
    if isinstance(desc, Dim):
        return data.axes_of(desc)
    if isinstance(desc, bool) or not isinstance(desc, (int, str)):
        raise ConfigError("An axis is named by a dim, a string or a list of them, not by %r." % (desc,))
    if isinstance(desc, int):
        return _by_index(data, desc, behavior_version)
    return _by_name(data, desc, behavior_version)


def resolve_axis(data: Data, desc: AxisDesc, *, behavior_version: int = 0) -> int:
    """Return the index of the single axis that a description denotes.

    :raises ConfigError: if there is none, or more than one
    """
    axes = resolve_axes(data, desc, behavior_version=behavior_version)
    if len(axes) != 1:
        raise ConfigError(
            "Axis %s means %s axis of %s. Name one axis by its dim, by a letter of B, T, F, or by one of: %s."
            % (_show(desc), "no" if not axes else "more than one", data, ", ".join(_NAMES[3:]))
        )
    return axes[0]


def _by_index(data: Data, index: int, behavior_version: int) -> list[int]:
    if behavior_version >= 5:
        raise ConfigError(
            "Axis %d is an index, which depends on the order of the axes and is not allowed since behavior version 5. "
            "Name the axis, e.g. 'T', 'F' or 'dim:<size>'." % index
        )
    if not -data.rank <= index < data.rank:
        raise ConfigError("Axis %d does not exist: %s has %d axes." % (index, data, data.rank))
    return [index % data.rank]


def _by_name(data: Data, desc: str, behavior_version: int) -> list[int]:
    name = desc.strip().lower()
    name = _LONG_NAMES.get(name, name)
    if name in ("t?", "time?"):
        return [] if data.time_axis is None else [data.time_axis]
    if name in _GROUPS:
        return _GROUPS[name](data)
    if name and set(name) <= set("btf"):
        found = [_MARKED[letter](data) for letter in name]
        return [a for a in found if a is not None]
    if name.startswith("dim:") and name[4:].isdigit():
        return [i for i, d in enumerate(data.dims) if d.size == int(name[4:])]
    if name.startswith(("stag:", "tag:")):
        return _by_tag(data, name)
    group, _, index = name.rpartition(":")
    if group in _GROUPS and index.lstrip("-").isdigit():
        return _indexed_group(data, desc, group, int(index), behavior_version)
    raise ConfigError("Axis %r is not a known name. %s" % (desc, did_you_mean(desc, _NAMES)))


def _indexed_group(data: Data, desc: str, group: str, index: int, behavior_version: int) -> list[int]:
    if behavior_version >= 7:
        raise ConfigError(
            "Axis %r depends on the order of the axes and is not allowed since behavior version 7. "
            "Name the axis by its dim, 'dim:<size>' or 'stag:<part of the name>'." % desc
        )
    axes = _GROUPS[group](data)
    if not -len(axes) <= index < len(axes):
        raise ConfigError("Axis %r does not exist: %s has %d such axes." % (desc, data, len(axes)))
    return [axes[index]]


def _by_tag(data: Data, name: str) -> list[int]:
    prefix, _, text = name.partition(":")
    axes = []
    for i, d in enumerate(data.dims):
        if prefix == "stag" and not (
            d.kind is DimKind.SPATIAL or (d.kind is DimKind.FEATURE and i != data.feature_axis)
        ):
            continue
        if text in tag_text(d).lower():
            axes.append(i)
    return axes


def tag_text(dim: Dim) -> str:
    """Return the text searched by ``stag:`` and ``tag:``: the description, and those of operands of derived dims."""
    text = dim.description
    if dim.expr is not None:
        text = " ".join([text, *(tag_text(a) for a in dim.expr.args if isinstance(a, Dim))]).strip()
    return text


def _show(desc: Any) -> str:
    return str(desc) if isinstance(desc, Dim) else repr(desc)
