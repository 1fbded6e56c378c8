"""``import returnn.tf.horovod as TFHorovod``: the rank of this process, for the functions of configs."""

from __future__ import annotations

from typing import Optional

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.config import Config
from returnn_tf.config.user_code import config_in_use
from returnn_tf.engine.distributed import world
from returnn_tf.engine.distributed.options import is_distributed

register_compat(__name__, "returnn.tf.horovod", "TFHorovod")


class HorovodContext:
    """The rank of this process; a process that loads data has the rank of the process that it loads for.

    :param place: rank, size, local rank, local size
    """

    def __init__(self, place: tuple[int, int, int, int]) -> None:
        self._place = place

    def rank(self) -> int:
        """Return the rank, from 0."""
        return self._place[0]

    def size(self) -> int:
        """Return the number of processes."""
        return self._place[1]

    def local_rank(self) -> int:
        """Return the rank among the processes of this host, from 0."""
        return self._place[2]

    def local_size(self) -> int:
        """Return the number of processes on this host."""
        return self._place[3]


def get_ctx(config: Optional[Config] = None) -> Optional[HorovodContext]:
    """Return the rank of this process; None in a training of one process.

    :param config: default: the one in use
    """
    config = config_in_use() if config is None else config
    if config is None or not is_distributed(config):
        return None
    place = world.of_process()
    if place is None:
        members = world.start(config)
        place = (members.rank, members.size, members.local_rank, members.local_size)
    return HorovodContext(place)
