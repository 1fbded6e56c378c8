"""The settings of a training with several processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.config import ConfigError, did_you_mean

GRAD, PARAM = "grad", "param"
SHARD, SEED = "shard", "random_seed_offset"
_COMPRESSIONS = ("none", "fp16")


@dataclass(frozen=True)
class HorovodOptions:
    """All keys ``horovod_...`` of a config, checked."""

    reduce_type: str = GRAD
    distribution: str = SHARD
    compression: str = "none"
    average_grad: bool = False  # mean instead of sum
    scale_lr: bool = False
    average_on_cpu: bool = False
    sync_steps: Optional[int] = None  # steps between two synchronisations
    sync_seconds: Optional[float] = None  # or time between them
    timeout: float = 40.0  # seconds without any progress of a rank until the others give up

    @classmethod
    def from_config(cls, config: Any) -> HorovodOptions:
        """
        :param config: Config
        :raises ConfigError: a value which has no meaning
        """
        sync = config.typed("horovod_param_sync_step", None)
        seconds = config.typed("horovod_param_sync_time_diff", None)
        timeout = config.float("horovod_timeout", cls.timeout)
        if sync is not None and config.int("horovod_param_sync_step", 1) < 1:
            raise ConfigError("%s: expected a number of steps, 1 at least." % config.where("horovod_param_sync_step"))
        if seconds is not None and config.float("horovod_param_sync_time_diff", 0.0) < 0:
            raise ConfigError("%s: expected seconds, not below 0." % config.where("horovod_param_sync_time_diff"))
        if timeout <= 0:
            raise ConfigError("%s: expected seconds above 0." % config.where("horovod_timeout"))
        if sync is None and seconds is None:
            sync = 1
        return cls(
            reduce_type=_choice(config, "horovod_reduce_type", (GRAD, PARAM)),
            distribution=_choice(config, "horovod_dataset_distribution", (SHARD, SEED)),
            compression=_choice(config, "horovod_compression", _COMPRESSIONS),
            average_grad=config.bool("horovod_avg_grad", False),
            scale_lr=config.bool("horovod_scale_lr", False),
            average_on_cpu=config.bool("horovod_avg_param_on_cpu", False),
            sync_steps=None if sync is None else config.int("horovod_param_sync_step", 1),
            sync_seconds=None if seconds is None else config.float("horovod_param_sync_time_diff", 0.0),
            timeout=timeout,
        )


def _choice(config: Any, key: str, choices: Any) -> str:
    value = config.str(key, "") or choices[0]
    if value not in choices:
        raise ConfigError(
            "%s: %r is none of %s. %s" % (config.where(key), value, choices, did_you_mean(value, choices))
        )
    return str(value)
