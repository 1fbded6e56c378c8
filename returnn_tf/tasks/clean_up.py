"""Task ``cleanup_old_models``: deletes old checkpoints according to the option of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, Optional

from returnn_tf.config import Config
from returnn_tf.config.errors import CommandError
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.cleanup import CleanupOptions, epochs_to_delete, options_from_config
from returnn_tf.engine.checkpoints.selection import find_checkpoints
from returnn_tf.engine.learning_rate.control import LearningRateControl
from returnn_tf.engine.learning_rate.file import EpochData
from returnn_tf.logging.log import log
from returnn_tf.logging.text import bytes_text
from returnn_tf.tasks.registry import register_task


@register_task("cleanup_old_models")
def cleanup_old_models(config: Config) -> int:
    """Delete old checkpoints; with ``dry_run``, only list them."""
    model = CheckpointSettings(config).model
    if not model:
        raise CommandError("Task cleanup_old_models needs model = '<path prefix>', where the checkpoints are.")
    options = options_from_config(config) or CleanupOptions()
    scores = LearningRateControl.from_config(config).epochs
    clean_up(model, scores, options, dry=TaskSettings(config).dry_run)
    return 0


def clean_up(
    model: str,
    scores: Mapping[int, EpochData],
    options: CleanupOptions,
    *,
    dry: bool,
    confirm: Optional[Callable[[list[str]], bool]] = None,
) -> None:
    """Delete the old checkpoints of a model.

    :param model: path prefix, as the setting ``model``
    :param dry: only list them
    :param confirm: function(paths to delete) -> whether to do so
    :raises ConfigError: the newest checkpoint is damaged
    """
    stored = find_checkpoints(model)
    delete = epochs_to_delete(stored, scores, options)
    log.write(1, "Checkpoints: %s. To delete: %s" % (_listed(stored), _listed(delete)))
    if dry or not delete:
        return
    reason = checkpoint.validate(stored[max(stored)])
    if reason is not None:
        raise CommandError("The newest checkpoint is damaged (%s), so no old one is deleted." % reason)
    if confirm is None or confirm([stored[epoch] for epoch in delete]):
        log.write(1, "Freed %s" % bytes_text(sum(checkpoint.delete(stored[epoch]) for epoch in delete)))


def _listed(epochs: Any) -> str:
    return ", ".join(str(epoch) for epoch in sorted(epochs)) or "none"
