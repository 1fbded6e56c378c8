"""Settings: the learning rate of each epoch and step."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

from returnn_tf.config import readers
from returnn_tf.config.options import at_least, finite
from returnn_tf.config.settings.catalog import register_settings
from returnn_tf.config.settings.declaration import Effect, SettingGroup, setting

Factor = Union[float, Callable[[float], float]]


def _is_rate(value: float) -> Optional[str]:
    return at_least(0)(value) or finite(value)


def _read_factor(value: Any) -> Any:
    return value if callable(value) else float(readers.read_float(value))


def _read_rate(value: Any) -> float:
    """Read a single rate; of a list, the first one would be taken for all epochs, and of ``0,5`` the 0."""
    entries = value.parts if isinstance(value, readers.RawSetting) else value
    shown = value.text.strip() if isinstance(value, readers.RawSetting) else repr(value)
    if isinstance(entries, (list, tuple)) and (len(entries) > 1 or shown[:1] in ("[", "(")):
        if shown[:1] == "[":
            raise ValueError("expected a number, got the list %s. Write learning_rates = %s" % (shown, shown))
        text = "expected one number, got %s. The decimal point is '.', as in 0.5; several rates go into learning_rates"
        raise ValueError(text % shown)
    return readers.read_float(value)


@register_settings
class LearningRateSettings(SettingGroup):
    """Learning rate."""

    topic_order = 60

    learning_rate: float = setting(
        1.0, help="learning rate of the first epoch", check=_is_rate, reader=_read_rate, effect=Effect.RATES
    )
    learning_rates: Any = setting(
        None, help="learning rates of the first epochs: a list, or a dict epoch -> rate", effect=Effect.RATES
    )
    min_learning_rate: float = setting(0.0, help="lower bound for decay", needs="learning_rate_control")
    dynamic_learning_rate: Union[dict[str, Any], Callable[..., Any], None] = setting(
        None, help="learning rate of each step: a function, or a dict with interval and decay"
    )
    learning_rate_schedule: Optional[dict[str, Any]] = setting(
        None,
        help='factor of the learning rate by step or epoch: a dict, e.g. {"class": "cosine", "total": 90000}',
        effect=Effect.RATES,
    )
    learning_rate_file: str = setting("", help="file for the learning rates and scores of the epochs")
    learning_rate_control: str = setting(
        "constant", help="how scores change the rate: constant, newbob, newbob_abs, newbob_multi_epoch"
    )
    learning_rate_control_error_measure: list[str] = setting([], help="score that decides, e.g. dev_score")
    learning_rate_control_relative_error_relative_lr: bool = setting(
        False, help="divide relative errors by (current rate / first rate)", needs="learning_rate_control"
    )
    learning_rate_control_min_num_epochs_per_new_lr: int = setting(
        0, help="minimum number of epochs between changes of the rate", needs="learning_rate_control"
    )
    learning_rate_decay: Factor = setting(
        0.5,
        help="factor of a decay, or function of the rate",
        reader=_read_factor,
        aliases=["newbob_learning_rate_decay"],
        needs="learning_rate_control",
    )
    learning_rate_growth: Factor = setting(
        1.0,
        help="factor if the rate does not decay",
        reader=_read_factor,
        aliases=["newbob_learning_rate_growth"],
        needs="learning_rate_control",
    )
    newbob_relative_error_threshold: float = setting(
        -0.01, help="a relative error above it decays the rate", needs="learning_rate_control"
    )
    newbob_relative_error_grow_threshold: Optional[float] = setting(
        None,
        help="with newbob_multi_epoch: an error below it grows the rate; newbob_relative_error_threshold by default",
        needs="learning_rate_control",
    )
    newbob_relative_error_div_by_old: bool = setting(
        False, help="divide by the older score instead of the newer one", needs="learning_rate_control"
    )
    newbob_error_threshold: float = setting(
        -0.01, help="with newbob_abs: a difference above it decays the rate", needs="learning_rate_control"
    )
    newbob_multi_num_epochs: int = setting(
        5, help="with newbob_multi_epoch: number of epochs to look at", check=at_least(1), needs="learning_rate_control"
    )
    newbob_multi_update_interval: Optional[int] = setting(
        None,
        help="with newbob_multi_epoch: the rate changes every n-th epoch; newbob_multi_num_epochs by default",
        check=at_least(1),
        needs="learning_rate_control",
    )
    pretrain_learning_rate: Optional[float] = setting(
        None,
        help="rate of pretraining epochs without use_learning_rate_control_always; learning_rate by default",
        effect=Effect.RATES,
        needs="pretrain",
    )
    use_learning_rate_control_always: bool = setting(
        False, help="control the rate in pretraining epochs, too", effect=Effect.RATES, needs="pretrain"
    )
