"""Settings: the task, and those that only some tasks read."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

from returnn_tf.config.settings.data import PerKey
from returnn_tf.config.settings.declaration import SettingGroup, setting

_NO_ANALYSIS = "it belongs to the tasks analyze and analyze_data, which do not exist"


def _is_true(value: bool) -> Optional[str]:
    return None if value else "must be True: every network runs on TensorFlow"


class TaskSettings(SettingGroup):
    """Tasks."""

    task: str = setting("train", help="the task: train, eval, forward, search or another one", between_runs=True)
    device: str = setting("all", help="cpu, gpu or gpu<index>; by default a GPU if there is one", per_rank=True)
    startup_callback: Optional[Callable[..., Any]] = setting(None, help="function(config) to call before the task")
    submit: Optional[dict[str, Any]] = setting(
        None, help="options of returnn-tf submit: {'time': '24:00:00', 'gpus': 1, ...}"
    )
    dry_run: bool = setting(False, help="task cleanup_old_models: only show what would be deleted")
    failure: str = setting("", help="task replay: the folder of a failed step")

    # eval
    loss_name: str = setting("", help="layer whose loss is written for each sequence")
    eval_output_file: str = setting("", help="file for the scores of task eval")
    eval_output_file_per_seq: str = setting("", help="file for the scores of each sequence")
    output_per_seq_format: list[str] = setting(["score"], help="fields of eval_output_file_per_seq")
    output_per_seq_file_format: str = setting("txt", help="format of eval_output_file_per_seq", choices=["txt", "py"])

    # forward
    forward_data: Any = setting(None, help="dataset of task forward, its name or the dataset itself; 'eval' by default")
    forward_batch_size: Optional[PerKey] = setting(None, help="batch_size of task forward")
    forward_output_layer: str = setting("output", help="layer that task forward writes")
    forward_override_hdf_output: bool = setting(False, help="whether task forward may overwrite output_file")
    output_file: str = setting("", help="HDF file that task forward writes; dump-fwd-epoch-<epoch>.hdf by default")
    forward_use_search: bool = setting(
        False, help="task forward: search", unsupported="use task search, which writes its results"
    )
    forward_callback: Any = setting(
        None,
        help="object or function that receives the outputs of task forward",
        unsupported="task forward writes an HDF file, which a script can read; or write a task config:<function>",
    )
    combine_labels: Any = setting(None, help="older option of task forward", inert="outputs are written unchanged")

    # search
    search_data: Any = setting(None, help="dataset of task search, its name or the dataset itself; 'eval' by default")
    search_do_eval: bool = setting(True, help="task search: also compute losses and errors")
    search_output_layer: Union[str, list[str], None] = setting(
        None, help="layer that task search writes, or a list of them; 'output' by default"
    )
    search_output_file: str = setting("", help="file that task search writes")
    search_output_file_format: str = setting("txt", help="format of search_output_file", choices=["txt", "py"])

    # settings of tasks that do not exist
    sil_label_idx: Any = setting(None, help="index of silence", inert=_NO_ANALYSIS)
    ctc_prior_file: Any = setting(None, help="priors of a CTC output", inert=_NO_ANALYSIS)
    analyze_dataset: Any = setting(None, help="dataset to analyze", inert=_NO_ANALYSIS)
    statistics_save_prefix: Any = setting(None, help="prefix of files with statistics", inert=_NO_ANALYSIS)
    statistics_dtype: Any = setting(None, help="dtype of statistics", inert=_NO_ANALYSIS)
    data_key: Any = setting(None, help="data key to analyze", inert=_NO_ANALYSIS)
    web_server_port: Any = setting(
        None, help="port of task search_server", inert="the task search_server does not exist"
    )
    use_tensorflow: bool = setting(True, help="older switch between backends", check=_is_true, inert="it is always on")
    patch_atfork: Any = setting(
        None, help="older switch for forking processes", inert="loading processes start without fork"
    )
