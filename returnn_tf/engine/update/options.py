"""The options of the update which can be given for all parameters (config) or for one layer (``updater_opts``)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Mapping, Optional

from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.engine.update.optimizers import create_optimizer, optimizer_class

# Top-level switches of old configs and the optimizer dict which each stands for.
_FLAGS: Dict[str, Dict[str, Any]] = {
    "adam": {"class": "adam"},
    "nadam": {"class": "nadamkeras"},
    "adadelta": {"class": "adadelta"},
    "adagrad": {"class": "adagrad"},
    "rmsprop": {"class": "rmsprop"},
}
_FLAGS_WITH_MOMENTUM = ("rmsprop",)


@dataclass(frozen=True)
class UpdateOptions:
    """What happens to the gradient of a parameter, and by which optimizer it is applied. Zero or False means off."""

    optimizer: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"class": "gradientdescent"})
    maximize_grad_norm: float = 0.0  # weight of a term that rewards a large gradient norm
    accum_grad_multiple_step: int = 0  # sum up the gradients of so many steps before one update
    gradient_noise: float = 0.0  # standard deviation of noise on the gradient, truncated at two deviations
    gradient_clip: float = 0.0  # limit of the absolute value of each entry
    gradient_clip_norm: float = 0.0  # limit of the L2 norm of one parameter
    gradient_clip_avg_norm: float = 0.0  # limit of the L2 norm divided by the number of entries
    gradient_clip_global_norm: float = 0.0  # limit of the L2 norm over all parameters, or those with the tag
    gradient_clip_global_norm_tag: Optional[str] = None  # the global norm counts only parameters with this tag
    gradient_nan_inf_filter: bool = False  # replace NaN and Inf by zero
    grad_norm_to_clip_to_zero: float = 0.0  # no gradient at all if the global norm is above, or NaN
    tags: FrozenSet[str] = frozenset()  # names for groups of parameters; only useful in updater_opts

    def tolerates_nonfinite(self) -> bool:
        """Whether the gradient is finite after the operations even if it was NaN or Inf before."""
        return self.gradient_nan_inf_filter or self.grad_norm_to_clip_to_zero > 0

    def for_layer(self, layer_opts: Optional[Mapping[str, Any]], where: str) -> UpdateOptions:
        """These options with those of ``updater_opts`` of a layer in their place.

        An optimizer dict without ``class`` keeps the class but not the options of the default optimizer.

        :param where: the layer or parameter to blame
        :raises ConfigError: unknown option or a value of the wrong type
        """
        if not layer_opts:
            return self
        known = {field.name for field in dataclasses.fields(self)}
        values: Dict[str, Any] = {}
        for key, value in layer_opts.items():
            if key not in known:
                raise ConfigError("%s: unknown option %r in updater_opts. %s" % (where, key, did_you_mean(key, known)))
            values[key] = _checked("%s, updater_opts %r" % (where, key), key, value)
        if "optimizer" in values:
            values["optimizer"] = {"class": self.optimizer["class"], **values["optimizer"]}
        return dataclasses.replace(self, **values)


def from_config(config: Any) -> UpdateOptions:
    """The options for all parameters.

    :param config: Config
    :raises ConfigError: a value of the wrong type, unknown optimizer, flags which exclude each other
    """
    values: Dict[str, Any] = {"optimizer": optimizer_dict(config)}
    for field in dataclasses.fields(UpdateOptions):
        if field.name not in ("optimizer", "tags") and config.typed(field.name, None) is not None:
            values[field.name] = _checked(field.name, field.name, config.typed(field.name))
    return UpdateOptions(**values)


def optimizer_dict(config: Any) -> Dict[str, Any]:
    """The optimizer dict of a config: ``optimizer``, else one of the old flags, else plain gradient descent."""
    options = config.typed("optimizer", None)
    if options is not None:
        create_optimizer(options, where="optimizer")  # raises what is wrong with it
        return dict(options)
    momentum = config.float("momentum", 0.0)
    given = [flag for flag in _FLAGS if config.bool(flag, False)]
    if len(given) > 1:
        raise ConfigError('Only one of these can be set: %s. Or use optimizer = {"class": ...}.' % ", ".join(given))
    if not given:
        return {"class": "momentum", "momentum": momentum} if momentum else {"class": "gradientdescent"}
    if not momentum:
        return dict(_FLAGS[given[0]])
    if given[0] not in _FLAGS_WITH_MOMENTUM:
        raise ConfigError("momentum does not go together with %s = True; leave one of them out." % given[0])
    return {**_FLAGS[given[0]], "momentum": momentum}


def _checked(where: str, key: str, value: Any) -> Any:
    default = UpdateOptions.__dataclass_fields__[key].default
    if key == "optimizer":
        if not isinstance(value, dict):
            raise ConfigError("%s must be a dict, not %r." % (where, value))
        if "class" in value:
            optimizer_class(value["class"], where=where)
        return value
    if key == "tags":
        return frozenset([value] if isinstance(value, str) else value)
    if value is None:
        return default
    if key == "gradient_clip_global_norm_tag":
        return str(value)
    if isinstance(default, bool):
        if not isinstance(value, (bool, int)):
            raise ConfigError("%s must be True or False, not %r." % (where, value))
        return bool(value)
    kinds = int if isinstance(default, int) else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or value < 0:
        raise ConfigError(
            "%s must be %s >= 0, not %r." % (where, "an int" if isinstance(default, int) else "a number", value)
        )
    return value
