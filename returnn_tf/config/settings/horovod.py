"""Settings: training with several processes."""

from __future__ import annotations

from typing import Optional

from returnn_tf.config.options import above, at_least
from returnn_tf.config.settings.catalog import register_settings
from returnn_tf.config.settings.declaration import Effect, SettingGroup, setting

GRAD, PARAM = "grad", "param"
SHARD, SEED = "shard", "random_seed_offset"
NO_COMPRESSION, FP16 = "none", "fp16"


@register_settings
class HorovodSettings(SettingGroup):
    """Several processes."""

    topic_order = 80

    use_horovod: bool = setting(False, help="train with several processes", effect=Effect.ORDER)
    horovod_dataset_distribution: str = setting(
        SHARD,
        help="shard: each process reads its share; random_seed_offset: each reads all data, in its own order",
        choices=[SHARD, SEED],
        effect=Effect.ORDER,
        needs="use_horovod",
    )
    horovod_reduce_type: str = setting(
        GRAD,
        help="what the processes average: gradients in each step, or parameters at intervals",
        choices=[GRAD, PARAM],
        needs="use_horovod",
    )
    horovod_param_sync_step: Optional[int] = setting(
        None, help="steps between averaging parameters; 1 by default", check=at_least(1), needs="use_horovod"
    )
    horovod_param_sync_time_diff: Optional[float] = setting(
        None, help="seconds between averaging parameters", check=at_least(0), needs="use_horovod"
    )
    horovod_scale_lr: bool = setting(
        False, help="multiply the learning rate by the number of processes", needs="use_horovod"
    )
    horovod_avg_grad: bool = setting(
        False, help="take the mean of the gradients of all processes instead of their sum", needs="use_horovod"
    )
    horovod_avg_param_on_cpu: bool = setting(False, help="average parameters in host memory", needs="use_horovod")
    horovod_compression: str = setting(
        NO_COMPRESSION,
        help="compression of gradients for transfer",
        choices=[NO_COMPRESSION, FP16],
        needs="use_horovod",
    )
    horovod_timeout: float = setting(
        40.0, help="seconds without progress of a process until all end", check=above(0), needs="use_horovod"
    )
    horovod_check_world_size: bool = setting(
        True, help="check that the number of processes is that of the scheduler", needs="use_horovod"
    )
