"""When checkpoints of a training are written, and which ones are deleted; restoring a training from one."""

from __future__ import annotations

import os
from typing import Any, Optional

from returnn_tf.engine import checkpoint, checkpoint_params, model_dir
from returnn_tf.engine.checkpoint import CheckpointInfo
from returnn_tf.engine.cleanup import epochs_to_delete, options_from_config
from returnn_tf.engine.fingerprint import fingerprint
from returnn_tf.engine.model_selection import ModelChoice, find_checkpoints
from returnn_tf.engine.trainer import Trainer
from returnn_tf.log import bytes_text, log

_MIN_KEPT = 2  # so many checkpoints stay, whatever the options say


class Saver:
    """The checkpoints of a training under the path prefix ``model``. Without ``model`` nothing is written."""

    def __init__(self, config: Any) -> None:
        """
        :param config: Config
        :raises ConfigError: wrong options, or the folder can't be written
        """
        self.model: Optional[str] = config.str("model", "") or None
        self._interval = max(config.int("save_interval", 1), 1)
        self._seed = config.int("random_seed", 42)
        self._fingerprint = fingerprint(config)
        self._cleanup = options_from_config(config)
        if self.model is not None:
            model_dir.prepare(self.model)
        else:
            log.warn("The config has no model = '<path prefix>', so the trained parameters will not be saved.")

    def save(self, trainer: Trainer, epoch: int, *, last: bool = False, pretrain: bool = False) -> None:
        """Writes the checkpoint of an epoch, if it is one's turn.

        :param epoch: complete by now; 0: the initial parameters
        :param last: there will be no other
        :param pretrain: the name says that the epoch was one of pretraining
        """
        if self.model is None or (epoch % self._interval and not last):
            return
        prefix = model_dir.prefix_of_epoch(self.model, epoch, pretrain=pretrain)
        info = CheckpointInfo(epoch, trainer.step_count, self._seed, self._fingerprint)
        checkpoint.save(prefix, trainer.net.params, trainer.state(), info)
        model_dir.write_index(self.model)
        log.write(3, "Saved %s" % prefix)

    def clean_up(self, scores: Any) -> None:
        """Deletes old checkpoints as ``cleanup_old_models`` says, once the newest one has proven whole.

        :param scores: epoch -> EpochData
        """
        if self.model is None or self._cleanup is None:
            return
        stored = find_checkpoints(self.model)
        delete = epochs_to_delete(stored, scores, self._cleanup)
        delete = delete[: max(len(stored) - _MIN_KEPT, 0)]
        if not delete:
            return
        reason = checkpoint.defect(stored[max(stored)])
        if reason is not None:
            log.warn("The newest checkpoint is not whole (%s), so no old one is deleted." % reason)
            return
        freed = sum(checkpoint.delete(stored[epoch]) for epoch in delete)
        model_dir.write_index(self.model)
        log.write(3, "Deleted the checkpoints of epochs %s: %s" % (", ".join(map(str, delete)), bytes_text(freed)))


def restore(trainer: Trainer, choice: ModelChoice) -> None:
    """Loads parameters, and for a training that goes on also step counter and optimizer state.

    :param choice: with a path
    :raises DataError: the checkpoint does not fit the network
    """
    assert choice.path is not None
    values = checkpoint.read(choice.path)
    checkpoint_params.assign(trainer.net.params, values, source="The checkpoint %s" % choice.path)
    log.write(3, "Loaded %s" % choice.path)
    if not choice.epoch:
        return
    if checkpoint.GLOBAL_STEP in values:
        trainer.global_step.assign(int(values[checkpoint.GLOBAL_STEP]))
    state = checkpoint.read_state(choice.path)
    fresh = checkpoint_params.assign_matching(trainer.state(), state)
    if fresh:
        what = "all of it" if not state else ", ".join(fresh[:5]) + (", ..." if len(fresh) > 5 else "")
        log.write(
            2, "The state of the optimizer is not in %s, it starts anew: %s" % (os.path.basename(choice.path), what)
        )
