"""The options of the update which can be set for all parameters (config) or for one layer (``updater_opts``)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Optional, Union

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.errors import RateError
from returnn_tf.config.option_types import Written
from returnn_tf.config.options import check_options, declared_options, option
from returnn_tf.config.settings import option_of
from returnn_tf.config.settings.update import UpdateSettings
from returnn_tf.engine.update.optimizers import create_optimizer, optimizer_class, optimizers_by_switch
from returnn_tf.logging.log import log

Tags = Annotated[frozenset[str], Written(Union[str, set[str]], "str | set[str]")]


@dataclass(frozen=True)
class UpdateOptions:
    """Processing of the gradient of a parameter, and its optimizer. Zero or False means off.

    Most of it can be set for all parameters or, in ``updater_opts``, for those of one layer.
    """

    optimizer: dict[str, Any] = option({"class": "gradientdescent"}, help="class and options of the optimizer")
    maximize_grad_norm: float = option_of(UpdateSettings, "maximize_grad_norm")
    accum_grad_multiple_step: int = option_of(UpdateSettings, "accum_grad_multiple_step")
    gradient_noise: float = option_of(UpdateSettings, "gradient_noise")
    gradient_clip: float = option_of(UpdateSettings, "gradient_clip")
    gradient_clip_norm: float = option_of(UpdateSettings, "gradient_clip_norm")
    gradient_clip_avg_norm: float = option_of(UpdateSettings, "gradient_clip_avg_norm")
    gradient_clip_global_norm: float = option_of(UpdateSettings, "gradient_clip_global_norm")
    gradient_clip_global_norm_tag: Optional[str] = option_of(UpdateSettings, "gradient_clip_global_norm_tag")
    gradient_nan_inf_filter: bool = option_of(UpdateSettings, "gradient_nan_inf_filter")
    grad_norm_to_clip_to_zero: float = option_of(UpdateSettings, "grad_norm_to_clip_to_zero")
    tags: Tags = option(frozenset(), help="names for groups of parameters; only useful in updater_opts")

    def tolerates_nonfinite(self) -> bool:
        """Return whether the processed gradient is finite even if the raw one is NaN or Inf."""
        return self.gradient_nan_inf_filter or self.grad_norm_to_clip_to_zero > 0

    def for_layer(self, layer_opts: Optional[Mapping[str, Any]], where: str) -> UpdateOptions:
        """Return these options, overridden by ``updater_opts`` of a layer.

        An optimizer dict without ``class`` keeps the class but not the options of the default optimizer.

        :param where: layer or parameter, for errors
        :raises ConfigError: unknown option or a value of the wrong type
        """
        if not layer_opts:
            return self
        where = "%s: updater_opts" % where
        values = _given(layer_opts, where)
        if "optimizer" in values:
            values["optimizer"] = {"class": self.optimizer["class"], **values["optimizer"]}
        return dataclasses.replace(self, **values)


def from_config(config: Config) -> UpdateOptions:
    """Return the options for all parameters.

    :raises ConfigError: a value of the wrong type, unknown optimizer, momentum for one that has none
    """
    settings = UpdateSettings(config)
    return UpdateOptions(
        optimizer=optimizer_dict(config),
        maximize_grad_norm=settings.maximize_grad_norm,
        accum_grad_multiple_step=settings.accum_grad_multiple_step,
        gradient_noise=settings.gradient_noise,
        gradient_clip=settings.gradient_clip,
        gradient_clip_norm=settings.gradient_clip_norm,
        gradient_clip_avg_norm=settings.gradient_clip_avg_norm,
        gradient_clip_global_norm=settings.gradient_clip_global_norm,
        gradient_clip_global_norm_tag=settings.gradient_clip_global_norm_tag,
        gradient_nan_inf_filter=settings.gradient_nan_inf_filter,
        grad_norm_to_clip_to_zero=settings.grad_norm_to_clip_to_zero,
    )


def options_of_params(plan: Plan, default: UpdateOptions, names: Iterable[str]) -> dict[str, UpdateOptions]:
    """Return the options of each parameter by name.

    :param default: for all parameters
    :param names: those that are updated
    :raises ConfigError: a wrong option of a layer, or an optimizer of matrices where there is none
    """
    specs = plan.params
    result = {name: default.for_layer(specs[name].updater_opts, "parameter %r" % name) for name in names}
    hidden = hidden_matrices(plan)
    replaced: dict[str, list[str]] = {}  # class -> parameters that it does not update
    kept: set[str] = set()
    for name, options in result.items():
        optimizer = create_optimizer(dict(options.optimizer), where="optimizer of parameter %r" % name)
        other = optimizer.instead_of_this(hidden_matrix=name in hidden)
        if other is None:
            kept.add(optimizer.name)
        else:
            replaced.setdefault(optimizer.name, []).append(name)
            result[name] = dataclasses.replace(options, optimizer=other)
    for name, options in result.items():
        rate = specs[name].rate
        if rate != 1.0:
            factor = options.optimizer.get("learning_rate_multiplier", 1.0) * rate
            result[name] = dataclasses.replace(
                options, optimizer={**options.optimizer, "learning_rate_multiplier": factor}
            )
    for cls, others in replaced.items():
        if cls not in kept:
            raise RateError(
                "optimizer: class %r: none of the parameters is a matrix of a hidden layer: %s. Use another class, "
                'e.g. {"class": "adamw"}.' % (cls, listed(others))
            )
    return result


def averaging_class(options: Mapping[str, UpdateOptions]) -> str:
    """Return the class of an optimizer that keeps averages of its parameters; "" if there is none.

    :param options: of each parameter
    """
    names = {of_one.optimizer["class"] for of_one in options.values()}
    classes = [optimizer_class(name, where="optimizer") for name in sorted(names)]
    return next((cls.name for cls in classes if cls.keeps_averages), "")


def hidden_matrices(plan: Plan) -> set[str]:
    """Return the names of the parameters of hidden layers with several rows and columns, filters included.

    Those of layers with labels as input are no such, nor those of layers with a loss or whose output is a result.
    """
    ends = {loss.owner.path for loss in plan.losses} | {node.path for node in plan.outputs.values()}
    found: set[str] = set()
    for node in plan.all_nodes():
        if node.path not in ends and not any(source.output.sparse for source in node.sources):
            found |= {spec.name for spec in node.owned if _is_matrix(spec.shape)}
    return found


def _is_matrix(shape: tuple[int, ...]) -> bool:
    return len(shape) > 1 and shape[-1] > 1 and math.prod(shape[:-1]) > 1


def listed(names: list[str]) -> str:
    """Return the first names of a list, and how many more there are, as text."""
    return ", ".join(names[:5]) + (" and %d more" % (len(names) - 5) if len(names) > 5 else "")


def optimizer_dict(config: Config) -> dict[str, Any]:
    """Return the optimizer dict of a config: ``optimizer``, a legacy flag, or plain gradient descent."""
    settings = UpdateSettings(config)
    options = settings.optimizer
    if options is not None:
        create_optimizer(options, where="optimizer")  # raises an error if it is invalid
        return dict(options)
    momentum = settings.momentum
    given = given_flags(config)
    if not given:
        return {"class": "momentum", "momentum": momentum} if momentum else {"class": "gradientdescent"}
    flag, value = given[0], settings.value(given[0])
    if len(given) > 1:
        others = ", ".join(given[1:])
        log.write(3, '%s is the optimizer; %s has no effect. Write optimizer = {"class": ...}.' % (flag, others))
    cls = optimizers_by_switch()[flag]
    result: dict[str, Any] = {"class": cls.name}
    if not isinstance(value, bool):
        result["decay"] = value
    if momentum and "momentum" not in declared_options(cls):
        raise RateError("momentum can't be combined with %s = True; remove one of them." % flag)
    return {**result, "momentum": momentum} if momentum else result


def given_flags(config: Config) -> list[str]:
    """Return the older switches of optimizers that a config sets; only the first one counts, and none beside a dict."""
    settings = UpdateSettings(config)
    switches = optimizers_by_switch()
    return [name for name in UpdateSettings.declared() if name in switches and settings.value(name)]


def _given(options: Mapping[str, Any], where: str) -> dict[str, Any]:
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
