"""Task ``cleanup_old_models``: deletes old checkpoints according to the option of the same name."""

from __future__ import annotations

from typing import Any

from returnn_tf.config import Config, ConfigError
from returnn_tf.config.settings import CheckpointSettings, TaskSettings
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.cleanup import CleanupOptions, epochs_to_delete, options_from_config
from returnn_tf.engine.checkpoints.selection import find_checkpoints
from returnn_tf.engine.learning_rate.control import LearningRateControl
from returnn_tf.logging.log import log
from returnn_tf.logging.text import bytes_text
from returnn_tf.tasks.registry import register_task


@register_task("cleanup_old_models")
def cleanup_old_models(config: Config) -> int:
    """Delete old checkpoints; with ``dry_run``, only list them."""
    model = CheckpointSettings(config).model
    if not model:
        raise ConfigError("Task cleanup_old_models needs model = '<path prefix>', where the checkpoints are.")
    options = options_from_config(config) or CleanupOptions()
    dry = TaskSettings(config).dry_run
    stored = find_checkpoints(model)
    delete = epochs_to_delete(stored, LearningRateControl.from_config(config).epochs, options)
    log.write(1, "Checkpoints: %s. To delete: %s" % (_listed(stored), _listed(delete)))
    if not dry and delete:
        reason = checkpoint.validate(stored[max(stored)])
        if reason is not None:
            raise ConfigError("The newest checkpoint is damaged (%s), so no old one is deleted." % reason)
        log.write(1, "Freed %s" % bytes_text(sum(checkpoint.delete(stored[epoch]) for epoch in delete)))
    return 0


def _listed(epochs: Any) -> str:
    return ", ".join(str(epoch) for epoch in sorted(epochs)) or "none"
