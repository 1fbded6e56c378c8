"""Decisions at the beginning of an epoch: its network and settings, and the model from which it goes on."""

from __future__ import annotations

from returnn_tf.engine.pretrain.schedule import EpochNetwork
from returnn_tf.engine.training.best_model import best_epoch, load_best
from returnn_tf.engine.training.set_up import TrainingRun


def entry_of(run: TrainingRun, epoch: int) -> EpochNetwork:
    """Return network and settings of an epoch that begins now; they may depend on what earlier ones wrote."""
    planned = run.schedule.at(epoch)
    if not planned.same_network(run.current.entry):
        run.end_dumps(complete=True)
    entry = run.schedule.renewed(epoch)
    if not entry.same_settings(planned):
        run.data.forget_started()
    return entry


def return_to_best(run: TrainingRun, epoch: int) -> None:
    """Load the best model so far, if ``use_last_best_model`` says so.

    :param epoch: the one to be trained
    """
    best = best_epoch(run.config, run.learning_rates, run.schedule, epoch)
    if best is None:
        return
    trainer = run.current.trainer
    if run.world.is_chief:
        run.saver.wait()
        load_best(run.config, trainer, best, epoch)
    trainer.ranks.broadcast(trainer)
