"""What a tracker is: a class of options that begins a recorded run, to which values of epochs and steps are added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

from returnn_tf.config.errors import SettingError
from returnn_tf.config.options import at_least, option
from returnn_tf.config.registry import Registry
from returnn_tf.util.installing import install_command

#: How a run may end; an interrupted one may be resumed.
FINISHED, INTERRUPTED, FAILED = "finished", "interrupted", "failed"


@dataclass(frozen=True)
class RunFacts:
    """What a tracker records at the start of a run.

    :param name: for people: that of the config file, or the folder of the model
    :param settings: of the config, in types of JSON
    :param environment: versions and machine
    :param events: folder of the event files, if there are any
    :param previous: the identity of the run to go on with, as its tracker gave it; "": a new run
    """

    name: str
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    events: Optional[str] = None
    previous: str = ""


class TrackedRun:
    """A run in the records of a tracker. Any method may raise any exception; the training continues without it.

    :param identity: with which a resumed training finds it again
    """

    def __init__(self, identity: str) -> None:
        self.identity = identity

    def epoch(self, epoch: int, values: Mapping[str, float]) -> None:
        """Record the values of an epoch."""

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Record the values of a training step.

        :param step: the global one
        """

    def end(self, status: str) -> None:
        """Record the end.

        :param status: `FINISHED`, `INTERRUPTED` or `FAILED`
        """


@dataclass(frozen=True)
class Tracker:
    """Base of all trackers: dataclasses of their options, registered by `register_tracker`."""

    extra: ClassVar[str] = ""  #: the extra of our pyproject.toml that installs its package
    single: ClassVar[bool] = False  #: whether there can only be one in a process

    def load(self) -> Any:
        """Import the package if it needs one, and return the module.

        :raises ImportError: it is not installed
        """
        return None

    def takes_step(self, step: int) -> bool:
        """Return whether it records a training step, given by its global number."""
        return False

    def begin(self, facts: RunFacts) -> TrackedRun:
        """Begin a run, or go on with an earlier one."""
        raise NotImplementedError

    def check(self, where: str, events: Optional[str]) -> None:
        """Check that runs can be recorded.

        :param where: prefix of errors
        :param events: folder of the event files
        :raises ConfigError: the package is missing
        """
        try:
            self.load()
        except ImportError as exc:
            advice = install_command(self.extra) if self.extra else "install it"
            raise SettingError("%s needs a package (%s): %s" % (where, exc, advice)) from None


@dataclass(frozen=True)
class TrackerOfSteps(Tracker):
    """Base of those that record training steps, too."""

    every_steps: Optional[int] = option(
        None, check=at_least(1), help="also record every n-th training step; by default, epochs only"
    )

    def takes_step(self, step: int) -> bool:
        """Return whether it is one of every n."""
        return self.every_steps is not None and step % self.every_steps == 0


TRACKERS: Registry[type[Tracker]] = Registry("tracker", __name__.rpartition(".")[0], plugins="returnn_tf.trackers")
#: Class decorator: registers a tracker under the ``class`` of its options.
register_tracker = TRACKERS.register


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested dicts as one, with keys joined by dots, for trackers that compare runs by single values."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = prefix + str(key)
        found.update(flat(value, name + ".") if isinstance(value, Mapping) and value else {name: value})
    return found
