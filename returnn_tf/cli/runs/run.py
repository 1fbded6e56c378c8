"""A run of training as its files show it: found by its folder, its learning-rate file or its config."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from returnn_tf.cli.run import read_config
from returnn_tf.cli.status.facts import models_at
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandDataError, CommandError
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.learning_rate import LearningRateSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.datasets.core.safe_files import open_regular
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.selection import find_checkpoints
from returnn_tf.engine.learning_rate.file import EpochData, parse, read_file, scores_of
from returnn_tf.engine.monitoring import run_settings, status_file
from returnn_tf.engine.pretrain.schedule import NetworkSchedule

_START = "EpochData("
_CHECKPOINT = re.compile(r"(\.pretrain)?\.\d+(\.index)?$")
_HEAD = 4096  # bytes in which a learning-rate file shows what it is


@dataclass
class Run:
    """What is known of a run.

    :param path: as given by the user
    :param model: path prefix of its checkpoints; "" if unknown
    :param epochs: of the learning-rate file; empty without one
    :param rates: path of that file; "" if unknown
    :param facts: see `run_settings.facts_of`; without "network" or "settings" if these are unknown
    :param source: where the settings are from, for people
    :param config: if the run was given by it, or the one that the run names is still there
    """

    path: str
    model: str = ""
    epochs: dict[int, EpochData] = field(default_factory=dict)
    rates: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    source: str = "unknown"
    config: Optional[Config] = None

    @property
    def scored(self) -> dict[int, EpochData]:
        """Return the epochs that have scores."""
        return {epoch: data for epoch, data in self.epochs.items() if scores_of(data.error)}

    def without_scores(self) -> str:
        """Return the reason for missing scores."""
        if self.rates:
            return "its learning-rate file %s has no scores of any epoch yet" % self.rates
        if self.config is not None:
            place = LearningRateSettings(self.config).learning_rate_file or self.model
            if os.path.isabs(place):
                return "%s does not exist; was it trained yet?" % place
            text = "%s does not exist in %s; was it trained in another folder? Name its model folder"
            return text % (place, os.getcwd())
        return "it has neither a learning-rate file nor a complete checkpoint"

    @property
    def status(self) -> dict[str, Any]:
        """Return the facts of the status file; empty without one."""
        path = status_file.path_of(self.model)
        return status_file.read_status(path) if self.model and os.path.exists(path) else {}


def find_run(path: str, overrides: Sequence[str] = ()) -> Run:
    """Return the run at a path: folder or prefix of checkpoints, learning-rate file, or config.

    :param overrides: ``++key value ...`` for a config
    :raises ConfigError: nothing of the kind is there, or the config is wrong
    :raises DataError: a file is damaged
    """
    if os.path.isdir(path):
        models = models_at(path) if _has_run(path) else []
        if not models:
            raise CommandError(_without_run(path))
        if len(models) > 1:
            raise CommandError("%r has several runs, name one: %s" % (path, ", ".join(models)))
        return of_model(path, models[0])
    if not os.path.isfile(path):
        model = path[: -len(".index")] if path.endswith(".index") else path
        if find_checkpoints(model) or os.path.exists(status_file.path_of(model)):
            return of_model(path, model)
    if (_CHECKPOINT.search(path) and not os.path.isfile(path)) or path.endswith(".index"):
        model = _CHECKPOINT.sub("", path)
        if find_checkpoints(model):
            raise CommandError("%r is one checkpoint. Name the run: %s" % (path, model))
    if not os.path.isfile(path):
        raise CommandError("%r: there is no such folder, file or prefix of checkpoints" % path)
    prefix = status_file.model_of(path)
    if prefix is not None:
        return of_model(path, prefix)
    return _of_rates(path) if _is_rates(path) else of_config(path, overrides)


def _without_run(folder: str) -> str:
    """Return the message for a folder without a run; it names those further below."""
    places = [os.path.join(glob.escape(folder), *deeper, ".*" + status_file.SUFFIX) for deeper in (["*"], ["*", "*"])]
    below = sorted({os.path.dirname(path) for place in places for path in glob.glob(place)})
    hint = "Did you mean %s?" % " or ".join(map(repr, below[:3])) if below else "Name a model folder."
    return "%r: a folder without a run: no checkpoints, no status file. %s" % (folder, hint)


def _has_run(folder: str) -> bool:
    return bool(status_file.models_in(folder)) or bool(glob.glob(os.path.join(glob.escape(folder), "*.index")))


def _is_rates(path: str) -> bool:
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD).decode("utf8", "replace").lstrip()
    except OSError as exc:
        raise CommandDataError("%r can't be read: %s" % (path, exc.strerror or exc)) from None
    return head.startswith("{") and (_START in head or not head.strip("{} \n"))


def of_config(path: str, overrides: Sequence[str] = ()) -> Run:
    """Return the run of a config.

    :raises ConfigError: the config is wrong, or has neither ``learning_rate_file`` nor ``model``
    """
    config = read_config([path, *overrides])
    model, rates = CheckpointSettings(config).model, LearningRateSettings(config).learning_rate_file
    if not model and not rates:
        raise CommandError("%r: neither model nor learning_rate_file is set, so its run left nothing" % path)
    run = Run(path, model, source="config %s" % path, config=config)
    last = max(TrainingSettings(config).num_epochs, 1)
    run.facts = run_settings.facts_of(config, NetworkSchedule(config).at(last).layers)
    del run.facts["environment"]  # that of this process, not of the run
    if rates and os.path.exists(rates):
        run.epochs, run.rates = read_file(rates), rates
    elif model:
        _add_epochs(run)
    return run


def of_model(path: str, model: str) -> Run:
    """Return the run with a path prefix of checkpoints."""
    run = Run(path, model)
    _add_epochs(run)
    record = run_settings.path_of(model)
    if os.path.exists(record):
        run.facts, run.source = run_settings.read(record), "as trained, %s" % record
        return run
    found = find_checkpoints(model)
    info = checkpoint.info(found[max(found)]) if found else None
    if info is not None:
        # of an older version: long values are hashes, and the network is one of them
        run.facts = {"settings": {key: text for key, text in info.settings.items() if key != "network"}}
        run.source = "checkpoint %s, without the network" % found[max(found)]
    return run


def _add_epochs(run: Run) -> None:
    """Read the learning-rate file that the status file names, or else what the newest checkpoint knows of it."""
    given = str(run.status.get("learning_rate_file", ""))
    folder = os.path.dirname(os.path.abspath(run.model))
    for path in (given, *(os.path.join(place, os.path.basename(given)) for place in (folder, os.path.dirname(folder)))):
        if given and os.path.isfile(path):
            run.epochs, run.rates = read_file(path), path
            return
    found = find_checkpoints(run.model)
    if found:
        info = checkpoint.info(found[max(found)])
        run.epochs = parse(info.learning_rates) if info is not None else {}


def _of_rates(path: str) -> Run:
    """Return the run of a learning-rate file; its settings are known if its model lies in this folder or one below."""
    folder = os.path.dirname(os.path.abspath(path))
    pattern = ".*" + status_file.SUFFIX
    places = [os.path.join(glob.escape(folder), *between, pattern) for between in ((), ("*",))]
    for place in sorted(each for name in places for each in glob.glob(name)):
        named = status_file.read_status(place).get("learning_rate_file", "")
        model = status_file.model_of(place)
        if model and os.path.abspath(str(named)) == os.path.abspath(path):
            run = of_model(path, model)
            run.epochs, run.rates = read_file(path), path
            return run
    return Run(path, epochs=read_file(path), rates=path, source="unknown: only the learning-rate file is there")
