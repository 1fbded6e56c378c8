"""Trackio."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.engine.monitoring.trackers.base import RunFacts, TrackedRun, TrackerOfSteps, register_tracker


@register_tracker("trackio")
@dataclass(frozen=True)
class Trackio(TrackerOfSteps):
    """Trackio: a database of this machine that ``trackio show`` draws, or a Space of Hugging Face."""

    extra = "trackio"
    single = True  # a new run of the process ends the one before

    project: str = option("returnn_tf", help="project of the run")
    name: Optional[str] = option(
        None, help="name of the run, to which letters are added; by default, that of the config file"
    )
    group: Optional[str] = option(None, help="group of runs that belong together")
    space_id: Optional[str] = option(None, help="the Space, e.g. 'team/runs'; by default, this machine")

    def load(self) -> Any:
        """Import trackio."""
        import trackio

        return trackio

    def begin(self, facts: RunFacts) -> TrackedRun:
        """Begin a run, or go on with one, which is found by its name, so that no two have the same."""
        trackio = self.load()
        run = trackio.init(
            project=self.project,
            name=facts.previous or "%s-%s" % (self.name or facts.name, uuid.uuid4().hex[:6]),
            group=self.group,
            space_id=self.space_id,
            config={**facts.settings, "environment": dict(facts.environment)},
            resume="allow" if facts.previous else "never",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )
        return _Run(trackio, run)


class _Run(TrackedRun):
    """A run; epochs and steps are values of their own, since it counts what is recorded."""

    def __init__(self, trackio: Any, run: Any) -> None:
        super().__init__(run.name)
        self._trackio, self._run = trackio, run

    def epoch(self, epoch: int, values: Mapping[str, float]) -> None:
        """Record the values of an epoch."""
        self._run.log({"epoch": epoch, **values})

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Record the values of a training step."""
        self._run.log({"global_step": step, **values})

    def end(self, status: str) -> None:
        """Record how the run ended, and wait until everything is written."""
        self._run.log({"status": status})
        self._trackio.finish()
