"""Who hears a signal: the process which listens, not one that it has forked."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, Callable

import pytest

from returnn_tf.engine.support.signals import StopRequest
from tests.waiting import LONG, until

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # so it is


def exit_of(function: Callable[[], Any]) -> int:
    """Return the exit code of a forked process that calls the function: negative for a signal, -9 if it hangs."""
    pid = os.fork()
    if not pid:
        try:
            function()
        finally:
            os._exit(1)
    killer = threading.Timer(LONG, os.kill, (pid, signal.SIGKILL))
    killer.start()
    status = os.waitpid(pid, 0)[1]
    killer.cancel()
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def sleep_after(number: int) -> None:
    """Send the signal to this process."""
    os.kill(os.getpid(), number)
    time.sleep(2 * LONG)


def test_a_forked_process_ends_by_a_signal_and_the_one_which_listens_hears_nothing() -> None:
    """A pool of processes in a config ends its workers so."""
    with StopRequest() as stop:
        stop.graceful = True
        assert exit_of(lambda: sleep_after(signal.SIGTERM)) == -signal.SIGTERM
        time.sleep(0.1)
        assert stop.signum is None
        os.kill(os.getpid(), signal.SIGUSR1)
        until(lambda: stop.signum is not None)
        assert stop.signum == signal.SIGUSR1


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    """A job in the background of a script does not end by the Ctrl-C that is meant for the one in the foreground."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            stop.graceful = True
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGUSR1)  # read after it
            until(lambda: stop.signum is not None)
            assert stop.signum == signal.SIGUSR1
        with StopRequest(signals=[signal.SIGINT]):
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_one_within_another() -> None:
    """The inner one hears; afterwards the outer one does, and in the end nobody."""
    before = signal.getsignal(signal.SIGUSR1)
    with StopRequest() as outer:
        outer.graceful = True
        with StopRequest() as inner:
            inner.graceful = True
            os.kill(os.getpid(), signal.SIGUSR1)
            until(lambda: inner.signum is not None)
        assert (inner.signum, outer.signum) == (signal.SIGUSR1, None)
        assert exit_of(lambda: sleep_after(signal.SIGTERM)) == -signal.SIGTERM
        os.kill(os.getpid(), signal.SIGUSR1)
        until(lambda: outer.signum is not None)
        assert outer.signum == signal.SIGUSR1
    assert signal.getsignal(signal.SIGUSR1) == before and signal.set_wakeup_fd(-1) == -1
