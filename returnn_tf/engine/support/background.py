"""A thread beside training that writes and deletes files, one job after the other."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Optional


class Background:
    """Runs at most one job at a time. Its errors are raised in the training thread, by the next call of a method.

    The thread is started with the first job.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="saving")
        self._job: Optional[Future[Any]] = None

    @property
    def busy(self) -> bool:
        """Return whether a job is running."""
        return self._job is not None and not self._job.done()

    def check(self) -> None:
        """Raise the error of a finished job, if any."""
        if self._job is not None and self._job.done():
            job, self._job = self._job, None
            job.result()

    def submit(self, job: Callable[[], Any]) -> None:
        """Start a job, after waiting for the previous one."""
        self.wait()
        self._job = self._pool.submit(job)

    def wait(self) -> None:
        """Wait for the running job; raise its error."""
        if self._job is not None:
            job, self._job = self._job, None
            job.result()

    def close(self) -> None:
        """Wait for the running job, raise its error, and end the thread."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()
