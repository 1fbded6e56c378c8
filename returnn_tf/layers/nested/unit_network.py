"""A layer dict as an option of another layer (`masked_computation`, `cond`): planned as a network of that one layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional

from returnn_tf.config.errors import ConfigError, DimError
from returnn_tf.config.option_values import map_strings
from returnn_tf.config.options import declared_options
from returnn_tf.config.read_only import ReadOnlyList
from returnn_tf.graph.params.reuse import map_names
from returnn_tf.graph.registry import LAYERS
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.nested import is_network, network_options


def unit_network(
    unit: Any,
    outside: Callable[[str], str],
    *,
    own_data: bool = False,
    owner: Optional[Callable[[str], str]] = None,
    where: str,
) -> dict[str, Any]:
    """Return a network whose only layer "output" is the given one, in the parameter scope of the layer that owns it.

    :param unit: the layer dict; its names belong to the enclosing network
    :param outside: maps such a name to its name in the new network, e.g. ``"base:" + name``
    :param own_data: whether "data" is a separate input of the layer, its source unless ``from`` is given
    :param owner: as ``outside``, for layers whose parameters are used but not their values; default: ``outside``
    :param where: the start of an error
    :raises ConfigError: no layer dict, or an unknown class
    """
    if isinstance(unit, str):
        unit = {"class": "copy", "from": unit}
    layer, cls = _renamed_layer(unit, outside, owner or outside, own_data=own_data, where=where)
    layer.pop("is_output_layer", None)  # the enclosing layer may be one
    # Its parameters are in the scope of the enclosing layer, as if that were this one.
    if not declared_options(cls)["name_scope"].inert:
        layer.setdefault("name_scope", cls.scope_as_unit)
    return {"output": layer}


def _renamed_layer(
    unit: Any, outside: Callable[[str], str], owner: Callable[[str], str], *, own_data: bool, where: str
) -> tuple[dict[str, Any], type[Any]]:
    """Return (a layer dict with the names that it has in a new network, its class); see `unit_network`."""
    if not isinstance(unit, Mapping) or "class" not in unit:
        raise DimError("%s must be a layer such as {'class': 'linear', ...}, not %r." % (where, unit))
    cls = LAYERS.get(unit["class"], where)
    layer = dict(unit)
    if "from" not in layer and (cls.needs_sources or (own_data and issubclass(cls, ConcatInputLayer))):
        layer["from"] = "data"
    layer["from"] = [
        (outside(s[0]), *s[1:]) if isinstance(s, tuple) else outside(s)
        for s in cls.read_sources(layer.get("from"), where)
    ]
    infos = declared_options(cls)
    for name, value in layer.items():
        if name in infos and infos[name].refs and value is not None:
            layer[name] = map_strings(infos[name], value, outside)
        elif name in infos and infos[name].network and is_network(value):
            layer[name] = _nested(value, outside, owner, 1)
        elif name in cls.units and value is not None:
            layer[name] = _renamed_unit(value, outside, owner, own_data=cls.units[name], where=where)
    if "reuse_params" in layer:
        layer["reuse_params"] = map_names(layer["reuse_params"], owner, outside)
    return layer, cls


def _renamed_unit(
    unit: Any, outside: Callable[[str], str], owner: Callable[[str], str], *, own_data: bool, where: str
) -> Any:
    """Return the layer in an option of a layer that is a unit itself, with the names that it has in the new network."""

    def around(name: str) -> str:
        return name if own_data and name == "data" else outside(name)

    if isinstance(unit, str):
        return around(unit)
    return _renamed_layer(unit, around, owner, own_data=own_data, where=where)[0]


def unit_references(unit: Any, *, own_data: bool = False, of_params: bool = False) -> Iterator[str]:
    """Iterate over the names of outer layers that a layer dict needs; none if it is not a layer dict.

    :param of_params: those of which only the parameters are used; else only the others
    """
    names: dict[str, None] = {}

    def note(name: str) -> str:
        names.setdefault(name)
        return name

    try:
        unit_network(unit, str if of_params else note, owner=note if of_params else str, where="the option")
    except ConfigError:
        return iter(())  # planning the layer reports what is wrong
    return iter([name for name in names if not (own_data and name == "data")])


def _nested(value: Any, outside: Callable[[str], str], owner: Callable[[str], str], level: int) -> Any:
    """Replace all references of a nested network to the network around the unit.

    :param owner: as ``outside``, for layers whose parameters are used
    :param level: number of "base:" from here to the network with the unit
    """
    base = "base:" * level

    def renamed(name: str, func: Callable[[str], str]) -> str:
        return base + func(name[len(base) :]) if name.startswith(base) else name

    if isinstance(value, str):
        return renamed(value, outside)
    if isinstance(value, Mapping):
        nested = network_options(LAYERS.find(value.get("class")))
        return {
            key: map_names(item, lambda name: renamed(name, owner), lambda name: renamed(name, outside))
            if key == "reuse_params"
            else _nested(item, outside, owner, level + (key in nested and is_network(item)))
            for key, item in value.items()
        }
    if type(value) in (list, tuple, set, ReadOnlyList):
        kind = list if isinstance(value, ReadOnlyList) else type(value)
        return kind(_nested(item, outside, owner, level) for item in value)
    return value
