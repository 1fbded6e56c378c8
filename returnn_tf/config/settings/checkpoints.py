"""Settings: which checkpoint a run loads, and which ones it writes."""

from __future__ import annotations

from typing import Any, Optional, Union

from returnn_tf.config.options import at_least, file_name
from returnn_tf.config.settings.catalog import register_settings
from returnn_tf.config.settings.declaration import SettingGroup, setting


@register_settings
class CheckpointSettings(SettingGroup):
    """Checkpoints."""

    topic_order = 50

    model: str = setting("", help="path prefix of the checkpoints to write", check=file_name)
    load: str = setting(
        "", help="checkpoint to load; task train uses it only if it has none of its own", check=file_name
    )
    load_epoch: Optional[int] = setting(None, help="epoch of the checkpoint to load", between_runs=True)
    epoch: Optional[int] = setting(
        None, help="epoch of the model for tasks other than train; load_epoch takes precedence"
    )
    allow_random_model_init: bool = setting(
        False, help="tasks other than train: start with random parameters if there is no checkpoint"
    )
    load_ignore_missing_vars: bool = setting(
        False, help="let parameters that a loaded checkpoint lacks start as without it, with a warning"
    )
    load_average: Optional[bool] = setting(
        None,
        help="tasks other than train: load the averages of parameters that a checkpoint has (True), or the parameters "
        "with which training goes on (False); default: those that were evaluated, see weight_average",
        between_runs=True,
    )
    import_model_train_epoch1: str = setting("", help="checkpoint whose parameters start epoch 1", check=file_name)
    init_params: Union[str, dict[str, Any], None] = setting(
        None, help="checkpoint for initial parameters, also of parts: a path, or a dict as in preload_from_files"
    )
    preload_from_files: Optional[dict[str, Any]] = setting(
        None, help="parameters of parts of the network from other checkpoints"
    )
    save_interval: int = setting(1, help="write a checkpoint every n-th epoch", check=at_least(1), between_runs=True)
    save_every_steps: int = setting(
        0, help="also write checkpoints within epochs, every n-th step; 0: none", check=at_least(0), between_runs=True
    )
    save_every_minutes: float = setting(
        0.0, help="also write checkpoints within epochs, after n minutes; 0: none", check=at_least(0), between_runs=True
    )
    save_sharded: bool = setting(
        False,
        help="with several processes: each writes a share of the checkpoints, into one folder that all of them see; "
        "the parameters of an epoch stay in one file",
        between_runs=True,
    )
    write_meta_graph: bool = setting(
        True,
        help="also write the graph of the network beside each checkpoint, as .meta file for other programs; the "
        "environment variable RETURNN_TF_META_GRAPH=0 disables it, too",
        between_runs=True,
    )
    save_epoch1_initial_model: bool = setting(False, help="write the initial model as epoch 0")
    cleanup_old_models: Any = setting(
        None,
        help="delete old checkpoints: True, or a dict with keep_last_n, keep_best_n, keep",
        between_runs=True,
    )
