"""Child processes of a command: the signals that are passed on to them, and their end with this process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from typing import Any, Callable

from returnn_tf.engine.support.signals import STOP_SIGNALS

_PR_SET_PDEATHSIG = 1


class ReceivedSignals:
    """Receives signals while this context lasts. They arrive at `pipe`, which can be waited for beside other files."""

    def __init__(self) -> None:
        self.pipe = -1
        self._old: dict[int, Any] = {}

    def __enter__(self) -> ReceivedSignals:
        self.pipe, self._end = os.pipe()
        os.set_blocking(self.pipe, False)
        os.set_blocking(self._end, False)
        self._old_fd = signal.set_wakeup_fd(self._end, warn_on_full_buffer=False)
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:  # else not for this program
                self._old[number] = signal.signal(number, lambda number, frame: None)
        return self

    def __exit__(self, *exc: Any) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_fd)
        os.close(self.pipe)
        os.close(self._end)

    def received(self) -> list[int]:
        """Return the signals to stop that have arrived since the last call."""
        with contextlib.suppress(BlockingIOError):
            return [number for number in os.read(self.pipe, 1024) if number in STOP_SIGNALS]
        return []


def killed_with(parent: int) -> Callable[[], None]:
    """Return what a new process does first: have the kernel kill it when this process, its parent, ends."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # of Linux

    def begin() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

    return begin
