"""The option ``reuse_params``: which parameters of a layer another layer, a function or an output provides.

The layer that provides them may depend on the layer that uses them, so that this is no dependency. Hence a parameter
stays an `OpenParam` until all layers are planned; `returnn_tf.compiler.planning.reuse` decides then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional

from returnn_tf.graph.layer import Node
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.tensor import Dim


@dataclasses.dataclass(frozen=True, eq=False)
class Reuse:
    """One form of the option, with what it refers to; the fields are the keys of the dict in the config.

    :param reuse_layer: name, as the layer with the option sees it
    :param layer_output: the planned layer
    :param shape: dims or sizes
    """

    reuse_layer: Optional[str] = None
    map: Optional[Mapping[str, Reuse]] = None
    custom: Optional[Callable[..., Any]] = None
    auto_create_missing: bool = False
    layer_output: Optional[Node] = None
    shape: Optional[tuple[Any, ...]] = None


@dataclasses.dataclass(frozen=True)
class ReuseLevel:
    """The option of a layer, or of a `rec` layer around it, whose parameters are all below one scope.

    :param owner: the layer with the option
    :param find_owner: returns the layer that a name in it refers to; the second argument is the start of an error
    :param scope: scope of the parameters; their names in the option are relative to it
    """

    reuse: Reuse
    owner: Node
    find_owner: Callable[[str, str], Node]
    scope: str


@dataclasses.dataclass(eq=False)
class OpenParam:
    """A parameter of a layer with ``reuse_params``, as long as not all layers are planned.

    :param own: the parameter to create if nothing else provides it
    :param levels: the options that apply, the innermost first
    """

    own: ParamSpec
    levels: tuple[ReuseLevel, ...]


@dataclasses.dataclass(frozen=True)
class LayerAsParam:
    """``reuse_params`` with ``layer_output``: another layer's output replaces a parameter.

    :param node: the other layer
    :param dims: the axes in the order of the parameter
    """

    node: Node
    dims: tuple[Dim, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class CustomParam:
    """A parameter computed by the function ``custom``.

    :param function: of the config
    :param base: the layer that uses the parameter
    :param reuse_layer: the layer named beside the function, or None
    :param name: relative, as in maps
    :param wanted: name, shape, dtype and initialiser of the parameter that the function replaces
    :param created: the parameters that it creates by its argument ``getter``, by full name
    :param used: what it reads of the parameters of ``reuse_layer``, by their relative names
    """

    function: Callable[..., Any]
    base: Node
    reuse_layer: Optional[Node]
    name: str
    wanted: ParamSpec
    created: dict[str, ParamSpec] = dataclasses.field(default_factory=dict)
    used: dict[str, Any] = dataclasses.field(default_factory=dict)


def relative_name(name: str) -> str:
    """Return the name of a parameter in maps: those of a `rec` layer are relative to the scope "rec" inside it."""
    return name[len("rec/") :] if name.startswith("rec/") else name


def owner_references(value: Any) -> Iterator[str]:
    """Return the names of the layers whose parameters the option asks for.

    :param value: as in the config
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        if isinstance(value.get("reuse_layer"), str):
            yield value["reuse_layer"]
        entries = value.get("map")
        for entry in entries.values() if isinstance(entries, Mapping) else ():
            yield from owner_references(entry)


def output_references(value: Any) -> Iterator[str]:
    """Return the names of the layers whose outputs the option asks for.

    :param value: as in the config
    """
    if isinstance(value, Mapping):
        if isinstance(value.get("layer_output"), str):
            yield value["layer_output"]
        entries = value.get("map")
        for entry in entries.values() if isinstance(entries, Mapping) else ():
            yield from output_references(entry)


def map_names(value: Any, owner: Callable[[str], str], output: Callable[[str], str]) -> Any:
    """Replace the names of layers in the option.

    :param value: as in the config
    :param owner: of layers whose parameters are used
    :param output: of layers whose outputs are used
    """
    if isinstance(value, str):
        return owner(value)
    if not isinstance(value, Mapping):
        return value
    funcs = {"reuse_layer": owner, "layer_output": output}
    result = {key: funcs[key](item) if key in funcs and isinstance(item, str) else item for key, item in value.items()}
    if isinstance(value.get("map"), Mapping):
        result["map"] = {name: map_names(entry, owner, output) for name, entry in value["map"].items()}
    return result
