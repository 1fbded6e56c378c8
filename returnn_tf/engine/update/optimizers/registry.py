"""Registry of optimizers, and creation of an instance from an optimizer dict."""

from __future__ import annotations

from typing import Any, Callable, Optional, TypeVar

from returnn_tf.config.errors import RateError
from returnn_tf.config.options import declared_options, from_options
from returnn_tf.config.registry import Registry
from returnn_tf.engine.update.optimizers.base import Optimizer

_SUFFIX = "optimizer"
# Other spellings of an option, as Keras writes them; only for classes without an option of the first name.
_OPTION_ALIASES = {
    "beta_1": "beta1",
    "beta_2": "beta2",
    "beta_2_decay": "beta2_decay",
    "epsilon_1": "epsilon1",
    "epsilon_2": "epsilon2",
    "rho": "decay",
    "nesterov": "use_nesterov",
}
# What to write for further options of Keras.
_INSTEAD = {
    "clipnorm": "Use the setting gradient_clip_norm.",
    "clipvalue": "Use the setting gradient_clip.",
    "global_clipnorm": "Use the setting gradient_clip_global_norm.",
    "use_ema": "Use the setting weight_average = {'decay': ...}.",
    "ema_momentum": "Use the setting weight_average = {'decay': ...}.",
    "ema_overwrite_frequency": "Use the setting weight_average = {'decay': ...}.",
    "loss_scale_factor": "Use the setting loss_scaling.",
    "gradient_accumulation_steps": "Use the setting accum_grad_multiple_step.",
    "amsgrad": 'It is a class of its own: {"class": "amsgrad"}.',
    "weight_decay": "Use the class adamw, or the option L2 of layers.",
    "learning_rate": "The rate is the setting learning_rate; here only learning_rate_multiplier exists.",
    "lr": "The rate is the setting learning_rate; here only learning_rate_multiplier exists.",
}


def _key(name: str) -> str:
    name = name.lower()
    return name[: -len(_SUFFIX)] if name.endswith(_SUFFIX) else name


#: Case and the suffix "Optimizer" do not matter.
OPTIMIZERS: Registry[type[Optimizer]] = Registry(
    "optimizer class", "returnn_tf.engine.update.optimizers", plugins="returnn_tf.optimizers", key=_key,
    absent={
        "LossScaleOptimizer": "write the class that it wraps, and set loss_scaling or mixed_precision",
        "MultiOptimizer": "give layers updater_opts, e.g. {'optimizer': {'class': 'adam'}}",
    },
)  # fmt: skip

T = TypeVar("T", bound=type[Optimizer])


def register_optimizer(*names: str) -> Callable[[T], T]:
    """Register an optimizer, a dataclass of its options, under one or more names (class decorator)."""

    def decorate(cls: T) -> T:
        OPTIMIZERS.add(cls, *names)
        cls.name = names[0]
        return cls

    return decorate


def optimizer_names() -> list[str]:
    """Return all names, sorted."""
    return OPTIMIZERS.names()


def optimizer_class(name: object, *, where: str) -> type[Optimizer]:
    """Return the class for a name in any case, with or without the suffix "Optimizer".

    :param where: option or layer for errors, e.g. ``optimizer``
    :raises ConfigError: unknown name
    """
    return OPTIMIZERS.get(name, where)


def optimizers_by_switch() -> dict[str, type[Optimizer]]:
    """Return the classes that an older setting selects, by its name."""
    return {cls.switch: cls for _, cls in OPTIMIZERS.items() if "switch" in vars(cls)}


def create_optimizer(options: dict[str, Any], *, where: str, default_epsilon: Optional[float] = None) -> Optimizer:
    """Return the optimizer for a dict like ``{"class": "adam", "epsilon": 1e-8}``.

    :param options: ``class`` and the options of that class
    :param where: option or layer for errors
    :param default_epsilon: ``optimizer_epsilon`` of the config, for a class with epsilon if the dict does not set it
    :raises ConfigError: no or unknown class, unknown option, option of the wrong type
    """
    if not isinstance(options, dict) or "class" not in options:
        raise RateError(
            '%s must be a dict with "class", e.g. {"class": "adam", "epsilon": 1e-8}, but it is %r.' % (where, options)
        )
    cls = optimizer_class(options["class"], where=where)
    declared = declared_options(cls)
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name != "class":
            alias = _OPTION_ALIASES.get(name, name)
            values[alias if name not in declared and alias in declared else name] = value
    if default_epsilon is not None and "epsilon" in declared:
        values.setdefault("epsilon", float(default_epsilon))
    where = "%s: class %r" % (where, options["class"])
    for name in values:
        if name in _INSTEAD and name not in declared:
            raise RateError("%s: unknown option %r. %s" % (where, name, _INSTEAD[name]))
    return from_options(cls, values, where=where)
