"""Blocks: functions that return layers; the check of their options, and these options for the reference."""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Optional, TypeVar, Union

from returnn_tf.config.errors import OptionError, did_you_mean
from returnn_tf.config.options import REQUIRED, OptionInfo, at_least, dropout_rate, probability
from returnn_tf.config.registry import Registry

#: A network dict, or a part of one.
Layers = dict[str, Any]
#: A size or number of at least 1.
Size = Annotated[int, at_least(1)]
#: A size, or None
MaybeSize = Annotated[Optional[int], at_least(1)]
#: A whole number of at least 0.
Count = Annotated[int, at_least(0)]
#: Dropout in training.
Rate = Annotated[float, dropout_rate]
#: A number from 0 to 1.
Share = Annotated[float, probability]
#: A weight of at least 0.
Weight = Annotated[float, at_least(0)]
#: Name of a layer, or names of layers that are concatenated.
Source = Union[str, list[str]]

F = TypeVar("F", bound=Callable[..., Layers])

BLOCKS: Registry[Callable[..., Layers]] = Registry("block")

_PARAM = re.compile(r"^:param (\w+):\s*(.*(?:\n(?!:).+)*)", re.M)


def block(function: F) -> F:
    """Register a function ``(name, *, options) -> layers``, and check its arguments when it is called."""

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Layers:
        name = args[0] if args else options.pop("name", None)
        where = "blocks.%s(%r)" % (function.__name__, name)
        if len(args) > 1 or not isinstance(name, str) or not name or "/" in name or ":" in name:
            raise OptionError(
                "%s: the first argument is the name of the output, a layer name such as 'encoder'; all others are "
                "options by name." % where
            )
        infos = options_of(function)
        for option in options:
            if option not in infos:
                raise OptionError("%s: unknown option %r. %s" % (where, option, did_you_mean(option, infos)))
        for info in infos.values():
            if info.name in options:
                info.check_value(options[info.name], where)
            elif info.required:
                raise OptionError("%s: option %r is missing. It is: %s" % (where, info.name, info.help))
        try:
            return function(name, **options)
        except OptionError as exc:
            raise OptionError("%s: %s" % (where, exc)) from None

    BLOCKS.add(function, function.__name__)  # the declaration, whose signature the reference shows
    return checked  # type: ignore[return-value]


@functools.cache
def options_of(function: Callable[..., Layers]) -> Mapping[str, OptionInfo]:
    """Return the options of a block: types and checks by its annotations, help texts by its docstring."""
    hints = typing.get_type_hints(function, include_extras=True)
    helps = {name: " ".join(text.split()) for name, text in _PARAM.findall(inspect.getdoc(function) or "")}
    result = {}
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        hint, check = hints[name], None
        if typing.get_origin(hint) is Annotated:
            hint, check = typing.get_args(hint)
        default = REQUIRED if parameter.default is parameter.empty else parameter.default
        result[name] = OptionInfo(name, name, hint, default, helps[name], check=check)
    return result


def summary_of(function: Callable[..., Layers]) -> str:
    """Return the docstring of a block without its parameters."""
    return (inspect.getdoc(function) or "").partition("\n:param ")[0].strip()


def linear(source: Source, n_out: int, **options: Any) -> Layers:
    """Return a linear layer without activation."""
    return {"class": "linear", "activation": None, "n_out": n_out, "from": source, **options}


def expect_labels(num_labels: int, function: str, name: str, target: str) -> Layers:
    """Return the option of ``reinterpret_data`` that refuses a target with another number of labels.

    :param function: the block
    :param name: of its output
    """
    return {"expect_sparse_dim": (num_labels, "num_labels of blocks.%s(%r) for target %r" % (function, name, target))}


def dropped(source: str, rate: float) -> Layers:
    """Return a layer that drops each entry by itself."""
    return {"class": "dropout", "dropout": rate, "dropout_noise_shape": {"*": None}, "from": source}


def added(source: str, output: str, *, scale: float = 1.0) -> Layers:
    """Return the residual connection ``source + scale * output``."""
    if scale == 1.0:
        return {"class": "combine", "kind": "add", "from": [source, output]}
    return {"class": "eval", "eval": "source(0) + %r * source(1)" % scale, "from": [source, output]}


def check_heads(dim: int, heads: int) -> None:
    """Check that the features can be divided among the heads.

    :raises ConfigError: they can't
    """
    if dim % heads:
        raise OptionError("dim is %d, which is not divisible by heads %d." % (dim, heads))


def per_sequence(rate: Optional[float]) -> Layers:
    """Return the options of dropout on an input: each sequence drops features of its own, in all frames."""
    return {"dropout": rate, "dropout_noise_shape": {"B": None}} if rate else {}
