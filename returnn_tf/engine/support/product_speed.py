"""Speed of low-precision matrix products on this CPU, for the setting ``mixed_precision``."""

from __future__ import annotations

import time
from typing import Optional

from returnn_tf.config import Config
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.logging.log import log
from returnn_tf.ops.mixed_precision import full, matmul
from returnn_tf.util.lazy_tf import tf

_ROWS, _DEPTH, _COLUMNS = 256, 1024, 1024  # 0.5 GFLOP: some milliseconds
_ROUNDS = 5


def relative_time(dtype: str) -> float:
    """Return the CPU time of a product with factors of this type, as layers compute it, divided by that in float32.

    Both are measured alternately. Operands and results are float32, so conversions count.
    """
    times = [[_seconds(product_dtype) for product_dtype in (None, dtype)] for _ in range(_ROUNDS)]
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


def _seconds(product_dtype: Optional[str]) -> float:
    a, b = tf.ones([_ROWS, _DEPTH]), tf.ones([_DEPTH, _COLUMNS])
    start = time.process_time()  # of all threads, since other programs may have the cores
    full(matmul(a, b, product_dtype=product_dtype), product_dtype).numpy()
    return time.process_time() - start
