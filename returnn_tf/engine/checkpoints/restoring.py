"""Resuming from a checkpoint: parameters, optimizer state, learning rates, and the position in the epoch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Optional

from numpy.typing import NDArray

from returnn_tf.config import Config
from returnn_tf.config.errors import CheckpointDataError, CheckpointError
from returnn_tf.config.settings import setting_by_key
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.engine.checkpoints import adapters, checkpoint
from returnn_tf.engine.checkpoints import params as checkpoint_params
from returnn_tf.engine.checkpoints.checkpoint import CheckpointInfo
from returnn_tf.engine.checkpoints.selection import ModelChoice
from returnn_tf.engine.learning_rate.control import LearningRateControl
from returnn_tf.engine.learning_rate.file import EpochData, parse
from returnn_tf.engine.passes.progress import Progress
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.support.fingerprint import changes
from returnn_tf.engine.update.averages import training_values
from returnn_tf.logging.log import log

_MAX_LISTED = 10


def restore(trainer: StepTrainer, choice: ModelChoice) -> None:
    """Load parameters, and when resuming training also global step and optimizer state.

    :param choice: with a path
    :raises DataError: the checkpoint does not fit the network
    """
    assert choice.path is not None
    values = checkpoint.read(choice.path)
    state = checkpoint.read_state(choice.path) if choice.epoch else {}
    values, state = training_values(*adapters.training_values(trainer.net, values, state, choice.path))
    checkpoint_params.assign(
        trainer.net.stored_params,
        values,
        source="The checkpoint %s" % choice.path,
        ignore_missing=CheckpointSettings(trainer.config).load_ignore_missing_vars,
    )
    log.write(3, "Loaded %s" % choice.path)
    if not choice.epoch:
        return
    trainer.net.global_step.assign(checkpoint.step_of(values))
    trainer.restore_kept_states(state, values)
    state = state or trainer.updater.state_of_tf1(values, checkpoint.step_of(values))
    fresh = restore_state(trainer, state)
    if fresh:
        what = "all of it" if not state else ", ".join(fresh[:5]) + (", ..." if len(fresh) > 5 else "")
        log.write(
            2, "The optimizer state is not in %s and starts from scratch: %s" % (os.path.basename(choice.path), what)
        )


def restore_state(trainer: StepTrainer, values: Mapping[str, NDArray[Any]]) -> list[str]:
    """Set the state of a trainer whose parameters have their values; return the names without a fitting value.

    These stay as they are, but averages begin with their parameters.
    """
    left = checkpoint_params.assign_matching(trainer.state(), values)
    trainer.averages.begin(left)
    return left


class CheckpointManifest:
    """The facts in the manifest of a checkpoint about the run which wrote it; empty without a manifest.

    :raises DataError: the manifest is damaged
    """

    def __init__(self, config: Config, choice: ModelChoice) -> None:
        self._path = choice.path or ""
        self._info: Optional[CheckpointInfo] = checkpoint.info(self._path) if choice.path is not None else None
        self._own = self._path.startswith("%s." % CheckpointSettings(config).model)
        self._within = choice.step is not None
        if self._within and (self._info is None or self._info.progress is None):
            raise CheckpointDataError(
                "The checkpoint %s was written mid-epoch, but its manifest with the position is missing. Copy "
                "all its files, or load the checkpoint of an epoch." % self._path
            )

    def log_changes(self, now: Mapping[str, str]) -> None:
        """Log the settings which differ from those of the run which made the checkpoint.

        :param now: all settings, see `fingerprint.settings`
        """
        if self._info is None or not self._own or not self._info.settings:
            return
        infos = {line: setting_by_key().get(line.split()[0]) for line in changes(self._info.settings, now)}
        found = [line for line, info in infos.items() if info is None or not info.between_runs]
        known = [line for line in found if infos[line] is not None]
        others = len(found) - len(known)
        if known:
            listed = ", ".join(known[:_MAX_LISTED] + ["..."] * (len(known) > _MAX_LISTED))
            more = "; and %i other name%s of the config" % (others, "s" * (others > 1)) if others else ""
            log.write(2, "The config has changed since %s was saved: %s%s" % (self._path, listed, more))

    def restore_rates(self, control: LearningRateControl) -> None:
        """Add learning rates and scores of epochs which the learning-rate file lacks."""
        if self._info is not None and self._own:
            stored = parse(self._info.learning_rates)
            self._compare_rates(stored, control)
            added = [str(epoch) for epoch in control.add_epochs(stored) if stored[epoch].error]
            if added and control.filename:
                log.write(2, "%s lacks epoch %s; taken from %s" % (control.filename, ", ".join(added), self._path))

    def _compare_rates(self, stored: Mapping[int, EpochData], control: LearningRateControl) -> None:
        """Warn if the learning-rate file has the epochs of another run."""
        others = [epoch for epoch in stored if epoch in control.epochs]
        others = [epoch for epoch in others if _trained(stored[epoch]) != _trained(control.epochs[epoch])]
        if others and control.filename:
            log.warn(
                "%s and the checkpoint %s have different rates or training scores of epoch %s, so the file is that of "
                "another run. Set another learning_rate_file, or delete it: then the rates and scores in the "
                "checkpoint count." % (control.filename, self._path, ", ".join(map(str, others)))
            )

    def stale_rates(self, control: LearningRateControl, first_epoch: int) -> Optional[str]:
        """Return a warning if the learning-rate file has scores of epochs that are still to be trained.

        The epoch after the checkpoint may have some: its training can end before the next checkpoint is written.

        :param control: as read from the file
        :param first_epoch: the first one to train
        """
        known = first_epoch if self._own and self._info is not None else first_epoch - 1
        epochs = sorted(epoch for epoch, data in control.epochs.items() if epoch > known and _trained(data)[1])
        if not epochs or not control.filename:
            return None
        return (
            "%s has the rates and scores of epoch %s from an earlier run, and this run has yet to train them: it takes "
            "their rates from the file, whatever learning_rate says, and replaces their scores. To start over, delete "
            "or move the file, or set another learning_rate_file."
            % (control.filename, epochs[0] if len(epochs) == 1 else "%i to %i" % (epochs[0], epochs[-1]))
        )

    def progress(self, data: Mapping[str, str]) -> Optional[Progress]:
        """Return the position within the epoch; None at its start.

        :param data: see `progress.data_settings`
        :raises ConfigError: the position is no longer valid, because the batches have changed
        """
        if not self._within:
            return None
        assert self._info is not None
        found = Progress.from_json(self._info.progress, self._path)
        self._check_same(found, "these settings have changed", changes(found.data, data))
        log.write(3, "Resuming within epoch %i after %i batches" % (found.epoch, found.passed.steps))
        return found

    def check_data(self, found: Progress, facts: Mapping[str, str]) -> None:
        """Check that the training data is still the same (for a checkpoint within an epoch).

        :param found: the position within the epoch
        :param facts: of the training data, see `data_facts`
        :raises ConfigError: the data differs from that of the run which wrote the checkpoint, under the same settings
        """
        if found.facts:
            changed = changes(found.facts, facts)
            self._check_same(found, "the training data has changed, though its settings have not", changed)

    def _check_same(self, found: Progress, what: str, changed: list[str]) -> None:
        if changed:
            raise CheckpointError(
                "%s was saved in the middle of epoch %i, after %i batches; with other batches this position is "
                "meaningless, and %s: %s. Undo the change; or, to repeat this epoch with it, delete the files %s.*"
                % (
                    self._path,
                    found.epoch,
                    found.passed.steps,
                    what,
                    ", ".join(changed),
                    self._path.rpartition(".")[0] + ".step*",
                )
            )


def _trained(data: EpochData) -> tuple[float, dict[str, str]]:
    """Return the rate of an epoch and its scores on the training data, as texts: NaN is NaN."""
    return data.learning_rate, {key: repr(value) for key, value in data.error.items() if key.startswith("train_")}
