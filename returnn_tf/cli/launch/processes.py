"""The processes of a training on this machine: started together, ended together.

The first one has the output of this process; the lines of the others pass through here and get their rank. A signal to
this process goes to all of them, once each, as each has a session of its own: a Ctrl-C of the terminal reaches this
process only. When one has failed, the others, whose watchdog names it, have some seconds to end by themselves. If this
process is killed, the kernel kills the ranks.

Where fewer processes will do, too, those that were killed are left out, and the others start again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from returnn_tf.cli.shared.children import ReceivedSignals, killed_with
from returnn_tf.engine.distributed import membership
from returnn_tf.engine.distributed.cores import share_of_cores
from returnn_tf.engine.support.signals import STOP_SIGNALS, name_of

_HERE = "127.0.0.1"
#: Seconds for the other ranks: until SIGTERM, as their watchdogs need some to find the reason; from then until SIGKILL.
_PATIENCE, _LAST_SECONDS = 15.0, 5.0
_PAUSE = 0.5  # seconds between looks at the processes without a signal of the kernel
_BLOCK = 1 << 16
_LONGEST_LINE = 1 << 16
_GPUS = "CUDA_VISIBLE_DEVICES"
#: Exit codes of a rank with a mistake in its config, of those whose others can't go on, and after a signal to stop.
_MISTAKE = 2
_FAILED, _STOPPED = (1, _MISTAKE), tuple(128 + number for number in STOP_SIGNALS)


def run(command: Sequence[str], number: int, least: Optional[int] = None) -> int:
    """Run a command in several processes until all have ended.

    :param command: that of each process
    :param number: of processes
    :param least: the command runs again without those that were lost, as long as so many are left; None: it does not
    :return: the exit code: of the process that failed first, else of the first rank whose code is not 0
    """
    environ = dict(os.environ)
    if least is not None:
        environ[membership.LEAST] = str(least)
    with ReceivedSignals() as signals:
        while True:
            code, lost = _run_once(command, number, environ, signals)
            if not lost or least is None or number - len(lost) < least or signals.received():
                return code
            environ.update(_gpus_without(lost, number, environ))
            number -= len(lost)
            _say("starting again with %d process%s; they resume from the last checkpoint"
                 % (number, "" if number == 1 else "es"))  # fmt: skip


def _run_once(
    command: Sequence[str], number: int, environ: Mapping[str, str], signals: ReceivedSignals
) -> tuple[int, list[int]]:
    """Return the exit code, and the ranks that were lost, see `_Group.lost`."""
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(held_port()) for _ in range(number)]
        group = stack.enter_context(_Group(signals))
        for own in environments(ports, secrets.token_hex(), environ):
            group.start(command, own)
        return group.wait(), group.lost


def _gpus_without(lost: Sequence[int], number: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which the processes use no GPU of those that were lost, where there is one for each."""
    gpus = environ.get(_GPUS, "").split(",")
    if len(gpus) < number:
        return {}
    return {_GPUS: ",".join(gpu for rank, gpu in enumerate(gpus) if rank not in lost)}


def environments(ports: Sequence[int], secret: str, environ: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the environment of each process: its place, and its share of the cores.

    :param ports: by rank
    :param secret: of the run
    :param environ: of this process
    """
    number = len(ports)
    common = {
        "OMP_NUM_THREADS": str(share_of_cores(number, {**environ, membership.RANK: "0"})),
        **environ,
        membership.ADDRESSES: ",".join("%s:%d" % (_HERE, port) for port in ports),
        membership.LOCAL_SIZE: str(number),
        membership.SECRET: secret,
    }
    return [{**common, membership.RANK: str(rank), membership.LOCAL_RANK: str(rank)} for rank in range(number)]


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Hold a free port, so that nobody else gets it by chance: a server may still listen there, beside this socket."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        yield holder.getsockname()[1]


class _Lines:
    """Lines that a rank writes to one of its outputs, passed on with the rank before each.

    :param source: end of a pipe
    :param target: descriptor of this process
    :param rank: of the process
    :param number: of processes
    """

    def __init__(self, source: int, target: int, rank: int, number: int) -> None:
        self._source, self._target = source, target
        self._prefix = b"rank %d: " % rank
        self._named = b"rank %d/%d on " % (rank, number)  # in lines that have the rank already, as warnings of the log
        self._rest = b""
        os.set_blocking(source, False)

    def pass_on(self) -> bool:
        """Write the lines that have come; return whether there may be more."""
        while True:
            try:
                content = os.read(self._source, _BLOCK)
            except BlockingIOError:
                return True
            *lines, self._rest = (self._rest + content).split(b"\n")
            if self._rest and (not content or len(self._rest) > _LONGEST_LINE):
                lines, self._rest = [*lines, self._rest], b""
            named = [line if self._named in line else self._prefix + line for line in lines]
            self._write(b"".join(line + b"\n" for line in named))
            if not content:
                return False

    def _write(self, content: bytes) -> None:
        """Write to the output of this process; what it does not take is lost, as the ranks should go on."""
        while content:
            try:
                content = content[os.write(self._target, content) :]
            except OSError:
                return


class _Group:
    """The processes, by rank; a context manager, at whose end none is left.

    :param signals: to pass on
    """

    def __init__(self, signals: ReceivedSignals) -> None:
        self._signals = signals
        self._processes: list[subprocess.Popen[bytes]] = []
        self._codes: dict[int, int] = {}  # of those that have ended, by rank, first to last
        self._reports: list[int] = []  # by rank: the end of a pipe by which it reports that it is done
        self._failed: list[int] = []  # ranks, first to last
        self._failed_at: Optional[float] = None
        self._stopping = False  # a signal has told all to stop
        self._told = False  # the ranks that are left got SIGTERM after another one failed
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> _Group:
        self._selector.register(self._signals.pipe, selectors.EVENT_READ)
        return self

    def __exit__(self, *exc: Any) -> None:
        """Kill what is left of the sessions of the ranks, such as processes that load data."""
        for process in self._processes:  # none of them is waited for before, so that no other process has its number
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()
            for file in (process.stdout, process.stderr):
                if file is not None:
                    file.close()
        for report in self._reports:
            os.close(report)
        self._selector.close()

    @property
    def lost(self) -> list[int]:
        """Return the ranks that were killed, here or by somebody else, unless all were to stop.

        After a mistake in the config there are none: it would come again, and the others were killed because of it.
        """
        if self._stopping or _MISTAKE in self._codes.values():
            return []
        return [rank for rank, code in sorted(self._codes.items()) if code < 0]

    def start(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start the process of the next rank."""
        output: Optional[int] = subprocess.PIPE if self._processes else None
        report, end = os.pipe()
        os.set_blocking(report, False)
        self._reports.append(report)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**environ, membership.REPORT: membership.report_to(end)},
                pass_fds=[end],
                start_new_session=True,
                preexec_fn=killed_with(os.getpid()),
            )
        finally:
            os.close(end)
        self._processes.append(process)

    def wait(self) -> int:
        """Pass on output and signals until all processes have ended; return the exit code."""
        number = len(self._processes)
        for rank, process in enumerate(self._processes):
            for file, target in ((process.stdout, 1), (process.stderr, 2)):
                if file is not None:
                    lines = _Lines(file.fileno(), target, rank, number)
                    self._selector.register(file, selectors.EVENT_READ, lines)
        while len(self._codes) < number:
            self._pass_on(_PAUSE)
            for signum in self._signals.received():
                self._stopping = True
                self._send(signum)
            self._look()
            self._end_the_rest()
        self._pass_on(0.0)
        failed = [self._codes[rank] for rank in self._failed]
        codes = failed or [code for _, code in sorted(self._codes.items()) if code] or [0]
        return codes[0] if codes[0] >= 0 else 128 - codes[0]

    def _pass_on(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            if isinstance(key.data, _Lines) and not key.data.pass_on():
                self._selector.unregister(key.fileobj)

    def _send(self, signum: int) -> None:
        for rank, process in enumerate(self._processes):
            if rank not in self._codes:
                os.kill(process.pid, signum)

    def _look(self) -> None:
        """Find out which processes have ended, and tell of one that failed first."""
        for rank, process in enumerate(self._processes):
            if rank in self._codes:
                continue
            ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                continue
            code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            self._codes[rank] = code
            if not self._is_failure(rank, code):
                continue
            self._failed.append(rank)
            if self._failed_at is None:
                self._failed_at = time.monotonic()
                left = len(self._processes) - len(self._codes)
                how = "was killed by %s" % name_of(-code) if code < 0 else "has ended with exit code %d" % code
                what = "; the others have %.0f s to end" % _PATIENCE if left else ""
                _say("rank %d (process %d) %s%s" % (rank, process.pid, how, what))

    def _is_failure(self, rank: int, code: int) -> bool:
        """Return whether a rank has failed that has ended with this code.

        Another one than usual is the ``requeue_exit_code`` of its config, which is not known here, if the rank has
        reported that it is done; the rest may still be saving. Else code of the user has ended the process.
        """
        if code < 0 or code in _FAILED:
            return True
        if code in (0, *_STOPPED) or self._stopping:
            return False
        with contextlib.suppress(BlockingIOError):
            return not os.read(self._reports[rank], 1)
        return True

    def _end_the_rest(self) -> None:
        """After one has failed, end those that don't end by themselves."""
        if self._failed_at is None or len(self._codes) == len(self._processes):
            return
        seconds = time.monotonic() - self._failed_at
        left = [rank for rank in range(len(self._processes)) if rank not in self._codes]
        stopped = all(map(self._is_stopped, left))  # so that they don't hear SIGTERM
        if (stopped or seconds > _PATIENCE) and not self._told:
            self._told = True
            ranks = "rank%s %s" % ("s" if left[1:] else "", ", ".join(map(str, left)))
            _say("%s: %s, ended by force" % (ranks, "stopped by a signal" if stopped else "still running"))
            self._send(signal.SIGTERM)
        if stopped or seconds > _PATIENCE + _LAST_SECONDS:
            self._send(signal.SIGKILL)

    def _is_stopped(self, rank: int) -> bool:
        """Return whether a rank has got SIGSTOP or the like."""
        how = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        with contextlib.suppress(ChildProcessError):  # it has just ended
            return os.waitid(os.P_PID, self._processes[rank].pid, how) is not None
        return False


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write("launch: %s\n" % text)
        sys.stderr.flush()
