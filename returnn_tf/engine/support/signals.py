"""Graceful stop on signals: SIGTERM and SIGUSR1 of clusters that reclaim the machine, and Ctrl-C.

The first one is a request: the current step is finished, the state saved, the program ends. A second SIGINT or SIGTERM
ends it at once; SIGUSR1, a scheduler's warning before its SIGTERM, does not count for that. The signals are
read from a pipe by a thread, because the interpreter would handle them only after the TensorFlow call that is running,
which may be a long one.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any, Callable, Optional

from returnn_tf.config import Config
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.logging.log import log

STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))
_INSISTING = (signal.SIGINT, signal.SIGTERM)
#: Schedulers send the same signal to the processes and to their job script, which forwards it.
_SAME_SECONDS = 0.5


class Stopped(Exception):
    """Training ended because of a signal; its state is on disk.

    :param signum: the number of the signal
    :param message: what was saved
    """

    def __init__(self, signum: int, message: str = "") -> None:
        self.signum = signum
        super().__init__(message or "stopped by %s" % name_of(signum))


class StopRequest:
    """Records whether a signal requested a stop. Context manager for the main thread; ineffective in others.

    :param config: for the exit code
    :param signals: those to handle
    :param idle: log message if the program ends at once because there is nothing to save
    """

    def __init__(
        self,
        config: Optional[Config] = None,
        *,
        signals: Sequence[int] = STOP_SIGNALS,
        idle: str = "there is no training state to save yet",
    ) -> None:
        self.config = config
        self._signals = tuple(signals)
        self._idle = idle
        self.signum: Optional[int] = None  #: of the first signal
        self._cause = ""
        #: Whether there is something to save; before, the first signal ends the program at once.
        self.graceful = False
        #: Called before the program ends at once.
        self.on_abort: list[Callable[[], None]] = []
        self._insisted: Optional[float] = None  # when SIGINT or SIGTERM came first
        self._old: dict[int, Any] = {}
        self._pipe = (-1, -1)
        self._old_fd = -1

    @property
    def cause(self) -> str:
        """Return what requested the stop, for messages: ``SIGTERM``; "" before that."""
        return self._cause or ("" if self.signum is None else name_of(self.signum))

    def out_of_time(self, seconds: float) -> None:
        """Request a stop as a scheduler does by SIGUSR1.

        :param seconds: until the time limit of the job
        """
        if self.signum is None:
            self.signum, self._cause = signal.SIGUSR1, "the time limit of the job, %d s before it," % seconds
            log.warn("The job ends in %d s: finishing the step and saving" % seconds)

    def __enter__(self) -> StopRequest:
        heard = [number for number in self._signals if not _is_ignored(number)]
        if heard and threading.current_thread() is threading.main_thread():
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[1], False)
            self._old_fd = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
            for number in heard:
                self._old[number] = signal.signal(number, _wake)
            _listening.append(self)
            threading.Thread(target=self._listen, args=(self._pipe[0],), name="signals", daemon=True).start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def close(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._old.items():
            signal.signal(number, handler)
        if self._old:
            signal.set_wakeup_fd(self._old_fd)
            os.close(self._pipe[1])  # ends the thread
            _listening.remove(self)
        self._old = {}

    def forget(self) -> None:
        """Restore the signal handlers in a forked process, for which a signal is no stop request."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old = {}

    def _listen(self, pipe: int) -> None:
        while True:
            numbers = os.read(pipe, 64)
            if not numbers:
                os.close(pipe)
                return
            for number in numbers:
                if number in self._signals:
                    self._received(number)

    def _received(self, number: int) -> None:
        now = time.monotonic()
        if not self.graceful:
            self._abort(number, self._idle)
        elif self.signum is None:
            self.signum = number  # first, as writing to the log may block
            log.warn("%s: finishing the step and saving; once more to end at once" % name_of(number))
        elif self._insisted is not None and number in _INSISTING and now - self._insisted > _SAME_SECONDS:
            self._abort(number, "ending at once, without saving")
        if number in _INSISTING and self._insisted is None:
            self._insisted = now

    def _abort(self, number: int, why: str) -> None:
        code = exit_code(number)
        try:
            log.warn("%s: %s" % (name_of(number), why))
            for function in self.on_abort:
                function()
            code = exit_code(number, self.config)
        finally:
            os._exit(code)


_listening: list[StopRequest] = []


def _after_fork() -> None:
    while _listening:
        _listening.pop().forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _is_ignored(number: int) -> bool:
    """Return whether a Ctrl-C is not for this program: shells start background jobs of scripts with SIGINT ignored."""
    return number == signal.SIGINT and signal.getsignal(number) == signal.SIG_IGN


def _wake(number: int, frame: Any) -> None:
    """Do nothing: the thread at the other end of the wake-up pipe does the work."""


def name_of(number: int) -> str:
    """Return the name of a signal: ``SIGTERM``."""
    return signal.Signals(number).name


def exit_code(number: int, config: Optional[Config] = None) -> int:
    """Return 128 + number as in a shell; or ``requeue_exit_code``, for clusters that requeue jobs with this code."""
    if config is not None and number != signal.SIGINT:
        wanted = TrainingSettings(config).requeue_exit_code
        return 128 + number if wanted is None else wanted
    return 128 + number
