"""Initialisers of parameters as configs write them: numbers, arrays, names, expressions, dicts, functions.

The names are those of TensorFlow 1. Everything but seeds and functions is understood without TensorFlow, so that a
wrong name is found while planning.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import math
from collections.abc import Mapping
from typing import Any, Callable, Optional, Protocol

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ConfigError, OptionError, did_you_mean, shown
from returnn_tf.ops import initial_values
from returnn_tf.ops.initial_values import Constant, Drawn, FromTensorFlow, variance_scaling
from returnn_tf.tensor import DTYPES
from returnn_tf.util.lazy_tf import tf

Initializer = Callable[[tuple[int, ...], np.random.Generator], NDArray[Any]]


class Checked(Protocol):
    """An initialiser that knows which shapes it has values for."""

    def check(self, shape: tuple[int, ...]) -> Optional[str]:
        """Return the reason why a shape is refused, or None."""


def _constant(value: Any = 0.0, verify_shape: bool = False) -> Constant:
    del verify_shape  # shapes are always verified
    return Constant(np.asarray(value) if isinstance(value, (list, tuple)) else value)


def _scaled(scale: float, mode: str, distribution: str) -> Callable[..., Drawn]:
    return lambda: variance_scaling(scale, mode, distribution)


#: Name in `tf.compat.v1.initializers` -> function of its arguments but seed and dtype.
_MAKERS: dict[str, Callable[..., Any]] = {
    "zeros": lambda: Constant(0.0),
    "ones": lambda: Constant(1.0),
    "constant": _constant,
    "random_normal": initial_values.random_normal,
    "truncated_normal": initial_values.truncated_normal,
    "random_uniform": initial_values.random_uniform,
    "uniform_unit_scaling": initial_values.uniform_unit_scaling,
    "variance_scaling": variance_scaling,
    "orthogonal": initial_values.orthogonal,
    "identity": initial_values.identity,
    "glorot_uniform": _scaled(1.0, "fan_avg", "uniform"),
    "glorot_normal": _scaled(1.0, "fan_avg", "truncated_normal"),
    "he_uniform": _scaled(2.0, "fan_in", "uniform"),
    "he_normal": _scaled(2.0, "fan_in", "truncated_normal"),
    "lecun_uniform": _scaled(1.0, "fan_in", "uniform"),
    "lecun_normal": _scaled(1.0, "fan_in", "truncated_normal"),
}
#: Further names: glorot_uniform was called xavier where it came from.
_ALIASES = {"xavier": "glorot_uniform"}
_UNSEEDED = ("zeros", "ones", "constant", "identity")


def get_initializer(spec: Any, names: Optional[Mapping[str, Any]] = None) -> Any:
    """Return the initialiser for a config value.

    :param spec: number; array; name with or without "_initializer"; expression such as
        ``"random_normal_initializer(mean=0.0, stddev=0.1)"`` or ``"1 / sqrt(layer.input_data.dim)"``; dict such as
        ``{"class": "VarianceScaling", "scale": 0.78}``; initialiser of TensorFlow; function of shape and
        `numpy.random.Generator`
    :param names: further names for expressions
    :raises ConfigError: unknown name or arguments, or an expression fails
    """
    if isinstance(spec, (bool, int, float, np.ndarray, np.number)):
        return Constant(spec)
    if isinstance(spec, Mapping):
        return _from_dict(spec)
    if isinstance(spec, str):
        return _from_text(spec, names or {})
    if isinstance(spec, (Constant, Drawn, FromTensorFlow)):
        return spec
    if callable(spec):
        if hasattr(spec, "get_config"):
            return FromTensorFlow(lambda: spec, getattr(spec, "seed", None) is not None)
        return spec
    raise OptionError("An initialiser is a number, an array, a name, an expression or a dict, not %s." % shown(spec))


def _from_dict(spec: Mapping[str, Any]) -> Any:
    arguments = dict(spec)
    name = arguments.pop("class", None)
    if not isinstance(name, str):
        raise OptionError("The initialiser %s lacks its 'class', e.g. 'VarianceScaling'." % shown(spec))
    known = _find(name)
    if known is None:
        raise OptionError("Unknown class of initialiser %r. %s" % (name, did_you_mean(name, map(_class_name, _MAKERS))))
    return _make(known, name, (), arguments)


def _from_text(text: str, names: Mapping[str, Any]) -> Any:
    if "(" not in text:
        known = _find(text)
        if known is not None:
            return _without_arguments(known, text)
        if text.isidentifier():
            raise OptionError("Unknown initialiser %r. %s" % (text, did_you_mean(text, [*_MAKERS, *_ALIASES])))
    try:
        value = eval(text, _Names(names))
    except ConfigError:
        raise
    except NameError as exc:
        hint = did_you_mean(exc.name, [*_MAKERS, *names, "numpy", "math", "tf"])
        raise OptionError("Initialiser %r: %s. %s" % (text, exc, hint)) from None
    except Exception as exc:  # code of the user may raise anything
        raise OptionError("Initialiser %r: %s: %s" % (text, type(exc).__name__, exc)) from exc
    if inspect.isfunction(value) or isinstance(value, _Maker):
        value = value()
    if hasattr(value, "numpy") and tf.is_tensor(value):
        value = value.numpy()
    if isinstance(value, str):
        raise OptionError("Initialiser %r: the expression gives the text %r. Write the name alone." % (text, value))
    try:
        return get_initializer(np.asarray(value) if isinstance(value, (list, tuple)) else value)
    except ConfigError as exc:
        raise OptionError("Initialiser %r: %s" % (text, exc)) from None


@functools.lru_cache(maxsize=256)
def _without_arguments(known: str, name: str) -> Any:
    return _make(known, name, (), {})


def _make(known: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the initialiser of a name in `_MAKERS` with these arguments.

    :param name: as written in the config
    """
    function = _MAKERS[known]
    try:
        bound = _signature(known).bind(*args, **kwargs)
        arguments = dict(bound.arguments)
        seed, dtype = arguments.pop("seed", None), _dtype_name(arguments.pop("dtype", None))
        if dtype is not None and dtype not in DTYPES:
            raise OptionError("Initialiser %r: unknown dtype %r. %s" % (name, dtype, did_you_mean(dtype, DTYPES)))
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, (int, np.integer))):
            raise OptionError("Initialiser %r: the seed must be an int, not %r." % (name, seed))
        plain = function(**arguments)
    except TypeError as exc:
        listed = ", ".join(_signature(known).parameters)
        raise OptionError("Initialiser %r: %s. Its arguments: %s." % (name, exc, listed)) from None
    return plain if seed is None else initial_values.seeded(known, arguments, int(seed), plain)


@functools.cache
def _signature(known: str) -> inspect.Signature:
    """Return the signature of a name in `_MAKERS`, with the arguments that all initialisers have."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    extra = [inspect.Parameter("dtype", kind, default=None)]
    if known not in _UNSEEDED:
        extra.insert(0, inspect.Parameter("seed", kind, default=None))
    given = inspect.signature(_MAKERS[known]).parameters.values()
    own = [p for p in given if p.name != "verify_shape"]
    after = [p for p in given if p.name == "verify_shape"]
    return inspect.Signature([*own, *extra, *after])


def _dtype_name(dtype: Any) -> Optional[str]:
    """Return the name of a dtype of numpy or TensorFlow."""
    return dtype if dtype is None or isinstance(dtype, str) else str(getattr(dtype, "name", dtype))


def _find(name: str) -> Optional[str]:
    """Return the key in `_MAKERS` for a name such as "glorot_uniform_initializer" or "GlorotUniform"."""
    name = name.strip()
    name = name[: -len("_initializer")] if name.endswith("_initializer") else name
    name = _ALIASES.get(name, name)
    return name if name in _MAKERS else _CLASSES.get(name)


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


_CLASSES = {_class_name(name): name for name in _MAKERS}


class _Maker:
    """An initialiser as a function in expressions."""

    def __init__(self, known: str, name: str) -> None:
        self._known, self._name = known, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the initialiser with these arguments."""
        return _make(self._known, self._name, args, kwargs)


class _Module:
    """A module of TensorFlow in expressions: its initialisers are ours, everything else is its own.

    :param only: it consists of initialisers; else they are those with "_initializer" in their name
    """

    def __init__(self, *, only: bool = False) -> None:
        self._only = only

    def __getattr__(self, name: str) -> Any:
        """Return an initialiser, a module that has some, or what TensorFlow has under this name."""
        known = _find(name)
        if known is not None and (self._only or name.endswith("_initializer")):
            return _Maker(known, name)
        if name in ("initializers", "compat", "v1"):
            return _Module(only=name == "initializers")
        return getattr(tf.compat.v1, name)


class _Names(dict[str, Any]):
    """The names in expressions, in the order of their priority."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        super().__init__(
            {
                "__builtins__": {},
                "numpy": np,
                "np": np,
                "math": math,
                "tf": _Module(),
                "init_ops": _Module(only=True),
            }
        )
        self.update({key: value for key, value in vars(math).items() if not key.startswith("_")})
        self.update(names)

    def __missing__(self, name: str) -> Any:
        """Return an initialiser, a builtin, or what TensorFlow has under this name."""
        known = _find(name)
        if known is not None:
            return _Maker(known, name)
        if hasattr(builtins, name):
            return getattr(builtins, name)
        if not name.startswith("_") and hasattr(tf.compat.v1, name):
            return getattr(tf.compat.v1, name)
        raise NameError("name %r is not defined" % name, name=name)
