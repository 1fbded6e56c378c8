"""Settings: the optimizer, and what happens to the gradients before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

from returnn_tf.config import readers
from returnn_tf.config.options import at_least, option
from returnn_tf.config.settings.catalog import register_settings
from returnn_tf.config.settings.declaration import SettingGroup, setting


def _read_switch_or_decay(value: Any) -> Any:
    try:
        return bool(readers.read_bool(value))
    except ValueError:
        return readers.read_float(value)


def _is_switch_or_decay(value: Union[bool, float]) -> Optional[str]:
    return None if isinstance(value, bool) or 0 < value < 1 else "must be True, False, or a decay between 0 and 1"


def _is_scaling(value: Union[None, str, float]) -> Optional[str]:
    good = value in (None, "dynamic") or (not isinstance(value, (str, bool)) and value is not None and value > 0)
    return None if good else "must be 'dynamic' or a number above 0"


def _is_decay(value: Optional[float]) -> Optional[str]:
    return None if value is None or 0 < value < 1 else "must be between 0 and 1"


AVERAGE, CURRENT, BOTH = "average", "current", "both"


@dataclass(frozen=True)
class WeightAverage:
    """Averages of the parameters: which ones are kept, and whether evaluation and checkpoints have them."""

    decay: Optional[float] = option(
        None,
        help="decay of a moving average of the parameters; None: only with an optimizer that keeps averages",
        check=_is_decay,
    )
    warmup: bool = option(
        True, help="let the decay be at most n / (n + 9) after n updates of the average", needs="decay"
    )
    every: int = option(
        1, help="number of updates of the parameters for one of the average", check=at_least(1), needs="decay"
    )
    evaluate: str = option(
        AVERAGE,
        help="parameters that evaluation after an epoch, and checkpoints, have; both: the average, and scores of the "
        "current ones are those of 'current_dev' and so on",
        choices=[AVERAGE, CURRENT, BOTH],
    )


@register_settings
class UpdateSettings(SettingGroup):
    """Optimizer and gradients."""

    topic_order = 70

    optimizer: Optional[dict[str, Any]] = setting(
        None, help="the optimizer: a dict with class (a name) and its options"
    )
    adam: bool = setting(False, help="the Adam optimizer", old='optimizer = {"class": "adam"}', unless="optimizer")
    nadam: bool = setting(
        False, help="the Nadam optimizer", old='optimizer = {"class": "nadamkeras"}', unless="optimizer"
    )
    adadelta: bool = setting(
        False, help="the Adadelta optimizer", old='optimizer = {"class": "adadelta"}', unless="optimizer"
    )
    adagrad: bool = setting(
        False, help="the Adagrad optimizer", old='optimizer = {"class": "adagrad"}', unless="optimizer"
    )
    rmsprop: Union[bool, float] = setting(
        False,
        help="the RMSprop optimizer, True or its decay",
        old='optimizer = {"class": "rmsprop", "decay": ...}',
        reader=_read_switch_or_decay,
        check=_is_switch_or_decay,
        unless="optimizer",
    )
    momentum: float = setting(
        0.0,
        help="momentum of gradient descent and RMSprop",
        old='optimizer = {"class": "momentum", "momentum": ...}',
        unless="optimizer",
    )
    optimizer_epsilon: Optional[float] = setting(None, help="epsilon of Adam and its relatives")
    accum_grad_multiple_step: int = setting(
        0,
        help="number of steps whose gradients are summed before an update; 0 or 1: every step is one",
        check=at_least(0),
        differs="gradients of exactly these steps are summed; there, runs of the same config differ",
    )
    weight_average: Optional[dict[str, Any]] = setting(
        None, help="keep averages of the parameters, and evaluate them: a dict", group=WeightAverage
    )
    loss_scaling: Union[None, str, float] = setting(
        None,
        help="factor on the loss for the gradients of mixed_precision, or 'dynamic': the largest factor without "
        "overflow, whose steps are skipped; default: dynamic for float16, else none",
        check=_is_scaling,
    )
    gradient_noise: float = setting(
        0.0, help="standard deviation of gradient noise, truncated at two deviations", check=at_least(0)
    )
    gradient_clip: float = setting(0.0, help="limit of the absolute value of each entry", check=at_least(0))
    gradient_clip_norm: float = setting(0.0, help="limit of the L2 norm of each gradient", check=at_least(0))
    gradient_clip_avg_norm: float = setting(
        0.0, help="limit of the L2 norm of each gradient divided by its number of entries", check=at_least(0)
    )
    gradient_clip_global_norm: float = setting(
        0.0, help="limit of the L2 norm of all gradients together", check=at_least(0)
    )
    gradient_clip_global_norm_tag: Optional[str] = setting(
        None, help="restrict the global norm to the parameters with this tag", needs="gradient_clip_global_norm"
    )
    gradient_nan_inf_filter: bool = setting(False, help="set gradients of NaN or Inf to zero")
    grad_norm_to_clip_to_zero: float = setting(
        0.0, help="set the gradient to zero if its global norm is above this, or NaN", check=at_least(0)
    )
    maximize_grad_norm: float = setting(
        0.0, help="weight of a term that rewards a large gradient norm", check=at_least(0)
    )
    decouple_constraints: bool = setting(
        False, help="apply L2 to the weights directly, before the update, not by the gradient"
    )
    decouple_constraints_factor: Optional[float] = setting(
        None,
        help="factor of L2 with decouple_constraints",
        inert="each step subtracts 2 * L2 * W, without any factor",
    )
    extra_updates: Optional[dict[str, Callable[..., Any]]] = setting(
        None, help="parameter name -> function to run after its update"
    )
    reset_updater_vars_mod_step: int = setting(
        0,
        help="reset the state of the optimizer before every n-th step of an epoch, from the first one on; 0: never",
        check=at_least(0),
    )
