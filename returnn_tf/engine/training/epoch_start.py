"""Decisions at the beginning of an epoch: its network and settings, and the model from which it goes on."""

from __future__ import annotations

from returnn_tf.engine.pretrain.schedule import EpochNetwork
from returnn_tf.engine.training.best_model import best_epoch, load_best
from returnn_tf.engine.training.parts import TrainingParts


def entry_of(parts: TrainingParts, epoch: int) -> EpochNetwork:
    """Return network and settings of an epoch that begins now; they may depend on what earlier ones wrote."""
    planned = parts.schedule.at(epoch)
    if not planned.same_network(parts.setup.entry):
        parts.end_dumps(complete=True)
    entry = parts.schedule.renewed(epoch)
    if not entry.same_settings(planned):
        parts.data.forget_started()
    return entry


def return_to_best(parts: TrainingParts, epoch: int) -> None:
    """Load the best model so far, if ``use_last_best_model`` says so.

    :param epoch: the one to be trained
    """
    best = best_epoch(parts.config, parts.learning_rates, parts.schedule, epoch)
    if best is None:
        return
    trainer = parts.setup.trainer
    if parts.world.is_chief:
        parts.saver.wait()
        load_best(parts.config, trainer, best, epoch)
    trainer.ranks.broadcast(trainer)
