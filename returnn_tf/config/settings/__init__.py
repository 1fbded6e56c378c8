"""The settings of a config, each declared once: type, default, help and effect.

Read one through the class of its topic, which is in the module of its name: ``TrainingSettings(config).num_epochs``.
"""

from returnn_tf.config.settings.catalog import (
    all_settings,
    misspelt,
    register_settings,
    setting_by_key,
    setting_groups,
    settings_with,
)
from returnn_tf.config.settings.checking import check_settings, ignored_settings, misspelt_keys, why_ignored
from returnn_tf.config.settings.declaration import Effect, Setting, SettingGroup, option_of, setting

__all__ = [
    "Effect",
    "Setting",
    "SettingGroup",
    "all_settings",
    "check_settings",
    "ignored_settings",
    "misspelt",
    "misspelt_keys",
    "option_of",
    "register_settings",
    "setting",
    "setting_by_key",
    "setting_groups",
    "settings_with",
    "why_ignored",
]
