"""The setting ``trackers``: what records a training for MLflow, Weights & Biases and the like.

A tracker never ends a training: one that fails is off from then on, with a warning. The identities of the runs are in
``.<model>.trackers.json``, so that a resumed training goes on with them.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from returnn_tf.config import Config
from returnn_tf.config.errors import SettingError
from returnn_tf.config.options import from_options
from returnn_tf.config.settings.logging import LoggingSettings
from returnn_tf.engine.learning_rate.file import META, EpochData, scores_of
from returnn_tf.engine.monitoring.trackers.base import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    TRACKERS,
    RunFacts,
    TrackedRun,
    Tracker,
)
from returnn_tf.engine.support import atomic_files as files
from returnn_tf.engine.support.signals import Stopped
from returnn_tf.logging.log import log

SUFFIX = ".trackers.json"
_MAX_BYTES = 1 << 20
_RATE = META + "effective_learning_rate"


def trackers_of(config: Config) -> dict[str, Tracker]:
    """Return the trackers of a config by name: that of the class, numbered from the second of a class on.

    :raises ConfigError: an unknown class, a wrong option, or two of a class of which there can only be one
    """
    settings = LoggingSettings(config)
    setting = settings.describe_source("trackers")
    found: dict[str, Tracker] = {}
    for given in settings.trackers or []:
        options = {"class": given} if isinstance(given, str) else given
        if not isinstance(options, dict) or "class" not in options:
            raise SettingError(
                '%s: expected names or dicts with "class", e.g. {"class": "mlflow"}, not %r.' % (setting, given)
            )
        cls = TRACKERS.get(options["class"], setting)
        where = "%s: class %r" % (setting, options["class"])
        others = {name: value for name, value in options.items() if name != "class"}
        number = sum(type(each) is cls for each in found.values()) + 1
        if cls.single and number > 1:
            raise SettingError("%s is there twice; it records one run at a time. Remove one." % where)
        name = options["class"] if number == 1 else "%s %d" % (options["class"], number)
        found[name] = from_options(cls, others, where=where)
    return found


class Tracking:
    """The trackers of a run; one that fails is off from then on.

    :param trackers: by name
    :param model: path prefix of the checkpoints, beside which the identities of the runs are kept; "": nowhere
    """

    def __init__(self, trackers: Mapping[str, Tracker], model: str = "") -> None:
        self._trackers = dict(trackers)
        self._runs: dict[str, TrackedRun] = {}
        self._path = path_of(model) if model else ""

    def check(self, where: str, events: Optional[str]) -> None:
        """Check that runs can be recorded.

        :param where: the setting, for errors
        :param events: folder of the event files
        :raises ConfigError: a package is missing
        """
        for name, tracker in self._trackers.items():
            tracker.check("%s: %s" % (where, name), events)

    def begin(self, facts: Callable[[str], RunFacts], *, resumed: bool) -> None:
        """Begin the runs, or go on with those of the training that is resumed.

        :param facts: from the identity of an earlier run, or "", to what is recorded
        :param resumed: whether the training goes on where an earlier one ended
        """
        known = self._known() if resumed else {}
        for name, tracker in self._trackers.items():
            previous = known.get(name, "")
            try:
                self._runs[name] = tracker.begin(facts(previous))
            except Exception as exc:
                advice = " For a new run, delete %s." % self._path if previous else ""
                self._off(name, exc, advice)
        if self._runs and self._path:
            identities = {**known, **{name: run.identity for name, run in self._runs.items()}}
            try:
                files.write_text(self._path, json.dumps(identities, indent=1) + "\n")
            except OSError as exc:
                log.warn(
                    "%s can't be written, so a resumed training begins new runs of trackers: %s" % (self._path, exc)
                )

    def wants(self, step: int) -> bool:
        """Return whether a tracker records a training step."""
        return any(self._trackers[name].takes_step(step) for name in self._runs)

    def step(self, step: int, values: Mapping[str, Any]) -> None:
        """Record the values of a training step, for the trackers whose turn it is."""
        numbers = {"step/%s" % name: float(value) for name, value in values.items() if value is not None}
        due = [name for name in self._runs if self._trackers[name].takes_step(step)]
        self._call(lambda run: run.step(step, numbers), due)

    def epoch(self, epoch: int, data: EpochData) -> None:
        """Record an epoch that is trained and evaluated: scores, learning rate, memory and speed."""
        values = {name: value for name, value in scores_of(data.error).items() if isinstance(value, (int, float))}
        values["learning_rate"] = data.error.get(_RATE, data.learning_rate)
        for kind in ("memory", "speed"):
            prefix = "%s%s:" % (META, kind)
            of_kind = {key[len(prefix) :]: value for key, value in data.error.items() if key.startswith(prefix)}
            values.update({"%s/%s" % (kind, key): value for key, value in of_kind.items()})
        self._call(lambda run: run.epoch(epoch, values), list(self._runs))

    def end(self, error: Optional[BaseException]) -> None:
        """Record the end of the training.

        :param error: why it is not finished
        """
        stopped = isinstance(error, (Stopped, KeyboardInterrupt))
        status = FINISHED if error is None else INTERRUPTED if stopped else FAILED
        self._call(lambda run: run.end(status), list(self._runs))
        self._runs = {}

    def _call(self, call: Callable[[TrackedRun], None], names: Sequence[str]) -> None:
        for name in names:
            try:
                call(self._runs[name])
            except Exception as exc:  # of any kind: those of networks, servers and disks have no common base
                self._off(name, exc)

    def _off(self, name: str, exc: Exception, advice: str = "") -> None:
        """Switch a tracker off; what it has recorded remains."""
        run = self._runs.pop(name, None)
        text = (str(exc).strip() or type(exc).__name__).splitlines()[0]
        log.warn("The tracker %s fails and is now off; training continues: %s%s" % (name, text[:500], advice))
        if run is not None:
            with contextlib.suppress(Exception):
                run.end(FAILED)

    def _known(self) -> dict[str, str]:
        """Return the identities of the runs to go on with; a damaged file is ignored, with a warning."""
        if not self._path or not os.path.exists(self._path):
            return {}
        try:
            found = files.read_json(self._path, _MAX_BYTES)
            if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
                raise ValueError("expected a dict of texts")
        except (OSError, ValueError, RecursionError) as exc:
            log.warn("%s is damaged, so trackers begin new runs: %s" % (self._path, exc))
            return {}
        return found


def path_of(model: str) -> str:
    """Return the path of the file with the identities of the runs."""
    folder, name = os.path.split(model)
    return os.path.join(folder, ".%s%s" % (name, SUFFIX))
