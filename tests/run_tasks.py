"""Tasks of configs as the command line runs them, without its log and signals."""

from __future__ import annotations

from returnn_tf.config import Config
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.tasks.registry import find_task
from returnn_tf.tasks.setting_checks import check_all_settings


def run_task(config: Config) -> int:
    """Run the task of the setting ``task`` ("train" by default), and return the exit code."""
    check_all_settings(config)
    return find_task(TaskSettings(config).task)(config)
