"""One thread beside the training that writes and deletes files, one job after the other."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Optional


class Background:
    """At most one job at a time. What goes wrong in it is raised in the training thread, by the next call of a method.

    The thread is started with the first job.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="saving")
        self._job: Optional[Future[Any]] = None

    @property
    def busy(self) -> bool:
        """Whether a job is running."""
        return self._job is not None and not self._job.done()

    def check(self) -> None:
        """Raises what a job has raised."""
        if self._job is not None and self._job.done():
            job, self._job = self._job, None
            job.result()

    def submit(self, job: Callable[[], Any]) -> None:
        """Starts a job; waits for the one before."""
        self.wait()
        self._job = self._pool.submit(job)

    def wait(self) -> None:
        """Waits for the job that is running."""
        if self._job is not None:
            job, self._job = self._job, None
            job.result()

    def close(self) -> None:
        """Waits for the job, whose error is raised, and ends the thread."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()
