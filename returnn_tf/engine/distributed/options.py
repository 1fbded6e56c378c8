"""The settings of distributed training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from returnn_tf.config import Config
from returnn_tf.config.settings.horovod import GRAD, PARAM, SEED, SHARD, HorovodSettings

__all__ = ["GRAD", "PARAM", "SEED", "SHARD", "HorovodOptions"]


@dataclass(frozen=True)
class HorovodOptions:
    """All ``horovod_...`` settings of a config, checked."""

    reduce_type: str
    distribution: str
    compression: str
    average_grad: bool  # mean instead of sum
    scale_lr: bool
    average_on_cpu: bool
    sync_steps: Optional[int]  # steps between two synchronisations
    sync_seconds: Optional[float]  # or time between them
    timeout: float  # seconds without any progress of a rank until the others give up

    @classmethod
    def from_config(cls, config: Config) -> HorovodOptions:
        """Return the options of a config.

        :raises ConfigError: an invalid value
        """
        given = HorovodSettings(config)
        steps, seconds = given.horovod_param_sync_step, given.horovod_param_sync_time_diff
        return cls(
            reduce_type=given.horovod_reduce_type,
            distribution=given.horovod_dataset_distribution,
            compression=given.horovod_compression,
            average_grad=given.horovod_avg_grad,
            scale_lr=given.horovod_scale_lr,
            average_on_cpu=given.horovod_avg_param_on_cpu,
            sync_steps=1 if steps is None and seconds is None else steps,
            sync_seconds=seconds,
            timeout=given.horovod_timeout,
        )
