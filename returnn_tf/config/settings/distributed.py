"""Settings: training with several processes. Those named after Horovod mean the same as options of ``distributed``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.config.options import above, at_least, option
from returnn_tf.config.settings.catalog import register_settings
from returnn_tf.config.settings.declaration import Effect, SettingGroup, option_of, setting

GRAD, PARAM = "grad", "param"
SHARD, SEED = "shard", "random_seed_offset"
NO_COMPRESSION, FP16 = "none", "fp16"
AUTO, TENSORFLOW, HOROVOD = "auto", "tensorflow", "horovod"
RING, NCCL = "ring", "nccl"

_ON = ("use_horovod", "distributed")


@register_settings
class HorovodSettings(SettingGroup):
    """Several processes: settings named after Horovod."""

    topic_order = 81

    use_horovod: bool = setting(False, help="train with several processes", effect=Effect.ORDER)
    horovod_dataset_distribution: str = setting(
        SHARD,
        help="shard: each process reads its share; random_seed_offset: each reads all data, in its own order",
        choices=[SHARD, SEED],
        effect=Effect.ORDER,
        needs=_ON,
    )
    horovod_reduce_type: str = setting(
        GRAD,
        help="what the processes average: gradients in each step, or parameters at intervals",
        choices=[GRAD, PARAM],
        needs=_ON,
    )
    horovod_param_sync_step: Optional[int] = setting(
        None, help="steps between averaging parameters; 1 by default", check=at_least(1), needs=_ON
    )
    horovod_param_sync_time_diff: Optional[float] = setting(
        None, help="seconds between averaging parameters", check=at_least(0), needs=_ON
    )
    horovod_scale_lr: bool = setting(False, help="multiply the learning rate by the number of processes", needs=_ON)
    horovod_avg_grad: bool = setting(
        False, help="take the mean of the gradients of all processes instead of their sum", needs=_ON
    )
    horovod_avg_param_on_cpu: bool = setting(False, help="average parameters in host memory", needs=_ON)
    horovod_compression: str = setting(
        NO_COMPRESSION, help="compression of gradients for transfer", choices=[NO_COMPRESSION, FP16], needs=_ON
    )
    horovod_timeout: float = setting(
        40.0, help="seconds without progress of a process until all end", check=above(0), needs=_ON
    )
    horovod_check_world_size: bool = setting(
        True, help="check that the number of processes is that of the scheduler", needs=_ON
    )


@dataclass(frozen=True)
class Distributed:
    """How several processes train together."""

    engine: str = option(
        AUTO,
        help="what connects the processes; auto: Horovod if it is installed and horovodrun or mpirun has started them, "
        "else TensorFlow",
        choices=[AUTO, TENSORFLOW, HOROVOD],
    )
    data: str = option_of(HorovodSettings, "horovod_dataset_distribution")
    reduce: str = option_of(HorovodSettings, "horovod_reduce_type")
    sync_steps: Optional[int] = option_of(HorovodSettings, "horovod_param_sync_step")
    sync_seconds: Optional[float] = option_of(HorovodSettings, "horovod_param_sync_time_diff")
    sync_on_cpu: bool = option_of(HorovodSettings, "horovod_avg_param_on_cpu")
    scale_learning_rate: bool = option_of(HorovodSettings, "horovod_scale_lr")
    average_gradients: bool = option_of(HorovodSettings, "horovod_avg_grad")
    compression: str = option_of(HorovodSettings, "horovod_compression")
    timeout: float = option_of(HorovodSettings, "horovod_timeout")
    start_timeout: float = option(
        300.0, help="TensorFlow: seconds in which all processes must have started", check=above(0)
    )
    check_size: bool = option_of(HorovodSettings, "horovod_check_world_size")
    bucket_size: float = option(
        4.0,
        help="MB of gradients that are summed in one message, as soon as they are computed; 0: each by itself",
        check=at_least(0),
    )
    communication: str = option(
        AUTO,
        help="TensorFlow: how gradients are summed; auto: nccl if each process has a GPU of its own, else ring",
        choices=[AUTO, RING, NCCL],
    )


@register_settings
class DistributedSettings(SettingGroup):
    """Several processes."""

    topic_order = 80

    distributed: Optional[dict[str, Any]] = setting(
        None, help="train with several processes: a dict, which may be empty", group=Distributed
    )
