"""Settings: log files, event files, traces of steps."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.config.errors import did_you_mean
from returnn_tf.config.settings.catalog import register_settings
from returnn_tf.config.settings.declaration import SettingGroup, setting

#: Those options of TensorFlow 1 sessions that still have an effect.
THREADS = ("intra_op_parallelism_threads", "inter_op_parallelism_threads")
#: With a negative number for the other one, the thread of the caller runs all operations.
_NEVER_NEGATIVE = THREADS[0]
#: The others.
_OF_SESSIONS = (
    "allow_soft_placement", "cluster_def", "device_count", "device_filters", "experimental", "gpu_options",
    "graph_options", "isolate_session_state", "log_device_placement", "operation_timeout_in_ms", "placement_period",
    "pluggable_device_options", "rpc_options", "session_inter_op_thread_pool", "share_cluster_devices_in_session",
    "use_per_session_threads",
)  # fmt: skip
#: Values of these that most configs have, and that ask for what TensorFlow 2 or this program does in any case.
AS_ALWAYS = {"allow_soft_placement": True, "log_device_placement": False, "gpu_options": {"allow_growth": True}}


def _of_a_session(options: dict[str, Any]) -> Optional[str]:
    """Check the names of options of TensorFlow 1 sessions, and the numbers of threads."""
    for name, value in options.items():
        if name not in THREADS and name not in _OF_SESSIONS:
            return "has an unknown option %r. %s" % (name, did_you_mean(name, (*THREADS, *_OF_SESSIONS)))
        if name in THREADS and (not isinstance(value, int) or (value < 0 and name == _NEVER_NEGATIVE)):
            return "%r must be a number of threads, not %r" % (name, value)
    return None


@register_settings
class LoggingSettings(SettingGroup):
    """Logging."""

    topic_order = 90

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
    debug_objective_loss_summaries: bool = setting(
        False,
        help="TensorBoard events of steps also have each loss as it enters the objective",
        between_runs=True,
        per_rank=True,
    )
    debug_unnormalized_loss_summaries: bool = setting(
        False,
        help="TensorBoard events of steps also have each loss summed over the batch",
        between_runs=True,
        per_rank=True,
    )
    trackers: Optional[list[Any]] = setting(
        None,
        help='programs that record a training: names, or dicts of options such as {"class": "mlflow", "experiment": '
        '"a"}; with several processes, rank 0 records',
        between_runs=True,
        per_rank=True,
    )
    tf_session_opts: Optional[dict[str, Any]] = setting(
        None,
        help="older options of TensorFlow sessions; only the numbers of threads are used",
        check=_of_a_session,
        per_rank=True,
    )
    profile: Any = setting(
        None,
        help="trace some steps for TensorBoard: True, or a dict with first_step, steps, every",
        between_runs=True,
        per_rank=True,
    )
    store_metadata_mod_step: Optional[int] = setting(None, help="trace every n-th step")
