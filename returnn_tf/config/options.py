"""Options of layers and losses: declared once with type, default and help; that drives validation and the reference
docs."""

from __future__ import annotations

import dataclasses
import functools
import typing
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Type

import numpy

from returnn_tf.config import ConfigError, did_you_mean


class OptionError(ConfigError):
    """The options alone are wrong, whatever the sources of the layer are."""


#: Default of an option which must be given.
REQUIRED: Any = type("_Required", (), {"__repr__": lambda self: "(required)"})()


def option(
    default: Any = REQUIRED, *, help: str, refs: bool = False, keywords: Iterable[str] = (), name: Optional[str] = None
) -> Any:
    """Declares an option in the body of a layer or loss class: ``n_out: Optional[int] = option(None, help="...")``.

    :param default: value when the config says nothing; without it the option is required
    :param help: one line
    :param refs: strings in the value (also inside of lists and dict values) are names of layers
    :param keywords: with ``refs``: strings which are no layer names
    :param name: its name in configs, if that is no Python identifier or a keyword
    """
    metadata = {"help": help, "refs": refs, "keywords": frozenset(keywords), "name": name}
    if isinstance(default, (dict, list, set)):
        frozen = default
        return dataclasses.field(default_factory=lambda: type(frozen)(frozen), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class OptionInfo:
    """One declared option."""

    name: str
    attribute: str
    type: Any
    default: Any
    help: str
    refs: bool
    keywords: frozenset

    @property
    def required(self) -> bool:
        """Whether the config must give it."""
        return self.default is REQUIRED

    @property
    def type_name(self) -> str:
        """The type as a reader sees it, e.g. ``int | None``."""
        return type_name(self.type)


def declared_options(cls: Any) -> Dict[str, OptionInfo]:
    """All options of a class by the name that configs use, its own and inherited ones."""
    return _declared_options(cls)


@functools.lru_cache(maxsize=None)
def _declared_options(cls: Any) -> Dict[str, OptionInfo]:
    hints = typing.get_type_hints(cls)
    result = {}
    for field in dataclasses.fields(cls):
        if "help" not in field.metadata:
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        name = field.metadata["name"] or field.name
        result[name] = OptionInfo(
            name,
            field.name,
            hints[field.name],
            default,
            field.metadata["help"],
            field.metadata["refs"],
            field.metadata["keywords"],
        )
    return result


def check_options(cls: Type[Any], given: Mapping[str, Any], *, where: str, ignore: Iterable[str] = ()) -> None:
    """Names and types of all given options.

    :param where: how errors begin, e.g. ``Layer 'a/b' (class 'linear')``
    :raises ConfigError: names the option, the nearest valid spelling and what the class accepts
    """
    known = declared_options(cls)
    ignored = set(ignore)
    for name, value in given.items():
        if name in ignored:
            continue
        info = known.get(name)
        if info is None:
            raise ConfigError("%s: unknown option %r. %s" % (where, name, did_you_mean(name, known)))
        if not fits_type(value, info.type, refs=info.refs):
            raise ConfigError(
                "%s: option %r must be %s, got %r (%s). It is: %s"
                % (where, name, info.type_name, value, type(value).__name__, info.help)
            )
    for info in known.values():
        if info.required and info.name not in given:
            raise ConfigError(
                "%s: the option %r is missing. It is: %s (%s)" % (where, info.name, info.help, info.type_name)
            )


def fits_type(value: Any, expected: Any, *, refs: bool = False) -> bool:
    """Whether a value of a config fits an annotation. Ints pass as float, numpy scalars as Python ones, lists as
    tuples."""
    if expected is Any or (refs and isinstance(value, str)):
        return True
    origin = typing.get_origin(expected)
    args = typing.get_args(expected)
    if origin is typing.Union:
        return any(fits_type(value, a, refs=refs) for a in args)
    if origin in (list, tuple) or expected in (list, tuple):
        return isinstance(value, (list, tuple)) and _items_fit(value, origin, args)
    if origin in (dict,) or origin is getattr(typing, "Mapping", None) or expected is dict:
        return isinstance(value, Mapping) and (
            not args or all(fits_type(k, args[0]) and fits_type(v, args[1], refs=refs) for k, v in value.items())
        )
    if origin in (set, frozenset):
        return isinstance(value, (set, frozenset, list, tuple))
    if origin is not None and callable(value):
        return origin is typing.get_origin(Callable[[], None])
    if expected is bool:
        return isinstance(value, (bool, numpy.bool_)) or (isinstance(value, int) and value in (0, 1))
    if expected is int:
        return isinstance(value, (int, numpy.integer)) and not isinstance(value, bool)
    if expected is float:
        return isinstance(value, (int, float, numpy.integer, numpy.floating)) and not isinstance(value, bool)
    return isinstance(expected, type) and isinstance(value, expected)


def _items_fit(value: Any, origin: Any, args: Tuple[Any, ...]) -> bool:
    if not args:
        return True
    if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
        return len(value) == len(args) and all(fits_type(v, a) for v, a in zip(value, args))
    return all(fits_type(v, args[0]) for v in value)


def type_name(annotation: Any) -> str:
    """An annotation as a reader sees it."""
    if annotation is type(None):
        return "None"
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Union:
        return " | ".join(type_name(a) for a in args)
    if origin is not None and not isinstance(origin, type):
        return str(annotation).replace("typing.", "")
    if origin is not None and args:
        if origin.__name__ == "Callable":
            return "function"
        return "%s[%s]" % (origin.__name__, ", ".join("..." if a is Ellipsis else type_name(a) for a in args))
    return getattr(annotation, "__name__", str(annotation).replace("typing.", ""))


def referenced_names(info: OptionInfo, value: Any) -> Iterator[str]:
    """The layer names inside of an option value."""
    if isinstance(value, str):
        if value not in info.keywords:
            yield value
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from referenced_names(info, item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from referenced_names(info, item)


def map_strings(info: OptionInfo, value: Any, func: Callable[[str], Any]) -> Any:
    """The option value with every layer name replaced by ``func(name)``; dicts, lists and tuples keep their form."""
    if isinstance(value, str):
        return value if value in info.keywords else func(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map_strings(info, item, func) for item in value)
    if isinstance(value, Mapping):
        return {key: map_strings(info, item, func) for key, item in value.items()}
    return value


def map_values(value: Any, of_type: type, func: Callable[[Any], Any]) -> Any:
    """Every object of a type inside of lists, tuples, sets and dicts replaced by ``func(object)``."""
    if isinstance(value, of_type):
        return func(value)
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(map_values(item, of_type, func) for item in value)
    if type(value) is dict:
        return {map_values(k, of_type, func): map_values(v, of_type, func) for k, v in value.items()}
    return value


def option_rows(cls: Type[Any]) -> List[Tuple[str, str, str, str]]:
    """(name, type, default, help) per option, for the reference docs."""
    rows = []
    for info in declared_options(cls).values():
        default = "(required)" if info.required else repr(info.default)
        rows.append((info.name, info.type_name, default, info.help))
    return rows
