"""Parsing of a network dict to one `LayerSpec` per layer: checks names, classes and options, resolves nothing."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from returnn_tf.compiler.planning.code_references import code_references
from returnn_tf.config.errors import ConfigError, OptionError, shown
from returnn_tf.config.option_types import shown_with_kind
from returnn_tf.config.option_values import referenced_names
from returnn_tf.config.options import OptionInfo, check_options, declared_options
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.params.reuse import output_references, owner_references
from returnn_tf.graph.registry import LAYERS, LOSSES

#: Keys of a layer dict that are not options of the class.
STRUCTURAL = ("class", "from")
_SCOPE_SPECIAL = ":(){}&+-*'\" ,"
_SCOPE_FIRST = "_-\\/"
#: The prefix of the extra network that searches.
SEARCH_PREFIX = "extra.search:"
_EXTRA = re.compile(r"(extra(?:\.[^:/]+)?:)(.+)", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class LayerSpec:
    """One entry of a network dict.

    :param name: key in the dict
    :param path: full path, e.g. "encoder/lstm0"
    :param options: the dict, without class and from; values as `OptionInfo.taken` gives them
    :param sources: the entries of ``from``
    :param error: what is wrong with the layer dict, without class and sources then; raised if something needs it
    """

    name: str
    path: str
    cls: type[Layer]
    options: Mapping[str, Any]
    sources: tuple[Any, ...]
    error: Optional[ConfigError] = None

    @property
    def where(self) -> str:
        """Return the start of an error about this layer."""
        return describe_place(self.path, self.cls.class_name)

    def references(self) -> tuple[str, ...]:
        """Return the names of all layers that must be planned before this one."""
        return () if self.error is not None else self._references

    @functools.cached_property
    def _references(self) -> tuple[str, ...]:
        return tuple(self._find_references())

    @functools.cached_property
    def code_references(self) -> tuple[str, ...]:
        """The layers that code among the options asks for."""
        return tuple(code_references(self.options))

    def _find_references(self) -> Iterator[str]:
        for source in self.sources:
            yield source if isinstance(source, str) else source[0]
        for info in _with_refs(self.cls):  # type: ignore[arg-type]  # mypy takes a class with fields for unhashable
            if self.options.get(info.name) is not None:
                yield from referenced_names(info, self.options[info.name])
        yield from self.cls.references(self.options)
        yield from self.code_references
        yield from output_references(self.options.get("reuse_params"))

    def param_references(self) -> Iterator[str]:
        """Return the names of all layers of which this one needs parameters; they may depend on this layer."""
        yield from owner_references(self.options.get("reuse_params"))
        yield from self.cls.param_references(self.options)


@functools.cache
def _with_refs(cls: type[Layer]) -> tuple[OptionInfo, ...]:
    """Return the options that name layers."""
    return tuple(info for info in declared_options(cls).values() if info.refs)


def describe_place(path: str, class_name: str) -> str:
    """Return the start of an error about a layer."""
    return "Layer %r (class %r)" % (path, class_name)


def parse_network(network: Any, path: str, behavior_version: int, default_target: str) -> dict[str, LayerSpec]:
    """Parse all layers of a network dict. Mistakes in a layer are kept until something needs the layer.

    :param path: path of the layer that the network is part of, "" at the top
    :param default_target: for losses without the option target
    :raises ConfigError: no network dict
    """
    where = "network" if not path else "The network inside of layer %r" % path
    if not isinstance(network, Mapping):
        raise OptionError(
            "%s must be a dict {layer name: {'class': ..., ...}}, got %s." % (where, shown_with_kind(network))
        )
    specs: dict[str, LayerSpec] = {}
    for name, options in network.items():
        if isinstance(name, str) and name.startswith("#"):
            continue  # comments and per-network settings of pretraining
        if not isinstance(name, str) or not name.strip():
            raise OptionError("%s: a layer has the name %r. Give it a name, e.g. 'output'." % (where, name))
        layer_path = "%s/%s" % (path, name) if path else name
        try:
            spec = parse_layer(name, options, layer_path, behavior_version)
            check_loss(spec)
            specs[name] = with_default_target(spec, default_target)
        except ConfigError as exc:
            specs[name] = _wrong_layer(name, options, layer_path, exc)
    return specs


def _wrong_layer(name: str, options: Any, path: str, error: ConfigError) -> LayerSpec:
    """Return the entry of a layer that cannot be parsed: enough to decide whether it is needed."""
    given = {k: v for k, v in options.items() if isinstance(k, str)} if isinstance(options, Mapping) else {}
    return LayerSpec(name, path, Layer, {k: v for k, v in given.items() if k not in STRUCTURAL}, (), error)


def parse_layer(name: str, options: Any, path: str, behavior_version: int) -> LayerSpec:
    """Parse one layer dict.

    :raises ConfigError: names the layer, the option and the nearest valid spelling
    """
    if not isinstance(options, Mapping):
        raise OptionError("Layer %r must be a dict such as {'class': 'linear', ...}, got %s." % (path, shown(options)))
    if "class" not in options:
        raise OptionError("Layer %r: the option 'class' is missing. See `returnn-tf layers` for all classes." % path)
    cls = LAYERS.get(options["class"], "Layer %r" % path)
    where = describe_place(path, options["class"])
    check_options(cls, options, where=where, ignore=STRUCTURAL)
    known = declared_options(cls)
    return LayerSpec(
        name,
        path,
        cls,
        {k: known[k].taken(v) for k, v in options.items() if k not in STRUCTURAL},
        tuple(_sources(cls, options, where, behavior_version)),
    )


def _sources(cls: type[Layer], options: Mapping[str, Any], where: str, behavior_version: int) -> list[Any]:
    if "from" in options and options["from"] is not None:
        return cls.read_sources(options["from"], where)
    if not cls.takes_data(options):
        return []
    if behavior_version >= 1 and not cls.always_takes_data:
        raise OptionError(
            "%s: the option 'from' is missing: the names of its input layers. "
            "(Only behavior_version 0 defaults to 'data'.)" % where
        )
    return ["data"]


def check_loss(spec: LayerSpec) -> None:
    """Check the loss of a layer and its options.

    :raises ConfigError: unknown loss or loss option
    """
    name = spec.options.get("loss")
    if name is not None:
        cls = LOSSES.get(name, spec.where)
        given = spec.options.get("loss_opts") or {}
        try:
            check_options(cls, given, where="%s: loss %r" % (spec.where, name))
        except ConfigError as exc:
            hint = _options_of_other_losses(cls, given)
            if not hint:
                raise
            raise OptionError(str(exc) + hint) from exc
    elif spec.options.get("loss_opts"):
        raise OptionError("%s: there are loss_opts, but no loss. Add e.g. 'loss': 'ce'." % spec.where)


def _options_of_other_losses(cls: type[Any], given: Any) -> str:
    """Return, as text, the losses that have the options that a class lacks; "" if none has."""
    lacking = [key for key in given if key not in declared_options(cls)] if isinstance(given, dict) else []
    having = {key: [name for name, other in LOSSES.items() if key in declared_options(other)] for key in lacking}
    return "".join(" %r is an option of: %s." % (key, ", ".join(names)) for key, names in having.items() if names)


def with_default_target(spec: LayerSpec, default_target: str) -> LayerSpec:
    """Return the spec with the option target added, if the loss needs one and none is given."""
    loss = spec.options.get("loss")
    if loss is None or spec.options.get("target") is not None or not LOSSES.get(loss, spec.where).needs_target:
        return spec
    return dataclasses.replace(spec, options={**spec.options, "target": default_target})


def has_loss(spec: LayerSpec, search: bool) -> bool:
    """Return whether a layer has a loss in this mode."""
    return bool(spec.options.get("loss")) and not (search and is_on(spec, "loss_only_on_non_search"))


def is_on(spec: LayerSpec, switch: str) -> bool:
    """Return whether an option that leaves something out is set; a wrong value hides nothing, nor itself."""
    value = spec.options.get(switch)
    return bool(value) and declared_options(Layer)[switch].fault(value) is None


def scope_name(layer_name: str) -> str:
    """Return the parameter scope of a layer name, with characters replaced that old TensorFlow scopes did not allow."""
    for char in _SCOPE_SPECIAL:
        layer_name = layer_name.replace(char, "__")
    if layer_name and layer_name[0] in _SCOPE_FIRST:
        layer_name = ".%i.%s" % (ord(layer_name[0]), layer_name[1:])
    return layer_name


def join_scope(scope: str, name: str) -> str:
    """Join two parameter scopes; either may be empty."""
    return "%s/%s" % (scope, name) if scope and name else scope or name


def split_extra(ref: str) -> Optional[tuple[str, str]]:
    """Return (prefix, name of the layer) of a name such as ``extra.search:output``; None for any other name."""
    found = _EXTRA.fullmatch(ref)
    return None if found is None else (found[1], found[2])


def is_extra(path: str) -> bool:
    """Return whether a layer with this path is of an extra network."""
    return split_extra(path) is not None
