"""The setting ``fine_tune``: training that starts with the parameters of another model."""

from __future__ import annotations

import dataclasses
from typing import Optional

from returnn_tf.config import Config
from returnn_tf.config.derived import derived
from returnn_tf.config.errors import SettingError
from returnn_tf.config.options import from_options
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.fine_tuning import FineTune, FineTuningSettings, Lora, NewLabels

SETTING = "fine_tune"


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """What ``fine_tune`` says.

    :param lora: its dict of this name, or None
    :param labels: its dict ``new_labels``, or None
    """

    options: FineTune
    lora: Optional[Lora]
    labels: Optional[NewLabels]


def fine_tuning_of(config: Config) -> Optional[FineTuning]:
    """Return what ``fine_tune`` says; None without it.

    :raises ConfigError: an unknown option, a wrong value, or another setting that says where training starts
    """
    settings, checkpoints = FineTuningSettings(config), CheckpointSettings(config)
    if settings.fine_tune is None:
        return None
    where = settings.describe_source(SETTING)
    options: FineTune = from_options(FineTune, settings.fine_tune, where=where)
    for name in ("import_model_train_epoch1", "init_params"):
        if checkpoints.is_set(name):
            raise SettingError("%s: 'from' and %s both say where training starts. Remove one of them." % (where, name))
    return FineTuning(
        options,
        None if options.lora is None else from_options(Lora, options.lora, where="%s['lora']" % SETTING),
        None
        if options.new_labels is None
        else from_options(NewLabels, options.new_labels, where="%s['new_labels']" % SETTING),
    )


def without_fine_tuning(config: Config) -> Config:
    """Return the config of tasks other than training: their parameters are those of a checkpoint, and plain ones."""
    return config if FineTuningSettings(config).fine_tune is None else derived(config, {}, hidden={SETTING: None})
