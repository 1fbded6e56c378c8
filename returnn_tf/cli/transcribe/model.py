"""Which config and checkpoint belong to the model that a command line names."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.cli.runs.config import config_of
from returnn_tf.cli.runs.run import Run, find_run, of_model
from returnn_tf.cli.shared.arguments import parse_arguments
from returnn_tf.cli.shared.parser import positive
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandDataError, CommandError
from returnn_tf.config.settings.learning_rate import LearningRateSettings
from returnn_tf.engine.checkpoints.selection import checkpoint_exists, epoch_of_path, find_checkpoints
from returnn_tf.engine.learning_rate.control import choose_measure
from returnn_tf.engine.learning_rate.file import best_epochs
from returnn_tf.export.side_file import NAME as SIDE_FILE

BEST = "best"
_SUFFIX = re.compile(r"\.(index|meta|manifest\.json|data-\d{5}-of-\d{5})$")
_EPOCH = re.compile(r"(\.pretrain)?\.\d+(\.step\d+)?$")
_AUDIO = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff")
_EXPORTS = (".onnx", ".tflite", ".pb")
_INSTEAD = "Name it: --config FILE"


@dataclass(frozen=True)
class ChosenModel:
    """A trained model.

    :param config: with the checkpoint to load, for task search
    :param folder: the one from which the config names files
    """

    config: Config
    folder: str


def find_model(
    path: str,
    where: str,
    *,
    config: Optional[str] = None,
    epoch: Optional[str] = None,
    overrides: Sequence[str] = (),
) -> ChosenModel:
    """Return the model at a path: a folder or prefix of checkpoints, one checkpoint, or a config.

    :param where: the command, begin of errors
    :param config: the config of the model, in place of that with which it was trained
    :param epoch: a number, or "best"; default: the newest, or what a config says where it is named as the model
    :param overrides: ``++key value ...``
    :raises ConfigError: there is no such model, its config is not there any more, or the path is that of an export
    :raises DataError: a file of the run is damaged; there is no best epoch
    """
    _check_kind(path, where)
    overrides = [*overrides, "++task", "search"]
    own = os.path.realpath(_SUFFIX.sub("", path) + ".index")[: -len(".index")]
    is_checkpoint = checkpoint_exists(own) and bool(_EPOCH.search(own))
    run = of_model(path, _EPOCH.sub("", own)) if is_checkpoint else find_run(path, overrides)
    if is_checkpoint and epoch is not None:
        raise CommandError("%s: %r is one checkpoint already; --epoch chooses one of a run" % (where, path))
    pairs = parse_arguments(["none.config", *overrides]).overrides
    if config is not None:
        model = [("model", os.path.abspath(run.model))] if run.model else []
        found = ChosenModel(Config.from_files([config], [*pairs, *model]), os.getcwd())
    else:
        found = ChosenModel(*config_of(run, pairs, _INSTEAD))
    choice = _choice(run, own if is_checkpoint else None, epoch, found.config, where)
    found.config.update({**choice, "allow_random_model_init": False})
    return found


def epoch(value: str) -> str:
    """Convert the value of the option ``--epoch``."""
    return value if value == BEST else str(positive(value))


def _check_kind(path: str, where: str) -> None:
    """Check that a path is not that of something else; ConfigError."""
    if os.path.isfile(os.path.join(path, SIDE_FILE)) or path.lower().endswith(_EXPORTS):
        raise CommandError(
            "%s: %r is an exported model, which is for other programs (returnn-tf explain export). Name the "
            "folder of the run from which it was exported." % (where, path)
        )
    if path.lower().endswith(_AUDIO):
        raise CommandError("%s: %r is audio, but the model comes first: %s MODEL AUDIO ..." % (where, path, where))


def _choice(run: Run, checkpoint: Optional[str], epoch: Optional[str], config: Config, where: str) -> dict[str, Any]:
    """Return the settings that choose the checkpoint; none if a config was named, which does it itself."""
    if checkpoint is not None:
        return {"load": checkpoint, "load_epoch": epoch_of_path(checkpoint) or None}
    if epoch is None and run.config is not None:
        return {}
    number = None if epoch is None else _best(run, config, where) if epoch == BEST else int(epoch)
    return {"load": "", "load_epoch": number, "epoch": None}


def _best(run: Run, config: Config, where: str) -> int:
    """Return the epoch with the best score among those of which there is a checkpoint."""
    there = find_checkpoints(run.model)
    scored = {epoch: data for epoch, data in run.scored.items() if epoch in there}
    if not scored:
        raise CommandDataError(
            "%s: --epoch best: %s"
            % (where, run.without_scores() if not run.scored else "there is no checkpoint of an epoch that has scores")
        )
    measures = list(LearningRateSettings(config).learning_rate_control_error_measure or [])
    key = choose_measure(scored[max(scored)].error, measures)
    found = best_epochs(scored, key, 1) if key is not None else []
    if not found:
        raise CommandDataError("%s: --epoch best: no epoch has a finite score %r" % (where, key))
    return found[0]
