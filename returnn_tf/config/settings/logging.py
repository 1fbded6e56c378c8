"""Settings: log files, event files, traces of steps."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.config.settings.declaration import SettingGroup, setting


def _numbers_of_threads(options: dict[str, Any]) -> Optional[str]:
    """Check those options of TensorFlow 1 sessions that still have an effect."""
    for name in ("intra_op_parallelism_threads", "inter_op_parallelism_threads"):
        if not isinstance(options.get(name, 0), int):
            return "%r must be a number of threads, not %r" % (name, options[name])
    return None


class LoggingSettings(SettingGroup):
    """Logging."""

    log: list[str] = setting([], help="log files, in addition to the terminal", between_runs=True, per_rank=True)
    log_verbosity: list[int] = setting(
        [], help="log level from 0 to 5 of each log target; 3 by default", between_runs=True, per_rank=True
    )
    log_format: str = setting(
        "default", help="line format: default, timed, raw, verbose", between_runs=True, per_rank=True
    )
    log_batch_size: bool = setting(False, help="show the batch sizes in the line of each step")
    tf_log_memory_usage: bool = setting(False, help="show the memory usage in the line of each step", per_rank=True)
    tf_log_dir: Any = setting(
        None,
        help="folder of TensorBoard events; default: 'events' next to the model; None or False: none",
        per_rank=True,
    )
    tf_session_opts: Optional[dict[str, Any]] = setting(
        None,
        help="older options of TensorFlow sessions; only the numbers of threads are used",
        check=_numbers_of_threads,
        per_rank=True,
    )
    profile: Any = setting(
        None,
        help="trace some steps for TensorBoard: True, or a dict with first_step, steps, every",
        between_runs=True,
        per_rank=True,
    )
    store_metadata_mod_step: Optional[int] = setting(None, help="trace every n-th step")
