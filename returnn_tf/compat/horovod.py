"""``import returnn.tf.horovod as TFHorovod``: which of several processes this is, for the functions of configs."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.config import Config
from returnn_tf.config.foreign_modules import register_foreign
from returnn_tf.config.settings import HorovodSettings
from returnn_tf.config.user_code import config_in_use
from returnn_tf.engine.distributed import world
from returnn_tf.engine.distributed.options import GRAD, PARAM, SEED, SHARD, HorovodOptions

register_foreign(__name__, "returnn.tf.horovod", "TFHorovod")


class HorovodContext:
    """The place of this process among all; in a process which loads data, that of the one which it loads for."""

    def __init__(self, config: Config, place: Any) -> None:
        """
        :param config: Config
        :param place: rank, size, local rank, local size
        """
        self._options = HorovodOptions.from_config(config)
        self._place = place

    def rank(self) -> int:
        """From 0."""
        return self._place[0]

    def size(self) -> int:
        """The number of processes."""
        return self._place[1]

    def local_rank(self) -> int:
        """Among those of this host, from 0."""
        return self._place[2]

    def local_size(self) -> int:
        """The number of processes on this host."""
        return self._place[3]

    def get_reduce_type(self) -> str:
        """``grad`` or ``param``."""
        return self._options.reduce_type

    def is_reduce_type_grad(self) -> bool:
        """Whether gradients are summed."""
        return self._options.reduce_type == GRAD

    def is_reduce_type_param(self) -> bool:
        """Whether parameters are averaged."""
        return self._options.reduce_type == PARAM

    def get_param_sync_step(self) -> Optional[int]:
        """Steps between averaging parameters."""
        return self._options.sync_steps

    def get_param_sync_time_diff(self) -> Optional[float]:
        """Seconds between averaging parameters."""
        return self._options.sync_seconds

    def get_dataset_distribution_type(self) -> str:
        """``shard`` or ``random_seed_offset``."""
        return self._options.distribution

    def is_dataset_distribution_shard(self) -> bool:
        """Whether each process reads every n-th sequence."""
        return self._options.distribution == SHARD

    def is_dataset_distribution_random_seed_offset(self) -> bool:
        """Whether each process reads all sequences in its own order."""
        return self._options.distribution == SEED


def get_ctx(config: Any = None) -> Optional[HorovodContext]:
    """The place of this process; None without ``use_horovod``.

    :param config: Config; default the one in use
    """
    config = config_in_use() if config is None else config
    if config is None or not HorovodSettings(config).use_horovod:
        return None
    place = world.of_process()
    if place is None:
        members = world.start(config)
        place = (members.rank, members.size, members.local_rank, members.local_size)
    return HorovodContext(config, place)
