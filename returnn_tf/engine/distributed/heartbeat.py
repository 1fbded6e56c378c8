"""Heartbeat of this process: what its main thread is doing, so that the watchdog can see whether it makes progress."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Callable, Optional

_SLOWEST = 5.0  # a step may take this many times as long as the longest one so far


class Heartbeat:
    """Written by the main thread at almost no cost; read by the watchdog thread."""

    def __init__(self) -> None:
        self.phase = "starting"
        self.step = -1  #: the last step or batch done in this process, from 0
        self.long = True  #: whether this may take long: tracing, opening data, saving
        self.waiting = False  #: whether it waits for other ranks
        #: within a step: returns whether this rank has done its part and waits for the others
        self.arrived: Optional[Callable[[], bool]] = None
        self._since = time.monotonic()
        self._longest = 0.0
        self._last_end: Optional[float] = None

    def step_done(self, phase: str) -> None:
        """Report that a step or a batch of a phase such as ``train epoch 3`` is done."""
        now = time.monotonic()
        if not self.long and self.phase == phase and self._last_end is not None:
            self._longest = max(self._longest, now - self._last_end)
        self._last_end = now
        self.phase, self.step, self.long, self._since = phase, self.step + 1, False, now

    def long_phase(self, phase: str) -> None:
        """Report that the next step may take long."""
        self.phase, self.long, self._since = phase, True, time.monotonic()

    @contextlib.contextmanager
    def collective(self, what: str) -> Iterator[None]:
        """Report, within this context, that this rank waits for the others in a collective operation."""
        before, self.phase, self.waiting = self.phase, what, True
        try:
            yield
        finally:
            self.phase, self.waiting, self._since = before, False, time.monotonic()

    def state(self) -> dict[str, Any]:
        """Return the message of the watchdog: phase, step, seconds since the last report, waiting or not, patience."""
        waiting = self.waiting or (self.arrived is not None and self.arrived())
        return {
            "phase": self.phase,
            "step": self.step,
            "age": time.monotonic() - self._since,
            "waiting": waiting,
            "long": self.long,
            "patience": _SLOWEST * self._longest,
        }
