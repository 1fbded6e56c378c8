"""MLflow."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.engine.monitoring.trackers.base import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    RunFacts,
    TrackedRun,
    TrackerOfSteps,
    flat,
    register_tracker,
)

_STATUS = {FINISHED: "FINISHED", INTERRUPTED: "KILLED", FAILED: "FAILED"}
_LONGEST = 500  # characters of a parameter that every release takes
# Of requests, unless the environment says otherwise; by its own default, a server that is gone holds the training up
# for minutes.
_REQUESTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


@register_tracker("mlflow")
@dataclass(frozen=True)
class Mlflow(TrackerOfSteps):
    """MLflow: a tracking server, a database, or files."""

    extra = "mlflow"

    tracking_uri: Optional[str] = option(
        None, help="server, database or folder; by default MLFLOW_TRACKING_URI of the environment, else MLflow's own"
    )
    experiment: str = option("returnn_tf", help="experiment of the run")
    name: Optional[str] = option(None, help="name of the run; by default, that of the config file")

    def load(self) -> Any:
        """Import mlflow."""
        import mlflow

        return mlflow

    def begin(self, facts: RunFacts) -> TrackedRun:
        """Begin a run, or go on with one."""
        for variable, value in _REQUESTS.items():
            os.environ.setdefault(variable, value)
        client = self.load().MlflowClient(tracking_uri=self.tracking_uri)
        if facts.previous:
            run = client.get_run(facts.previous)
            client.update_run(run.info.run_id, status="RUNNING")
        else:
            found = client.get_experiment_by_name(self.experiment)
            experiment = client.create_experiment(self.experiment) if found is None else found.experiment_id
            run = client.create_run(experiment, run_name=self.name or facts.name)
        tracked = _Run(client, run.info.run_id)
        tracked.settings(flat({**facts.settings, "environment": facts.environment}), dict(run.data.params))
        return tracked


class _Run(TrackedRun):
    """A run, written by a client of its own, so that what else uses MLflow in the process has its own active run."""

    def __init__(self, client: Any, identity: str) -> None:
        super().__init__(identity)
        self._client = client

    def settings(self, values: Mapping[str, Any], before: Mapping[str, str]) -> None:
        """Record settings as parameters; those that changed since the run began as tags, as parameters are constant."""
        from mlflow.entities import Param

        texts = {_name(key): str(value)[:_LONGEST] for key, value in values.items()}
        new = [Param(key, text) for key, text in texts.items() if key not in before]
        self._client.log_batch(self.identity, params=new)
        for key, text in texts.items():
            if before.get(key, text) != text:
                self._client.set_tag(self.identity, "resumed_with." + key, text)

    def epoch(self, epoch: int, values: Mapping[str, float]) -> None:
        """Record the values of an epoch."""
        self._log(values, epoch)

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Record the values of a training step."""
        self._log(values, step)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_name(name), float(value), now, step) for name, value in values.items()]
        self._client.log_batch(self.identity, metrics=metrics)

    def end(self, status: str) -> None:
        """Record the end of the run."""
        self._client.set_terminated(self.identity, _STATUS[status])


def _name(name: str) -> str:
    """Return a name with the characters that MLflow takes."""
    return "".join(char if char.isalnum() or char in "_-. /" else "_" for char in name)[:250]
