"""Going on from a checkpoint: parameters, state of the optimizer, learning rates, and the position in the epoch."""

from __future__ import annotations

import os
from typing import Any, List, Mapping, Optional

from returnn_tf.config import ConfigError, DataError
from returnn_tf.config.known_keys import KNOWN_KEYS
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints import params as checkpoint_params
from returnn_tf.engine.checkpoints.checkpoint import CheckpointInfo
from returnn_tf.engine.checkpoints.selection import ModelChoice
from returnn_tf.engine.learning_rate.control import LearningRateControl
from returnn_tf.engine.learning_rate.file import parse
from returnn_tf.engine.passes.progress import Progress
from returnn_tf.engine.passes.trainer import Trainer
from returnn_tf.engine.support.fingerprint import changes
from returnn_tf.logging.log import log

_MAX_LISTED = 10
#: Settings which may differ from run to run without a word.
_ANY_TIME = frozenset(
    "cleanup_old_models load_epoch log log_format log_verbosity num_epochs profile save_every_minutes save_every_steps "
    "save_interval start_epoch task".split()
)


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
    trainer.net.global_step.assign(checkpoint.step_of(values))
    state = checkpoint.read_state(choice.path)
    fresh = checkpoint_params.assign_matching(trainer.state(), state)
    if fresh:
        what = "all of it" if not state else ", ".join(fresh[:5]) + (", ..." if len(fresh) > 5 else "")
        log.write(
            2, "The state of the optimizer is not in %s, it starts anew: %s" % (os.path.basename(choice.path), what)
        )


class Resumption:
    """What the manifest of the chosen checkpoint says about the training which made it; nothing if there is none."""

    def __init__(self, config: Any, choice: ModelChoice) -> None:
        """
        :param config: Config
        :raises DataError: the manifest is damaged
        """
        self._path = choice.path or ""
        self._info: Optional[CheckpointInfo] = checkpoint.info(self._path) if choice.path is not None else None
        self._own = self._path.startswith("%s." % config.str("model", ""))
        self._within = choice.step is not None
        if self._within and (self._info is None or self._info.progress is None):
            raise DataError(
                "The checkpoint %s was made within an epoch, but its manifest with the position is missing. Copy "
                "all its files, or load the checkpoint of an epoch." % self._path
            )

    def tell_changes(self, now: Mapping[str, str]) -> None:
        """A line about the settings which are not those of the run which made the checkpoint.

        :param now: all settings, see `fingerprint.settings`
        """
        if self._info is None or not self._own or not self._info.settings:
            return
        found = [line for line in changes(self._info.settings, now) if line.split()[0] not in _ANY_TIME]
        known = [line for line in found if line.split()[0] in KNOWN_KEYS]
        others = len(found) - len(known)
        if known:
            listed = ", ".join(known[:_MAX_LISTED] + ["..."] * (len(known) > _MAX_LISTED))
            more = "; and %i other name%s of the config" % (others, "s" * (others > 1)) if others else ""
            log.write(2, "The config has changed since %s was saved: %s%s" % (self._path, listed, more))

    def restore_rates(self, control: LearningRateControl) -> None:
        """Learning rates and scores of epochs which the learning-rate file lacks, if there is one at all."""
        if self._info is not None and self._own:
            stored = parse(self._info.learning_rates)
            added = [str(epoch) for epoch in control.add_epochs(stored) if stored[epoch].error]
            if added and control.filename:
                log.write(2, "%s lacks epoch %s; taken from %s" % (control.filename, ", ".join(added), self._path))

    def progress(self, data: Mapping[str, str]) -> Optional[Progress]:
        """The position within the epoch; None at its begin.

        :param data: see `progress.data_settings`
        :raises ConfigError: it means nothing any more, because the batches are others now
        """
        if not self._within:
            return None
        assert self._info is not None
        found = Progress.from_json(self._info.progress, self._path)
        self._check_same(found, "these settings have changed", changes(found.data, data))
        log.write(3, "Going on within epoch %i after %i batches" % (found.epoch, found.passed.steps))
        return found

    def check_data(self, found: Progress, facts: Mapping[str, str]) -> None:
        """
        :param found: the position within the epoch
        :param facts: of the training data, see `data_facts`
        :raises ConfigError: the data is not that of the run which made the checkpoint, under the same settings
        """
        if found.facts:
            changed = changes(found.facts, facts)
            self._check_same(found, "the training data has changed, though its settings have not", changed)

    def _check_same(self, found: Progress, what: str, changed: List[str]) -> None:
        if changed:
            raise ConfigError(
                "%s was saved in the middle of epoch %i, after %i batches; with other batches that is no position, "
                "and %s: %s. Undo the change; or, to do this epoch anew with it, delete the files %s.*"
                % (
                    self._path,
                    found.epoch,
                    found.passed.steps,
                    what,
                    ", ".join(changed),
                    self._path.rpartition(".")[0] + ".step*",
                )
            )
