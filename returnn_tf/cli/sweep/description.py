"""What a ``sweep.py`` describes: a config, what to change in it, and how long to look."""

from __future__ import annotations

import ast
import functools
import json
import os
import shlex
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

from returnn_tf.config import Config, loading
from returnn_tf.config.errors import CommandError, nearest_name
from returnn_tf.config.options import at_least, declared_options, from_options, option
from returnn_tf.config.settings.catalog import setting_by_key
from returnn_tf.config.user_code import result_of_config
from returnn_tf.config.user_files import builtins_of_configs, resolving_imports

SUGGEST = "suggest"
#: Files in the folder of a trial: what it changes in the config, its learning-rate file, what it has written.
CONFIG, RATES, LOG = "trial.config", "learning_rates", "log"
#: What each trial sets for itself, beside ``num_epochs``.
OWN_SETTINGS = ("task", "model", "learning_rate_file", "tf_log_dir", "log")


@dataclass(frozen=True)
class Options:
    """The settings of a ``sweep.py``."""

    config: str = option(help="config to train, relative to the folder of this file")
    metric: str = option("dev_score", help="score or error of the learning-rate file; its lowest value counts")
    trials: int = option(20, help="number of trials, those pruned and failed included", check=at_least(1))
    epochs: Optional[int] = option(None, help="epochs of a trial; default: num_epochs of the config", check=at_least(1))
    folder: str = option("", help="of the trials; default: name of this file without .py, in the working folder")
    first: list[dict[str, Any]] = option([], help="values of the parameters for the first trials, e.g. the usual ones")
    prune: bool = option(True, help="end a trial that is worse than the median of the others after the same epoch")
    seed: int = option(1, help="of the sampler", check=at_least(0))


@dataclass(frozen=True)
class Sweep:
    """A sweep.

    :param path: of its file
    :param options: its settings
    :param suggest: function(trial of Optuna) -> setting, or path to a part of one -> value
    :param config: path of the config
    :param folder: of the trials
    :param known: settings that the config has or may have
    """

    path: str
    options: Options
    suggest: Callable[..., Any]
    config: str
    folder: str
    known: frozenset[str]

    def overrides(self, trial: Any) -> dict[str, Any]:
        """Return what a trial changes in the config.

        :param trial: of Optuna
        :raises ConfigError: the function fails or returns something else
        """
        where = "%s: %s" % (self.path, SUGGEST)
        found = result_of_config(where, functools.partial(self.suggest, trial))
        if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
            raise CommandError(
                '%s returns a dict of settings, e.g. {"learning_rate": 0.01, "network/lstm/n_out": 64}, not %.80r'
                % (where, found)
            )
        for key, value in found.items():
            self._check_override(where, key, value)
        return dict(found)

    def _check_override(self, where: str, key: str, value: Any) -> None:
        head = key.partition("/")[0]
        if head in OWN_SETTINGS or (head == "num_epochs" and self.options.epochs is not None):
            raise CommandError("%s: %r is set by the sweep itself, for each trial" % (where, key))
        if head not in self.known or not all(key.split("/")):
            near = nearest_name(head, self.known)
            hint = " Did you mean %r?" % key.replace(head, near, 1) if near not in (None, head) else ""
            raise CommandError("%s: %s has no setting %r, and there is none.%s" % (where, self.config, key, hint))
        try:
            json.dumps(value)  # it is kept with the trial, too
            same = ast.literal_eval(repr(value)) == value
        except (TypeError, ValueError, SyntaxError, MemoryError, RecursionError):
            same = False
        if not same:
            raise CommandError(
                "%s: the value of %r must be numbers, texts, lists or dicts, since it is written to a config, not %.80r"
                % (where, key, value)
            )


def read_sweep(path: str) -> Sweep:
    """Read the file of a sweep, and the config that it names.

    :raises ConfigError: a file is missing or wrong
    """
    text = loading.read_text(path)
    place = os.path.dirname(os.path.abspath(path))
    if place not in sys.path:
        sys.path.append(place)  # as for configs
    values: dict[str, Any] = {
        "__builtins__": builtins_of_configs(), "__file__": os.path.abspath(path), "__name__": "sweep",
    }  # fmt: skip
    source = loading.compile_python(path, text, {})
    before = set(values)
    with resolving_imports():
        loading.run_python(path, text, source.code, values)
    known = declared_options(Options)
    for name, value in values.items():
        is_data = not (callable(value) or isinstance(value, types.ModuleType))
        if name not in (*known, *before, SUGGEST) and not name.startswith("_") and is_data:
            near = nearest_name(name, known, cutoff=0.8)
            if near is not None and near not in values:
                line = source.lines_of_keys.get(name)
                where = "%s:%d" % (path, line) if line else path
                raise CommandError("%s: there is no setting %r. Did you mean %r?" % (where, name, near))
    options = from_options(Options, {name: values[name] for name in known if name in values}, where=path)
    if not callable(values.get(SUGGEST)):
        raise CommandError(
            "%s: expected a function that names what to try, e.g.\n"
            "    def suggest(trial):\n"
            '        return {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)}' % path
        )
    config_path = os.path.relpath(os.path.join(place, options.config))
    config = Config.from_files([config_path])
    folder = options.folder or os.path.splitext(os.path.basename(path))[0]
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise CommandError("%s: the folder of the trials, %r, is a file. Set another one: folder" % (path, folder))
    names = frozenset(config.keys()) | frozenset(setting_by_key())
    return Sweep(path, options, values[SUGGEST], config_path, folder, names)


def folder_of(sweep: Sweep, number: int) -> str:
    """Return the folder of a trial."""
    return os.path.join(sweep.folder, "%03d" % number)


def command_of(sweep: Sweep, number: int) -> str:
    """Return the command that trains a trial by itself, or resumes its training."""
    return shlex.join(["returnn-tf", sweep.config, os.path.join(folder_of(sweep, number), CONFIG)])


def values_text(overrides: Mapping[str, Any]) -> str:
    """Return what a trial changes, for people."""
    texts = {key: "%.4g" % value if isinstance(value, float) else repr(value) for key, value in overrides.items()}
    return ", ".join("%s = %s" % pair for pair in texts.items())


def config_of_trial(sweep: Sweep, number: int, overrides: Mapping[str, Any]) -> str:
    """Return the text of the config that a trial reads after that of the sweep.

    :param overrides: see `Sweep.overrides`
    """
    folder = folder_of(sweep, number)
    lines = ["# Trial %d of %s. By itself: %s" % (number, sweep.path, command_of(sweep, number))]
    for key, value in overrides.items():
        head, *rest = key.split("/")
        lines.append("%s%s = %r" % (head, "".join("[%r]" % part for part in rest), value))
    own: dict[str, Union[str, int, list[str]]] = {
        "task": "train",
        "model": os.path.join(folder, "network"),
        "learning_rate_file": os.path.join(folder, RATES),
        "tf_log_dir": os.path.join(folder, "events"),
        "log": [],
    }
    if sweep.options.epochs is not None:
        own["num_epochs"] = sweep.options.epochs
    return "\n".join([*lines, *("%s = %r" % pair for pair in own.items())]) + "\n"
