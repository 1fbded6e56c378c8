"""The time limit of a job of Slurm: a training saves its state and ends in time."""

from __future__ import annotations

import datetime
import os
import subprocess
import time
from collections.abc import Mapping
from typing import Optional

from returnn_tf.logging.log import log

#: Seconds before the limit that are kept in any case: before the first step, it is unknown how long one takes.
LEAST_SECONDS = 60.0
_COMMAND_SECONDS = 20.0


class TimeLimit:
    """Tells when there is only time left to finish a step and to save.

    :param end: of the job, in seconds since 1970; None: unknown or unlimited
    :param factor: multiplies the seconds that the slowest step and the slowest checkpoint have taken so far
    """

    def __init__(self, end: Optional[float], factor: float) -> None:
        self._end = end
        self._factor = factor
        self._last: Optional[float] = None
        self._slowest = 0.0

    @property
    def seconds_left(self) -> float:
        """Return the seconds until the end of the job; infinite if it has none."""
        return float("inf") if self._end is None else self._end - time.time()

    def is_near(self, saving: float) -> bool:
        """Return whether the work should end now; called after each step and each batch of an evaluation.

        :param saving: seconds that the slowest checkpoint has taken
        """
        if self._end is None:
            return False
        now = time.monotonic()
        if self._last is not None:
            self._slowest = max(self._slowest, now - self._last)
        self._last = now
        return self.seconds_left < max(LEAST_SECONDS, self._factor * (self._slowest + saving))


def end_of_job(environ: Mapping[str, str]) -> Optional[float]:
    """Return the end of the job of Slurm in which this process runs, in seconds since 1970.

    :return: None, with a line in the log, if there is no job, or it has no limit
    """
    job = environ.get("SLURM_JOB_ID")
    if not job:
        log.warn(
            "stop_for_resubmission_when_low_time_left: this is no job of Slurm, so that its time limit is unknown; "
            "training does not end before it. Let the scheduler send SIGUSR1 or SIGTERM in time."
        )
        return None
    given = environ.get("SLURM_JOB_END_TIME", "")  # since Slurm 22.05
    end = float(given) if given.isdigit() else _end_by_command(job)
    if end is None:
        log.warn("stop_for_resubmission_when_low_time_left: job %s of Slurm has no known time limit" % job)
    return end


def _end_by_command(job: str) -> Optional[float]:
    try:
        result = subprocess.run(
            ["scontrol", "--oneliner", "show", "job", job],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "SLURM_TIME_FORMAT": "%s"},
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = os.fsdecode(result.stdout).split()
    text = next((word.partition("=")[2] for word in words if word.startswith("EndTime=")), "")
    if text.isdigit():
        return float(text)
    try:
        return datetime.datetime.fromisoformat(text).timestamp()  # an older Slurm, which ignores the format
    except ValueError:
        return None  # "Unknown": no limit
