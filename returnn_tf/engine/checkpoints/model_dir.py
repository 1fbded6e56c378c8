"""The folder with the checkpoints of a run: list them, choose the newest intact one, check that it is writable."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any, Callable, Optional

from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.config.settings import CheckpointSettings, TaskSettings, TrainingSettings
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.selection import (
    ModelChoice,
    checkpoint_exists,
    find_checkpoints,
    find_step_checkpoints,
    select_model,
)
from returnn_tf.engine.support import atomic_files as files
from returnn_tf.engine.support.start_epoch import start_epoch_fixed

#: Suffixes after the name of the model in temporary names; strict, so as not to match files of other models.
_TEMPORARY = r"(\.(pretrain\.)?\d+(\.step\d+)?(\.meta)?|\.probe|\.checkpoint|\.lock|\.status\.json|\.settings\.json)?"


def written_model(config: Config) -> str:
    """Return the path prefix of the files that a training writes; empty without ``model``, and with ``dry_run``."""
    return "" if TaskSettings(config).dry_run else CheckpointSettings(config).model


def prefix_of_epoch(model: str, epoch: int, *, pretrain: bool = False) -> str:
    """Return the path prefix of the checkpoint of an epoch, e.g. ``net.012`` or ``net.pretrain.003``."""
    return "%s%s.%03i" % (model, ".pretrain" if pretrain else "", epoch)


def prefix_of_step(model: str, epoch: int, step: int) -> str:
    """Return the path prefix of a mid-epoch checkpoint, e.g. ``net.012.step7300``; no epoch has this name."""
    return "%s.%03i.step%i" % (model, epoch, step)


def choose_intact(config: Config, on_defect: Callable[[str, str], None]) -> ModelChoice:
    """Return the choice of `choose_model`, but skip damaged own checkpoints in favour of the newest intact one.

    :param on_defect: called with path prefix and reason for each skipped checkpoint
    :raises ConfigError: the config selects a checkpoint which does not exist
    :raises DataError: the checkpoint selected by the config, or every own one, is damaged
    """
    model = CheckpointSettings(config).model
    own, steps = find_checkpoints(model), find_step_checkpoints(model)
    _forget_unfinished(own, on_defect)
    _forget_unfinished(steps, on_defect)
    bad: list[str] = []
    while True:
        choice = select_model(config, own, checkpoint_exists, steps)
        if choice.path is None:
            if bad:
                raise DataError(
                    "None of the checkpoints %s can be used. Restore one from a backup, or delete them to start over."
                    % ", ".join(sorted(os.path.basename(path) for path in bad))
                )
            return choice
        reason = checkpoint.validate(choice.path)
        if reason is None:
            return choice
        if not (_drop(own, choice.path) if choice.step is None else _drop(steps, choice.path)):
            raise DataError("The checkpoint %s can't be used: %s." % (choice.path, reason))
        on_defect(choice.path, reason)
        bad.append(choice.path)


def leftover_warning(config: Config, choice: ModelChoice) -> Optional[str]:
    """Return a warning if ``start_epoch`` is at or before epochs with checkpoints of an earlier run.

    Later runs resume from the newest of all: an old one, until this run has reached its epoch.

    :raises ConfigError: these include mid-epoch ones, which users may not know of and which no new one would replace
    """
    model = CheckpointSettings(config).model
    if not start_epoch_fixed(config):
        return None
    where, first = TrainingSettings(config).describe_source("start_epoch"), choice.start_epoch
    within = {epoch for (epoch, _), path in find_step_checkpoints(model).items() if not checkpoint.unfinished(path)}
    mid_epoch = ["%s.step*" % prefix_of_epoch(model, epoch) for epoch in sorted(within) if epoch >= first]
    if mid_epoch:
        raise ConfigError(
            "%s: an earlier run has left mid-epoch checkpoints of epochs which would be trained again, and a run "
            "without start_epoch would resume from those, not from the new ones. Remove start_epoch to resume from "
            "the newest now; or, to train from epoch %i on, delete or move the files %s; or set another model."
            % (where, first, ", ".join(mid_epoch))
        )
    again = [epoch for epoch in sorted(find_checkpoints(model)) if epoch >= first]
    if not again:
        return None
    return (
        "%s: an earlier run has left checkpoints of the epochs %s. Each stays until its epoch is trained again; before "
        "the last one is, a run without start_epoch would resume from that one. If it should not, delete or move them."
        % (where, ", ".join(map(str, again)))
    )


def _drop(found: dict[Any, str], path: str) -> bool:
    """Remove the newest entry if it has this path; return whether it had."""
    newest = bool(found) and found[max(found)] == path
    if newest:
        del found[max(found)]
    return newest


def _forget_unfinished(found: dict[Any, str], on_defect: Callable[[str, str], None]) -> None:
    """Leave out checkpoints which a killed process did not finish writing, as if they did not exist."""
    for key, path in list(found.items()):
        if checkpoint.unfinished(path):
            on_defect(path, "its manifest is missing, so writing it was not completed")
            del found[key]


def prepare(model: str) -> None:
    """Create the folder, remove leftovers of killed runs, and check that files can be written.

    :raises ConfigError: it can't be created or written
    """
    folder, name = os.path.split(os.path.abspath(model))
    try:
        os.makedirs(folder, exist_ok=True)
        for entry in os.listdir(folder):
            if re.match(r"\.%s%s\.tmp-" % (re.escape(name), _TEMPORARY), entry):
                path = os.path.join(folder, entry)
                shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.remove(path)
        with files.staging(folder, name + ".probe") as probe, open(os.path.join(probe, "probe"), "wb") as file:
            file.write(b"x")
    except OSError as exc:
        raise not_writable(model, exc) from exc


def not_writable(model: str, exc: OSError) -> ConfigError:
    """Return the error for a checkpoint folder which can't be created or written."""
    return ConfigError(
        "model = %r: the folder %s can't be written (%s). Choose another path or fix its permissions."
        % (model, os.path.dirname(os.path.abspath(model)), exc.strerror or exc)
    )


def write_index(model: str) -> None:
    """Write the file ``checkpoint`` in which TensorFlow's own tools look up the newest one."""
    folder, owner = os.path.split(os.path.abspath(model))
    names: list[str] = [os.path.basename(path) for _, path in sorted(find_checkpoints(model).items())]
    if names:
        lines = ['model_checkpoint_path: "%s"' % names[-1]]
        lines += ['all_model_checkpoint_paths: "%s"' % name for name in names]
        files.write_text(os.path.join(folder, "checkpoint"), "\n".join(lines) + "\n", owner=owner)
