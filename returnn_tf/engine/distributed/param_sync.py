"""Local updates on each rank with periodic averaging of the parameters (``reduce`` is "param")."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config.errors import DistributedDataError
from returnn_tf.config.settings.distributed import Distributed
from returnn_tf.engine.distributed.buckets import MEGABYTE, sum_in_buckets
from returnn_tf.engine.distributed.control import Control
from returnn_tf.util.lazy_tf import tf


class ParamSync:
    """Averages the parameters over the ranks when due.

    It is due every ``sync_steps`` steps, or ``sync_seconds`` after the end of the
    last one, which is the same for all ranks. A rank without data waits for the others in the next one, with weight
    zero. The mean is over the ranks which did a step since the last one.

    :param world: of several processes
    :param params: variables to average; non-floating-point ones stay local to each rank
    """

    def __init__(self, world: Any, options: Distributed, params: Sequence[Any]) -> None:
        self._collectives, self._size = world.collectives, world.size
        self._waiting = world.collective
        self._every_steps, self._every_seconds = sync_interval(options)
        self._sum_group = functools.partial(world.collectives.sum_group, on_host=options.sync_on_cpu)
        self._bucket = options.bucket_size * MEGABYTE
        self._params = [var for var in params if var.dtype.is_floating]
        self._function: Optional[Any] = None
        self._steps = 0  # since the last time
        self._count = 0  # number of synchronisations
        self._last = time.monotonic()
        #: seconds which the last synchronisation took, waiting included
        self.seconds = 0.0

    def after_step(self, control: Control) -> bool:
        """Count a step of this rank, own or idle, and synchronise if due.

        :return: whether it was due
        """
        self._steps += int(control.own)
        due = not control.more or not control.own
        if self._every_steps is not None:
            due = due or self._steps >= self._every_steps
        if self._every_seconds is not None:
            due = due or time.monotonic() - self._last >= self._every_seconds
        control.any_pause = False  # unless another rank requests it now
        if due:
            self._synchronize(control)
        return due

    def once(self) -> None:
        """Average now, whether it is due or not; all ranks count."""
        self._run(1.0, Control().pack(self._count))

    def _synchronize(self, control: Control) -> None:
        start = time.monotonic()
        sums = self._run(float(self._steps > 0), control.pack(self._count))
        if not control.unpack(sums, self._size):
            raise DistributedDataError(
                "The ranks are not at the same synchronisation of the parameters (here number %i)." % self._count
            )
        self._last = time.monotonic()
        self.seconds = self._last - start

    def _run(self, weight: float, flags: list[float]) -> Any:
        if self._function is None:
            self._function = tf.function(self._emit, autograph=False)
        with self._waiting("averaging parameters"):
            sums = self._function(tf.constant(weight, "float32"), tf.constant(flags, "float64")).numpy()
        self._count += 1
        self._steps = 0
        return sums

    def _emit(self, weight: Any, flags: Any) -> Any:
        with tf.device("/CPU:0"):
            vector = tf.concat([[tf.cast(weight, "float64")], flags], 0)
        total = self._collectives.sum(vector, "returnn.sync")
        active = total[0]
        mine = [tf.where(weight > 0, var, tf.zeros_like(var)) for var in self._params]
        sums = sum_in_buckets(mine, "returnn.params", self._bucket, self._sum_group)
        for var, value in zip(self._params, sums):
            var.assign(tf.where(active > 0, tf.math.divide_no_nan(value, tf.cast(active, value.dtype)), var))
        return total[1:]


def sync_interval(options: Distributed) -> tuple[Optional[int], Optional[float]]:
    """Return the number of steps and the seconds between two averages; by default, each step ends with one."""
    steps, seconds = options.sync_steps, options.sync_seconds
    return 1 if steps is None and seconds is None else steps, seconds
