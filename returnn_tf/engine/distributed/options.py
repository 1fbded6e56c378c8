"""How the processes of a config train together: one record of ``distributed`` and the settings named after Horovod."""

from __future__ import annotations

import dataclasses

from returnn_tf.config import Config
from returnn_tf.config.errors import DistributedError
from returnn_tf.config.options import from_options
from returnn_tf.config.settings.distributed import (
    HOROVOD,
    TENSORFLOW,
    Distributed,
    DistributedSettings,
    HorovodSettings,
)

#: The older setting of each option that has one.
_OLDER = {
    "data": "horovod_dataset_distribution",
    "reduce": "horovod_reduce_type",
    "sync_steps": "horovod_param_sync_step",
    "sync_seconds": "horovod_param_sync_time_diff",
    "sync_on_cpu": "horovod_avg_param_on_cpu",
    "scale_learning_rate": "horovod_scale_lr",
    "average_gradients": "horovod_avg_grad",
    "compression": "horovod_compression",
    "timeout": "horovod_timeout",
    "check_size": "horovod_check_world_size",
}


def is_distributed(config: Config) -> bool:
    """Return whether the config asks for several processes."""
    return HorovodSettings(config).use_horovod or DistributedSettings(config).is_set("distributed")


def options_of(config: Config) -> Distributed:
    """Return how processes train together by ``distributed`` and the older settings, whether there are several or not.

    :raises ConfigError: a wrong option, or both say different things
    """
    older, settings = HorovodSettings(config), DistributedSettings(config)
    given = settings.distributed or {}
    where = settings.describe_source("distributed")
    found = from_options(Distributed, given, where=where)
    for name, key in _OLDER.items():
        if not older.is_set(key):
            continue
        value = older.value(key)
        if name in given and getattr(found, name) != value:
            raise DistributedError(
                "%s is %r, but %s has %r: %r. They mean the same: remove one of them."
                % (older.describe_source(key), value, where, name, getattr(found, name))
            )
        found = dataclasses.replace(found, **{name: value})
    on = older.use_horovod if older.is_set("use_horovod") else None
    if (on is True and found.engine == TENSORFLOW) or (on is False and found.engine == HOROVOD):
        raise DistributedError(
            "%s is %r, but %s has 'engine': %r. Remove one of them."
            % (older.describe_source("use_horovod"), on, where, found.engine)
        )
    return found
