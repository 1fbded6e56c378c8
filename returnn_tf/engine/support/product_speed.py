"""Speed of low-precision matrix products on this CPU, for the setting ``mixed_precision``."""

from __future__ import annotations

import time
from typing import Any

from returnn_tf.config import Config
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.logging.log import log
from returnn_tf.util.lazy_tf import tf

_ROWS, _DEPTH, _COLUMNS = 256, 1024, 1024  # 0.5 GFLOP: some milliseconds
_ROUNDS = 5


def relative_time(dtype: str) -> float:
    """Return the CPU time of a matrix product in this type divided by that in float32, measured alternately."""
    factors = [_factors("float32"), _factors(dtype)]
    times = [[_seconds(*pair) for pair in factors] for _ in range(_ROUNDS)]
    return min(row[1] for row in times) / min(row[0] for row in times)


def report_speed(config: Config) -> None:
    """Log the relative time of products in the type of ``mixed_precision``, if it is set and there is no GPU."""
    dtype = NetworkSettings(config).mixed_precision
    if dtype and not tf.config.get_visible_devices("GPU"):
        log.write(3, speed_note(dtype, relative_time(dtype)))


def speed_note(dtype: str, ratio: float) -> str:
    """Return the line for the log, given the ratio of `relative_time`."""
    text = "mixed_precision: a product in %s takes %.2f times the CPU time of float32 on this machine" % (dtype, ratio)
    return text if ratio < 0.95 else text + "; without the setting, a step takes no longer"


def _factors(dtype: str) -> tuple[Any, Any]:
    return tuple(tf.ones(shape, dtype) for shape in ([_ROWS, _DEPTH], [_DEPTH, _COLUMNS]))


def _seconds(a: Any, b: Any) -> float:
    start = time.process_time()  # of all threads, since other programs may have the cores
    tf.matmul(a, b).numpy()
    return time.process_time() - start
