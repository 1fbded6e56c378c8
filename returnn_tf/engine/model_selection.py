"""Which checkpoint a run loads, and with which epoch a training starts. No TensorFlow; file names only."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Callable, Dict, Mapping, Optional

from returnn_tf.config import Config, ConfigError

_SUFFIXES = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_EPOCH = re.compile(r"\.(\d+)$")


@dataclass(frozen=True)
class ModelChoice:
    """The checkpoint to load (a path without ".index"), its epoch, and the epoch which a training does next.

    ``epoch`` and ``path`` are None if nothing is loaded. Epoch 0 is a model with which training starts anew.
    """

    epoch: Optional[int] = None
    path: Optional[str] = None
    start_epoch: int = 1


def choose_model(config: Config) -> ModelChoice:
    """The choice for the checkpoints which there are.

    :raises ConfigError: if a checkpoint which the config asks for isn't there
    """
    return select_model(config, find_checkpoints(config.str("model", "")), checkpoint_exists)


def select_model(config: Config, own: Mapping[int, str], exists: Callable[[str], bool]) -> ModelChoice:
    """The choice as ``task``, ``load``, ``load_epoch``, ``start_epoch`` and so on say.

    A training goes on from its own newest checkpoint; ``load`` only counts if there is none. Other tasks take ``load``,
    or the own checkpoint of ``load_epoch``, or the own newest one.

    :param own: checkpoints of ``model``: epoch -> path
    :param exists: whether there is a checkpoint at a path
    :raises ConfigError: if a checkpoint which is asked for isn't there
    """
    is_train = config.str("task", "train") == "train"
    load_epoch = config.int("load_epoch")
    if load_epoch is None and not is_train:
        load_epoch = config.int("epoch")
    if is_train:
        return _select_for_training(config, own, exists, load_epoch)
    load = _path_to_load(config, "load", exists)
    if load:
        return _choice(epoch_of_path(load) if load_epoch is None else load_epoch, load)
    if load_epoch is not None:
        return _choice(load_epoch, _own_checkpoint(own, load_epoch, config.where("load_epoch")))
    return _newest(own)


def _select_for_training(
    config: Config, own: Mapping[int, str], exists: Callable[[str], bool], load_epoch: Optional[int]
) -> ModelChoice:
    last = max(config.int("num_epochs", 5), load_epoch or 0)
    own = {epoch: path for epoch, path in own.items() if epoch <= last}
    has_load = bool(config.str("load", ""))
    if load_epoch is not None and not has_load:
        _own_checkpoint(own, load_epoch, config.where("load_epoch"))
    if config.opt_typed_value("start_epoch") not in (None, "auto") and (own or not has_load):
        return _at_start_epoch(config, own)
    if own:
        return _newest(own)
    load = _path_to_load(config, "load", exists)
    if load:
        return _choice(epoch_of_path(load) if load_epoch is None else load_epoch, load)
    first = _path_to_load(config, "import_model_train_epoch1", exists)
    return _choice(0, first) if first else ModelChoice()


def _at_start_epoch(config: Config, own: Mapping[int, str]) -> ModelChoice:
    start = config.int("start_epoch", 1)
    where = config.where("start_epoch")
    if start < 1:
        raise ConfigError("%s: epochs count from 1, got %d" % (where, start))
    if start == 1:
        return ModelChoice()
    return _choice(start - 1, _own_checkpoint(own, start - 1, where))


def _choice(epoch: int, path: str) -> ModelChoice:
    return ModelChoice(epoch, path, epoch + 1)


def _newest(own: Mapping[int, str]) -> ModelChoice:
    return _choice(max(own), own[max(own)]) if own else ModelChoice()


def _own_checkpoint(own: Mapping[int, str], epoch: int, where: str) -> str:
    if epoch not in own:
        there = ", ".join(str(e) for e in sorted(own)) or "none"
        raise ConfigError("%s: there is no checkpoint of epoch %d; checkpoints there are: %s" % (where, epoch, there))
    return own[epoch]


def _path_to_load(config: Config, key: str, exists: Callable[[str], bool]) -> Optional[str]:
    path = config.str(key, "")
    if not path:
        return None
    path = _SUFFIXES.sub("", path)
    if not exists(path):
        raise ConfigError("%s: there is no checkpoint %r (no file %s.index)" % (config.where(key), path, path))
    return path


def checkpoint_exists(path: str) -> bool:
    """Whether there is a checkpoint with this name (without ".index")."""
    return os.path.exists(path + ".index")


def epoch_of_path(path: str) -> int:
    """The epoch in the name of a checkpoint, ``model.050`` -> 50; 0 if there is none."""
    match = _EPOCH.search(path)
    return int(match.group(1)) if match else 0


def find_checkpoints(model: str) -> Dict[int, str]:
    """The checkpoints ``<model>.<epoch>`` on disk: epoch -> path without ".index".

    Checkpoints of pretraining, ``<model>.pretrain.<epoch>``, stand in for epochs which have no other.

    :param model: path prefix, as the setting ``model``
    """
    folder, base = os.path.split(model)
    if not base or not os.path.isdir(folder or "."):
        return {}
    pattern = re.compile(re.escape(base) + r"\.(pretrain\.)?(\d+)\.index$")
    found: Dict[int, str] = {}
    pretrain: Dict[int, str] = {}
    for name in os.listdir(folder or "."):
        match = pattern.match(name)
        if match:
            path = os.path.join(folder, name[: -len(".index")])
            (pretrain if match.group(1) else found)[int(match.group(2))] = path
    return {**pretrain, **found}
