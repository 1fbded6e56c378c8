"""The settings of a config, each declared once: type, default, help and effect.

Read one through the class of its topic: ``TrainingSettings(config).num_epochs``.
"""

from returnn_tf.config.settings.catalog import (
    GROUPS,
    all_settings,
    misspelt,
    register_settings,
    setting_by_key,
    setting_groups,
    settings_with,
)
from returnn_tf.config.settings.checking import check_settings, ignored_settings, why_ignored
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.data import DataSettings
from returnn_tf.config.settings.declaration import Effect, Setting, SettingGroup, option_of, setting
from returnn_tf.config.settings.horovod import HorovodSettings
from returnn_tf.config.settings.learning_rate import LearningRateSettings
from returnn_tf.config.settings.logging import LoggingSettings
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.settings.older import OlderSettings
from returnn_tf.config.settings.rasr import RasrSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.config.settings.training import DEFAULT_SEED, TrainingSettings
from returnn_tf.config.settings.update import UpdateSettings

__all__ = [
    "DEFAULT_SEED",
    "GROUPS",
    "CheckpointSettings",
    "DataSettings",
    "Effect",
    "HorovodSettings",
    "LearningRateSettings",
    "LoggingSettings",
    "NetworkSettings",
    "OlderSettings",
    "RasrSettings",
    "Setting",
    "SettingGroup",
    "TaskSettings",
    "TrainingSettings",
    "UpdateSettings",
    "all_settings",
    "check_settings",
    "ignored_settings",
    "misspelt",
    "option_of",
    "register_settings",
    "setting",
    "setting_by_key",
    "setting_groups",
    "settings_with",
    "why_ignored",
]
