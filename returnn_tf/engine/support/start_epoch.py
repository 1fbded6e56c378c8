"""Whether the config fixes the epoch at which training starts."""

from __future__ import annotations

from returnn_tf.config import Config
from returnn_tf.config.settings.training import TrainingSettings


def start_epoch_fixed(config: Config) -> bool:
    """Return whether ``start_epoch`` fixes where training starts, whatever checkpoints exist."""
    return TrainingSettings(config).start_epoch != "auto"
