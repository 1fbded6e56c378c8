"""Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.engine.monitoring.trackers.base import (
    FINISHED,
    INTERRUPTED,
    RunFacts,
    TrackedRun,
    TrackerOfSteps,
    register_tracker,
)

_SECONDS_TO_LOG_IN, _SECONDS_TO_BEGIN = 30, 60
_REPETITIONS = 4  # of a request; by its own default, it holds the training up for many minutes without a network
_OF_EPOCHS, _OF_STEPS = "epoch", "global_step"


@register_tracker("wandb")
@dataclass(frozen=True)
class Wandb(TrackerOfSteps):
    """Weights & Biases: a server, or files for it (``mode`` "offline") that ``wandb sync`` uploads later."""

    extra = "wandb"

    project: str = option("returnn_tf", help="project of the run")
    entity: Optional[str] = option(None, help="user or team; by default, that of the account")
    group: Optional[str] = option(None, help="group of runs that belong together")
    name: Optional[str] = option(None, help="name of the run; by default, that of the config file")
    mode: Optional[str] = option(
        None, choices=("online", "offline"), help="by default WANDB_MODE of the environment, else online"
    )
    folder: Optional[str] = option(None, help="where its files go; by default, wandb in the working directory")

    def load(self) -> Any:
        """Import wandb."""
        import wandb

        return wandb

    def begin(self, facts: RunFacts) -> TrackedRun:
        """Begin a run, or go on with one; offline, both parts have its id, and are one run once they are uploaded."""
        wandb = self.load()
        run = wandb.init(
            project=self.project,
            entity=self.entity,
            group=self.group,
            name=self.name or facts.name,
            dir=self.folder,
            mode=self.mode,
            id=facts.previous or None,
            resume="allow" if facts.previous else None,
            reinit="create_new",  # others of this process remain as they are
            settings=wandb.Settings(
                console="off",  # the log of a training has its own files
                silent=True,
                login_timeout=_SECONDS_TO_LOG_IN,
                init_timeout=_SECONDS_TO_BEGIN,
                x_graphql_retry_max=_REPETITIONS,
            ),
        )
        run.config.update({**facts.settings, "environment": dict(facts.environment)}, allow_val_change=True)
        for axis, names in ((_OF_STEPS, "step/*"), (_OF_EPOCHS, "*")):
            run.define_metric(axis)
            run.define_metric(names, step_metric=axis)
        return _Run(run)


class _Run(TrackedRun):
    """A run; epochs and steps are values of their own, since its own count can't go back after an interruption."""

    def __init__(self, run: Any) -> None:
        super().__init__(run.id)
        self._run = run

    def epoch(self, epoch: int, values: Mapping[str, float]) -> None:
        """Record the values of an epoch."""
        self._run.log({_OF_EPOCHS: epoch, **values})

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Record the values of a training step."""
        self._run.log({_OF_STEPS: step, **values})

    def end(self, status: str) -> None:
        """Finish the run; one that was interrupted is marked as preempted."""
        if status == INTERRUPTED:
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if status == FINISHED else 1)
