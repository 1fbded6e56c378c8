"""Which checkpoint a run loads, and at which epoch training starts. No TensorFlow; file names only."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Callable, Optional

from returnn_tf.config import Config
from returnn_tf.config.errors import CheckpointError
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.config.settings.training import TrainingSettings

_SUFFIXES = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_EPOCH = re.compile(r"\.(\d+)(?:\.step(\d+))?$")

Steps = Mapping[tuple[int, int], str]  # (epoch, global step) -> path


@dataclass(frozen=True)
class ModelChoice:
    """The checkpoint to load (a path without ".index"), its epoch, and the next epoch to train.

    ``epoch`` and ``path`` are None if nothing is loaded. Epoch 0 is a model from which training starts afresh. ``step``
    is the global step of a mid-epoch checkpoint; training resumes with the rest of its epoch.
    """

    epoch: Optional[int] = None
    path: Optional[str] = None
    start_epoch: int = 1
    step: Optional[int] = None


def select_model(
    config: Config, own: Mapping[int, str], exists: Callable[[str], bool], steps: Steps = types.MappingProxyType({})
) -> ModelChoice:
    """Return the checkpoint selected by ``task``, ``load``, ``load_epoch``, ``start_epoch`` and related settings.

    Training resumes from its own newest checkpoint; ``load`` is only used without one. Other tasks use ``load``,
    or the own checkpoint of ``load_epoch``, or the newest own one.

    :param own: checkpoints of ``model``: epoch -> path
    :param exists: whether there is a checkpoint at a path
    :param steps: mid-epoch checkpoints of ``model``; only training selects the newest of them on its own
    :raises ConfigError: a selected checkpoint does not exist
    """
    is_train = TaskSettings(config).task == "train"
    asked = CheckpointSettings(config)
    load_epoch = asked.load_epoch
    if load_epoch is None and not is_train:
        load_epoch = asked.epoch
    if is_train:
        return _select_for_training(config, own, exists, load_epoch, steps)
    load = _path_to_load(asked.load, asked.describe_source("load"), exists)
    if load:
        return _loaded(load, load_epoch)
    if load_epoch is not None:
        return _choice(load_epoch, _own_checkpoint(own, load_epoch, asked.describe_source("load_epoch"), steps))
    return _newest(own)


def _select_for_training(
    config: Config, own: Mapping[int, str], exists: Callable[[str], bool], load_epoch: Optional[int], steps: Steps
) -> ModelChoice:
    last = max(TrainingSettings(config).num_epochs, load_epoch or 0)
    own = {epoch: path for epoch, path in own.items() if epoch <= last}
    steps = {key: path for key, path in steps.items() if key[0] <= last}
    asked = CheckpointSettings(config)
    has_load = bool(asked.load)
    if load_epoch is not None and not has_load:
        _own_checkpoint(own, load_epoch, asked.describe_source("load_epoch"))
    if TrainingSettings(config).start_epoch != "auto" and (own or steps or not has_load):
        return _at_start_epoch(config, own)
    if own or steps:
        return _newest(own, steps)
    load = _path_to_load(asked.load, asked.describe_source("load"), exists)
    if load:
        return _loaded(load, load_epoch)
    first = _path_to_load(asked.import_model_train_epoch1, asked.describe_source("import_model_train_epoch1"), exists)
    return _choice(0, first) if first else ModelChoice()


def _at_start_epoch(config: Config, own: Mapping[int, str]) -> ModelChoice:
    start = TrainingSettings(config).start_epoch
    where = TrainingSettings(config).describe_source("start_epoch")
    assert isinstance(start, int)
    if start < 1:
        raise CheckpointError("%s: epochs count from 1, got %d" % (where, start))
    if start == 1:
        return ModelChoice()
    return _choice(start - 1, _own_checkpoint(own, start - 1, where))


def _choice(epoch: int, path: str) -> ModelChoice:
    return ModelChoice(epoch, path, epoch + 1)


def _newest(own: Mapping[int, str], steps: Steps = types.MappingProxyType({})) -> ModelChoice:
    epoch, step = max(steps, default=(0, 0))
    if epoch > max(own, default=0):
        return ModelChoice(epoch, steps[epoch, step], epoch, step)
    return _choice(max(own), own[max(own)]) if own else ModelChoice()


def _loaded(path: str, epoch: Optional[int]) -> ModelChoice:
    step = step_of_path(path)
    if step is None or epoch is not None:
        return _choice(epoch_of_path(path) if epoch is None else epoch, path)
    return ModelChoice(epoch_of_path(path), path, epoch_of_path(path), step)


def _own_checkpoint(own: Mapping[int, str], epoch: int, where: str, steps: Steps = types.MappingProxyType({})) -> str:
    """Return the own checkpoint of an epoch.

    :param steps: mid-epoch checkpoints, named in the error where they can be loaded instead
    :raises ConfigError: the epoch has no checkpoint
    """
    if epoch not in own:
        there = ", ".join(str(e) for e in sorted(own)) or "none"
        text = "%s: there is no checkpoint of epoch %d; there are checkpoints of: %s" % (where, epoch, there)
        within = max((key for key in steps if key[0] == epoch), default=None)
        if within is not None:
            text += ". A mid-epoch one is loaded by its name, without load_epoch: load = %r" % steps[within]
        raise CheckpointError(text)
    return own[epoch]


def _path_to_load(path: str, where: str, exists: Callable[[str], bool]) -> Optional[str]:
    if not path:
        return None
    path = _SUFFIXES.sub("", path)
    if not exists(path):
        raise CheckpointError("%s: there is no checkpoint %r (no file %s.index)" % (where, path, path))
    if os.path.islink(path + ".index"):  # e.g. best.index -> net.012.index: the real name has the epoch
        real = _SUFFIXES.sub("", os.path.realpath(path + ".index"))
        return real if exists(real) else path
    return path


def checkpoint_exists(path: str) -> bool:
    """Return whether there is a checkpoint with this name (without ".index")."""
    return os.path.exists(path + ".index")


def epoch_of_path(path: str) -> int:
    """Return the epoch in the name of a checkpoint, ``model.050`` or ``model.050.step7300`` -> 50; 0 without one."""
    match = _EPOCH.search(path)
    return int(match.group(1)) if match else 0


def step_of_path(path: str) -> Optional[int]:
    """Return the global step in the name of a mid-epoch checkpoint, ``model.050.step7300`` -> 7300; else None."""
    match = _EPOCH.search(path)
    return int(match.group(2)) if match and match.group(2) else None


def find_checkpoints(model: str, *, damaged: bool = False) -> dict[int, str]:
    """Return the checkpoints ``<model>.<epoch>`` on disk: epoch -> path without ".index".

    Checkpoints of pretraining, ``<model>.pretrain.<epoch>``, are used for epochs which have no other.

    :param model: path prefix, as the setting ``model``
    :param damaged: also those with a manifest, but without ".index"
    """
    found = _paths(model, r"\.(\d+)", damaged)
    pretrain = _paths(model, r"\.pretrain\.(\d+)", damaged)
    return {epoch: path for (epoch,), path in {**pretrain, **found}.items()}


def find_step_checkpoints(model: str, *, damaged: bool = False) -> dict[tuple[int, int], str]:
    """Return the mid-epoch checkpoints ``<model>.<epoch>.step<global step>``: (epoch, step) -> path.

    :param model: path prefix, as the setting ``model``
    :param damaged: also those with a manifest, but without ".index"
    """
    return {(epoch, step): path for (epoch, step), path in _paths(model, r"\.(\d+)\.step(\d+)", damaged).items()}


def _paths(model: str, numbers: str, damaged: bool) -> dict[tuple[int, ...], str]:
    """Return paths without ".index" by the numbers in their names."""
    folder, base = os.path.split(model)
    if not base or not os.path.isdir(folder or "."):
        return {}
    pattern = re.compile(
        "(%s%s)%s" % (re.escape(base), numbers, r"\.(?:index|manifest\.json)" if damaged else r"\.index")
    )
    matches = [pattern.fullmatch(name) for name in os.listdir(folder or ".")]
    return {
        tuple(int(number) for number in match.groups()[1:]): os.path.join(folder, match.group(1))
        for match in matches
        if match
    }
