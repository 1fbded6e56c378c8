"""Settings of the tools, and those of older configs that have no effect any more, each with the reason."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.config.settings.catalog import register_settings
from returnn_tf.config.settings.declaration import SettingGroup, setting

_NO_ANALYSIS = "it belongs to the tasks analyze and analyze_data, which do not exist"
_SHELL = "there is no shell; task replay repeats a failed step"


def _is_true(value: bool) -> Optional[str]:
    return None if value else "must be True: every network runs on TensorFlow"


def _is_not_cut(value: int) -> Optional[str]:
    return None if value <= 0 else "must be -1: gradients go through whole sequences; cut these with chunking"


def _is_tensorflow(value: Any) -> Optional[str]:
    if not isinstance(value, str) or value.startswith("tensorflow"):
        return None
    return "must be 'tensorflow-net-dict': networks are dicts for TensorFlow"


@register_settings
class ToolSettings(SettingGroup):
    """Tools."""

    topic_order = 105

    wer_data: Any = setting(
        "eval",
        help="dataset with the references for returnn-tf tool calculate-word-error-rate, its name or the dataset "
        "itself; if there is none of that name, search_data",
    )


@register_settings
class OlderSettings(SettingGroup):
    """Older settings without effect."""

    topic_order = 110

    use_tensorflow: bool = setting(True, help="older switch between backends", check=_is_true, inert="it is always on")
    backend: Any = setting(
        None, help="the library for networks", check=_is_tensorflow, inert="networks are dicts for TensorFlow"
    )
    multiprocessing: Any = setting(
        None,
        help="load the data in other processes",
        inert="the data of every dataset is loaded in a separate process",
    )
    update_on_device: Any = setting(
        None, help="update the parameters on the GPU", inert="each update runs where its parameter is"
    )
    blocks_mt_model: Any = setting(
        None,
        help="parameters of a translator that was trained by Blocks",
        unsupported="write them to a checkpoint under the names of this network, and set preload_from_files",
    )
    dataset_pipeline: Any = setting(
        None,
        help="function that makes a pipeline of tf.data from the datasets",
        unsupported="write a dataset class, or postprocess sequences in map_seq of a PostprocessingDataset",
    )
    use_hot_reloading: bool = setting(
        False,
        help="read changed Python files again while training",
        unsupported="stop the training, and start it again: it goes on where it was",
    )
    eval_use_train_flag: bool = setting(
        False,
        help="evaluate with dropout and the other effects of training",
        unsupported="set 'dropout_on_forward': True in the layers that should have it",
    )
    truncation: int = setting(
        -1,
        help="number of frames through which gradients flow; -1: all",
        check=_is_not_cut,
        inert="gradients go through whole sequences",
    )
    patch_atfork: Any = setting(None, help="switch for forking processes", inert="loading processes start without fork")
    use_train_proc_manager: Any = setting(
        None, help="start the training again if it fails", inert="returnn-tf submit requeues jobs"
    )
    watch_memory: Any = setting(
        None, help="log the memory of all processes", inert="tf_log_memory_usage shows the memory of each step"
    )
    reinit_network_each_epoch: Any = setting(
        None, help="rebuild the network in each epoch", inert="it is rebuilt when its dict changes"
    )
    restart_after_num_net_reinit: Any = setting(
        None,
        help="restart after this number of new networks",
        inert="a network that is replaced leaves no memory behind",
    )
    debug_shell_in_runner: Any = setting(None, help="open a shell in each step", inert=_SHELL)
    debug_shell_first_compute: Any = setting(None, help="open a shell before the first step", inert=_SHELL)
    debug_save_updater_vars: Any = setting(
        None,
        help="write the state of the optimizer to checkpoints",
        inert="every checkpoint of a training has it, in a separate file",
    )
    debug_grad_summaries: bool = setting(
        False,
        help="the gradient of each parameter in TensorBoard events",
        inert="events hold the norm of the whole gradient",
    )
    log_grad_norm: Any = setting(
        None, help="log the norm of the gradient", inert="events hold the norm of the whole gradient"
    )
    debug_print_layer_output_shape: bool = setting(
        False,
        help="print the shape of the output of each layer in each step",
        inert="task replay shows the sizes of all layers for a step, returnn-tf check the dims",
    )
    flat_net_construction: bool = setting(
        False, help="build networks without recursion", inert="networks of any depth are planned"
    )
    need_data: bool = setting(
        True, help="False if a task needs no data", inert="a dataset is opened only when a task reads it"
    )
    combine_labels: Any = setting(None, help="older option of task forward", inert="outputs are written unchanged")
    sil_label_idx: Any = setting(None, help="index of silence", inert=_NO_ANALYSIS)
    ctc_prior_file: Any = setting(None, help="priors of a CTC output", inert=_NO_ANALYSIS)
    analyze_dataset: Any = setting(None, help="dataset to analyze", inert=_NO_ANALYSIS)
    statistics_save_prefix: Any = setting(None, help="prefix of files with statistics", inert=_NO_ANALYSIS)
    statistics_dtype: Any = setting(None, help="dtype of statistics", inert=_NO_ANALYSIS)
    data_key: Any = setting(None, help="data key to analyze", inert=_NO_ANALYSIS)
    web_server_port: Any = setting(
        None, help="port of task search_server", inert="the task search_server does not exist"
    )
    hyper_param_tuning: Any = setting(
        None, help="options of task hyper_param_tuning", inert="the task hyper_param_tuning does not exist"
    )
