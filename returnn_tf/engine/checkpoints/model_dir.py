"""The folder with the checkpoints of a run: list them, choose the newest intact one, check that it is writable."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Container, Mapping
from typing import Any, Callable, Optional, TypeVar

from numpy.typing import NDArray

from returnn_tf.config import Config
from returnn_tf.config.errors import CheckpointDataError, CheckpointError, ConfigError, DataError
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.selection import (
    ModelChoice,
    checkpoint_exists,
    find_checkpoints,
    find_step_checkpoints,
    select_model,
)
from returnn_tf.engine.support import atomic_files as files

#: Suffixes after the name of the model in temporary names; strict, so as not to match files of other models.
_TEMPORARY = (
    r"(\.(pretrain\.)?\d+(\.step\d+)?(\.meta)?|\.probe|\.checkpoint|\.lock|\.(status|settings|batches|trackers)\.json)?"
)

_Key = TypeVar("_Key")
Values = Mapping[str, NDArray[Any]]
_UNFINISHED = "its manifest is missing, so writing it was not completed"
_PAUSE_SECONDS = 0.5  # more than a process needs to delete or publish the files of a checkpoint


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
    """Return the choice of `select_model`, but skip damaged own checkpoints in favour of the newest intact one.

    A run may write or delete checkpoints at the same time.

    :param on_defect: called with path prefix and reason for each skipped checkpoint
    :raises ConfigError: the config selects a checkpoint which does not exist
    :raises DataError: the checkpoint selected by the config, or every own one, is damaged
    """
    model = CheckpointSettings(config).model
    skipped: dict[str, str] = {}
    while True:
        own = _without(find_checkpoints(model, damaged=True), skipped)
        steps = _without(find_step_checkpoints(model, damaged=True), skipped)
        try:
            choice = select_model(config, own, checkpoint_exists, steps)
        except ConfigError:
            if skipped:  # it was chosen by the config
                raise CheckpointDataError(_unusable(*list(skipped.items())[-1])) from None
            raise
        reason = None if choice.path is None else _defect(choice.path)
        if choice.path is None or reason is None:
            for path, why in skipped.items():
                on_defect(path, why)
            bad = [path for path, why in skipped.items() if why != _UNFINISHED]
            if bad and choice.path is None:
                raise CheckpointDataError(
                    "None of the checkpoints %s can be used. Restore one from a backup, or delete them to start over."
                    % ", ".join(sorted(os.path.basename(path) for path in bad))
                )
            return choice
        if _is_changing(choice.path):
            continue
        if choice.path not in (_newest(own), _newest(steps)):
            raise CheckpointDataError(_unusable(choice.path, reason))
        skipped[choice.path] = reason


def open_intact(config: Config, on_defect: Callable[[str, str], None]) -> tuple[ModelChoice, Values]:
    """Return the choice of `choose_intact` and the values of its bundle; empty without a checkpoint.

    If a run deletes the checkpoint before it is opened, another one is chosen.

    :raises ConfigError: see `choose_intact`; DataError: likewise
    """
    while True:
        choice = choose_intact(config, on_defect)
        if choice.path is None:
            return choice, {}
        try:
            return choice, checkpoint.StoredValues(choice.path, checked=True)
        except DataError:
            if checkpoint_exists(choice.path):
                raise


def _without(found: Mapping[_Key, str], skipped: Container[str]) -> dict[_Key, str]:
    return {key: path for key, path in found.items() if path not in skipped}


def _defect(path: str) -> Optional[str]:
    return _UNFINISHED if checkpoint.unfinished(path) else checkpoint.validate(path)


def _unusable(path: str, reason: str) -> str:
    return "The checkpoint %s can't be used: %s." % (path, reason.rstrip("."))


def _newest(found: Mapping[Any, str]) -> Optional[str]:
    return found[max(found)] if found else None


def _is_changing(path: str) -> bool:
    """Return whether a checkpoint with a defect is gone, or is being written or deleted."""
    before = _state_of(path)
    if before:
        time.sleep(_PAUSE_SECONDS)
    return not before or _state_of(path) != before


def _state_of(path: str) -> list[tuple[str, int, int]]:
    """Return names, sizes and times of the files of a checkpoint."""
    found = []
    for name in checkpoint.file_names(path):
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(name)
            found.append((name, status.st_size, status.st_mtime_ns))
    return found


def leftover_warning(config: Config, choice: ModelChoice) -> Optional[str]:
    """Return a warning if ``start_epoch`` is at or before epochs with checkpoints of an earlier run.

    Later runs resume from the newest of all: an old one, until this run has reached its epoch.

    :raises ConfigError: these include mid-epoch ones, which users may not know of and which no new one would replace
    """
    model = CheckpointSettings(config).model
    if TrainingSettings(config).start_epoch == "auto":
        return None
    where, first = TrainingSettings(config).describe_source("start_epoch"), choice.start_epoch
    within = {epoch for (epoch, _), path in find_step_checkpoints(model).items() if not checkpoint.unfinished(path)}
    mid_epoch = ["%s.step*" % prefix_of_epoch(model, epoch) for epoch in sorted(within) if epoch >= first]
    if mid_epoch:
        raise CheckpointError(
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
    return CheckpointError(
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
