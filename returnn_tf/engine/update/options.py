"""The options of the update which can be given for all parameters (config) or for one layer (``updater_opts``)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Dict, FrozenSet, Mapping, Optional, Set, Union

from returnn_tf.config import ConfigError
from returnn_tf.config.option_types import Written
from returnn_tf.config.options import at_least, check_options, declared_options, option
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


Tags = Annotated[FrozenSet[str], Written(Union[str, Set[str]], "str | set[str]")]


@dataclass(frozen=True)
class UpdateOptions:
    """What happens to the gradient of a parameter, and by which optimizer it is applied. Zero or False means off."""

    optimizer: Dict[str, Any] = option({"class": "gradientdescent"}, help="class and options of the optimizer")
    maximize_grad_norm: float = option(
        0.0, help="weight of a term that rewards a large gradient norm", check=at_least(0)
    )
    accum_grad_multiple_step: int = option(
        0, help="number of steps whose gradients are summed up before an update", check=at_least(0)
    )
    gradient_noise: float = option(
        0.0, help="standard deviation of noise on the gradient, truncated at two deviations", check=at_least(0)
    )
    gradient_clip: float = option(0.0, help="limit of the absolute value of each entry", check=at_least(0))
    gradient_clip_norm: float = option(0.0, help="limit of the L2 norm of one parameter", check=at_least(0))
    gradient_clip_avg_norm: float = option(
        0.0, help="limit of the L2 norm divided by the number of entries", check=at_least(0)
    )
    gradient_clip_global_norm: float = option(
        0.0, help="limit of the L2 norm over all parameters, or those with the tag", check=at_least(0)
    )
    gradient_clip_global_norm_tag: Optional[str] = option(
        None, help="the global norm counts only parameters with this tag"
    )
    gradient_nan_inf_filter: bool = option(False, help="replace NaN and Inf by zero")
    grad_norm_to_clip_to_zero: float = option(
        0.0, help="no gradient at all if the global norm is above, or NaN", check=at_least(0)
    )
    tags: Tags = option(frozenset(), help="names for groups of parameters; only useful in updater_opts")

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
        where = "%s: updater_opts" % where
        values = _given(layer_opts, where)
        if "optimizer" in values:
            values["optimizer"] = {"class": self.optimizer["class"], **values["optimizer"]}
        return dataclasses.replace(self, **values)


def from_config(config: Any) -> UpdateOptions:
    """The options for all parameters.

    :param config: Config
    :raises ConfigError: a value of the wrong type, unknown optimizer, flags which exclude each other
    """
    values: Dict[str, Any] = {"optimizer": optimizer_dict(config)}
    for name in declared_options(UpdateOptions):
        if name not in values and name != "tags" and config.typed(name, None) is not None:
            values.update(_given({name: config.typed(name)}, config.where(name)))
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


def _given(options: Mapping[str, Any], where: str) -> Dict[str, Any]:
    """Return the checked options without those that are None.

    :raises ConfigError: unknown option or a wrong value
    """
    values = {
        name: value
        for name, value in options.items()
        if value is not None or name not in declared_options(UpdateOptions)
    }
    check_options(UpdateOptions, values, where=where)
    if "class" in values.get("optimizer", ()):
        optimizer_class(values["optimizer"]["class"], where=where)
    if "tags" in values:
        values["tags"] = frozenset([values["tags"]] if isinstance(values["tags"], str) else values["tags"])
    return values
