"""What this process is doing, noted by its main thread so that the watchdog can tell whether it goes on."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Callable, Dict, Iterator, Optional

_SLOWEST = 5.0  # a step may take so many times the longest one before


class Board:
    """Notes cost next to nothing; they are read by another thread."""

    def __init__(self) -> None:
        self.phase = "starting"
        self.step = -1  #: steps and batches done in this process
        self.long = True  #: this may take any time: tracing, opening data, saving
        self.waiting = False  #: for other ranks
        #: tells, within a step, whether this rank has done its part and waits for the others
        self.arrived: Optional[Callable[[], bool]] = None
        self._since = time.monotonic()
        self._longest = 0.0
        self._last_end: Optional[float] = None

    def done(self, phase: str) -> None:
        """A step or a batch is done.

        :param phase: ``train epoch 3``
        """
        now = time.monotonic()
        if not self.long and self.phase == phase and self._last_end is not None:
            self._longest = max(self._longest, now - self._last_end)
        self._last_end = now
        self.phase, self.step, self.long, self._since = phase, self.step + 1, False, now

    def lasting(self, phase: str) -> None:
        """From now until the next step is done this may take long."""
        self.phase, self.long, self._since = phase, True, time.monotonic()

    @contextlib.contextmanager
    def meeting(self, what: str) -> Iterator[None]:
        """Within it this rank waits for the others."""
        before, self.phase, self.waiting = self.phase, what, True
        try:
            yield
        finally:
            self.phase, self.waiting, self._since = before, False, time.monotonic()

    def state(self) -> Dict[str, Any]:
        """For the watchdog: phase, step, seconds since the last note, whether it waits, and its usual longest step."""
        waiting = self.waiting or (self.arrived is not None and self.arrived())
        return {
            "phase": self.phase,
            "step": self.step,
            "age": time.monotonic() - self._since,
            "waiting": waiting,
            "long": self.long,
            "patience": _SLOWEST * self._longest,
        }
