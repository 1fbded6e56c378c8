"""The table of optimizers by name, and how an optimizer dict of a config becomes an instance."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Optional, Type, TypeVar

from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.engine.update.optimizers.base import Optimizer

_CLASSES: Dict[str, Type[Optimizer]] = {}
_SUFFIX = "optimizer"
# Other spellings of an option, as Keras writes them.
_OPTION_ALIASES = {"beta_1": "beta1", "beta_2": "beta2"}

T = TypeVar("T", bound=Type[Optimizer])


def register_optimizer(*names: str) -> Callable[[T], T]:
    """Class decorator: makes an optimizer known under one or more names (lower case, without suffix "Optimizer")."""

    def decorate(cls: T) -> T:
        for name in names:
            assert name == name.lower() and name not in _CLASSES, name
            _CLASSES[name] = cls
        cls.name = names[0]
        return cls

    return decorate


def optimizer_names() -> Dict[str, Type[Optimizer]]:
    """All registered names with their classes, sorted by name."""
    return dict(sorted(_CLASSES.items()))


def optimizer_class(name: object, *, where: str) -> Type[Optimizer]:
    """The class of a name in any case, with or without the suffix "Optimizer".

    :param where: the option or layer to blame, e.g. ``optimizer``
    :raises ConfigError: unknown name
    """
    if isinstance(name, str):
        lowered = name.lower()
        if lowered.endswith(_SUFFIX) and lowered not in _CLASSES:
            lowered = lowered[: -len(_SUFFIX)]
        if lowered in _CLASSES:
            return _CLASSES[lowered]
    raise ConfigError("%s: unknown optimizer class %r. %s" % (where, name, did_you_mean(name, _CLASSES)))


def create_optimizer(options: Dict[str, Any], *, where: str, default_epsilon: Optional[float] = None) -> Optimizer:
    """The optimizer of a dict like ``{"class": "adam", "epsilon": 1e-8}``.

    :param options: ``class`` and the options of that class
    :param where: the option or layer to blame in errors
    :param default_epsilon: ``optimizer_epsilon`` of the config, for a class with epsilon if the dict does not give it
    :raises ConfigError: no or unknown class, unknown option, option of the wrong type
    """
    if not isinstance(options, dict) or "class" not in options:
        raise ConfigError(
            '%s must be a dict with "class", e.g. {"class": "adam", "epsilon": 1e-8}, but it is %r.' % (where, options)
        )
    cls = optimizer_class(options["class"], where=where)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values: Dict[str, Any] = {}
    for given, value in options.items():
        if given == "class":
            continue
        key = _OPTION_ALIASES.get(given, given)
        if key not in fields:
            raise ConfigError(_unknown_option(where, options["class"], given, fields))
        values[key] = _checked("%s, option %r of %r" % (where, given, options["class"]), value, fields[key].default)
    if default_epsilon is not None and "epsilon" in fields:
        values.setdefault("epsilon", float(default_epsilon))
    return cls(**values)


def _unknown_option(where: str, name: str, option: str, fields: Dict[str, Any]) -> str:
    if option in ("learning_rate", "lr"):
        hint = "The rate is the config option learning_rate; here only learning_rate_multiplier exists."
    else:
        hint = did_you_mean(option, fields)
    return "%s: optimizer %r has no option %r. %s" % (where, name, option, hint)


def _checked(where: str, value: Any, default: Any) -> Any:
    if isinstance(default, bool):
        if not isinstance(value, (bool, int)):
            raise ConfigError("%s must be True or False, not %r." % (where, value))
        return bool(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError("%s must be a number, not %r." % (where, value))
    return float(value)
