"""Runs a program of RASR, and kills it with its children when the process that wants it is gone, however it ended.

A script for a fresh interpreter: ``rasr_guard.py LIFE FD,FD,... PROGRAM WORD...``. LIFE is the end for reading of a
pipe which that process holds open; the other file descriptors are for the program. It ends as the program does: with
the same exit code, or by the same signal.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys

_SET_SIGNAL_AT_DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG
_CHECK_SECONDS = 1.0


def start(life: int, words: list[str]) -> int:
    """Start the program in a new process group; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setpgid(0, 0)
        os.close(life)
        _end_with_parent()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execvp(words[0], words)
    except OSError as exc:
        sys.stderr.write("%s can't be started: %s\n" % (words[0], exc.strerror))
        sys.stderr.flush()
    finally:
        os._exit(127)
    return 0


def _end_with_parent() -> None:
    """Request SIGKILL at the death of the parent, on systems with prctl."""
    try:
        ctypes.CDLL(None).prctl(_SET_SIGNAL_AT_DEATH_OF_PARENT, signal.SIGKILL)
    except (OSError, AttributeError):
        pass


def kill_group(pid: int) -> None:
    """Kill the program, or what it has left behind."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def wait(life: int, pid: int, ended: int) -> int:
    """Wait for the program, or kill it once the other end of LIFE is closed; return its status."""
    while True:
        ready = select.select([life, ended], [], [], _CHECK_SECONDS)[0]
        if life in ready:
            kill_group(pid)
            return os.waitpid(pid, 0)[1]
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if ended in ready:
            os.read(ended, 512)


def main(life: int, fds: list[int], words: list[str]) -> None:
    """Run the program and end like it."""
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.SIG_IGN)  # such signals are for the whole job, and end the process that wants us
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    pid = start(life, words)
    for fd in fds:
        os.close(fd)
    status = wait(life, pid, ended)
    kill_group(pid)
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(fd) for fd in sys.argv[2].split(",")], sys.argv[3:])
