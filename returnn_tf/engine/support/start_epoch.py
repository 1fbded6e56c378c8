"""Whether the config fixes the epoch at which training starts."""

from __future__ import annotations

from returnn_tf.config import Config
from returnn_tf.config.settings import TrainingSettings


def begins_anew(config: Config) -> bool:
    """Whether ``start_epoch`` says where a training begins, whatever there is."""
    return TrainingSettings(config).start_epoch != "auto"
