"""A run of a program of RASR: started with two pipes, watched, and killed when it is not needed any more."""

from __future__ import annotations

import collections
import contextlib
import io
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from typing import Any, Callable, Optional

import numpy as np

from returnn_tf.config.errors import DataError, RasrDataError, RasrError
from returnn_tf.rasr.processes.command_line import log_files
from returnn_tf.rasr.processes.for_rasr.rasr_pipe import write_message

_GUARD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "for_rasr", "rasr_guard.py")
MAX_MESSAGES, MAX_BYTES = 200, 64 << 20  # that wait; beyond them RASR has to wait
_MAX_MESSAGE = 1 << 30
_TAIL_BYTES, _TAIL_LINES = 8192, 12
_END_SECONDS = 60.0  # from the end of the pipe, or the last message, to the end of the program


class RasrProcess:
    """A run of a program of RASR, in a new process group. Close it; it also ends with this process.

    A thread reads messages and output ahead, up to `MAX_MESSAGES` and `MAX_BYTES`. Output also goes to stderr.

    :param make_words: (descriptor to write to us, descriptor to read from us) -> program and arguments
    :param owner: what starts it, with which messages begin; empty if they get such a begin elsewhere
    :param timeout: seconds to wait for a message
    :raises ConfigError: this system has no such pipes
    """

    def __init__(self, make_words: Callable[[int, int], list[str]], *, owner: str, timeout: float):
        if os.name != "posix":
            raise RasrError("RASR can only be started on Linux and similar systems.")
        self._owner = owner
        self.timeout = timeout
        self.fresh = True  # nothing was sent or received yet
        self.start_time = time.time()
        reading, theirs_writing = os.pipe()
        theirs_reading, self._writing_fd = os.pipe()
        life, self._alive_fd = os.pipe()
        self.words = make_words(theirs_writing, theirs_reading)
        fds = (life, theirs_writing, theirs_reading)
        command = [sys.executable, "-I", "-S", _GUARD, str(life), "%d,%d" % fds[1:], *self.words]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=fds, bufsize=0
        )
        for fd in fds:
            os.close(fd)
        self._inbox = _Inbox(reading, self._process)
        os.set_blocking(self._writing_fd, False)
        self._thread = threading.Thread(target=self._inbox.fill, name="messages of RASR", daemon=True)
        self._thread.start()
        self._finalizer = weakref.finalize(self, _close, (self._writing_fd, self._alive_fd), self._inbox, self._thread)
        self._finalizer.atexit = False  # the guard sees the end of this process

    @property
    def pid(self) -> int:
        """Return the process id of the guard of RASR."""
        return self._process.pid

    def send(self, *message: Any) -> None:
        """Send a message; DataError if RASR has ended or does not read it."""
        buffer = io.BytesIO()
        write_message(buffer, message)
        content = buffer.getbuffer()
        end = time.monotonic() + self.timeout
        try:
            while content:
                if not select.select([], [self._writing_fd], [], max(end - time.monotonic(), 0))[1]:
                    raise self.error("RASR hangs: for %g s it has not read what it is asked." % self.timeout)
                content = content[os.write(self._writing_fd, content) :]
        except (BrokenPipeError, ConnectionError):
            raise self.ended("before it could be asked") from None

    def receive(self, purpose: str, *, about: str = "") -> Any:
        """Return the next message, a tuple.

        :param purpose: the expected message, e.g. "the first sequence"
        :param about: what it is about, if there can be errors which do not end RASR
        :raises DataError: RASR has ended, sends nothing for too long, or something else than messages
        """
        content = self._inbox.get(self.timeout)
        if content is None:
            raise self.ended("before %s" % purpose)
        if not content:
            raise self.error(
                "RASR hangs: for %g s it has not sent %s. Its log should say why; else set a longer rasr_timeout."
                % (self.timeout, purpose)
            )
        try:
            message = _Unpickler(io.BytesIO(content)).load()
        except Exception as exc:  # unpickling fails with nearly any exception
            raise self.strange("%s: %s" % (type(exc).__name__, exc)) from None
        if not isinstance(message, tuple) or not message or not isinstance(message[0], str):
            raise self.strange("a message is %.100r" % (message,))
        if message[0] == "exception":
            begin = "error in RASR%s" % (" for " + about if about else "")
            raise self.error("%s: %s" % (begin, " ".join(map(str, message[1:]))))
        return message

    def error(self, text: str) -> DataError:
        """Return an error with the last lines of RASR's output and logs, and its command line."""
        begin = self._owner + ": " if self._owner else ""
        return RasrDataError("%s%s%s" % (begin, text, self._details()))

    def strange(self, what: str) -> DataError:
        """Return the error for a message of an unsupported protocol version."""
        return self.error(
            "RASR sends something else than expected: %s. It must import the module of this version, so its "
            "configuration must not set pymod-path and pymod-name." % what
        )

    def ended(self, when: str) -> DataError:
        """Return the error for a program that ended too early; waits for its end."""
        self.wait()
        return self.error("RASR ended %s, with %s. Its output and log should say why." % (when, self.status_text()))

    def wait(self) -> Optional[int]:
        """Wait for the end of the program; return its exit code, negative for a signal, None if it does not end."""
        try:
            code = self._process.wait(timeout=min(_END_SECONDS, self.timeout))
        except subprocess.TimeoutExpired:
            return None
        self._thread.join(timeout=5)  # the rest of the output; a child of RASR may hold the pipe for longer
        return code

    def wait_briefly(self) -> None:
        """Wait briefly for the end of the program after it was asked to exit."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)

    def status_text(self) -> str:
        """Return the exit status of the program, in words."""
        code = self._process.poll()
        if code is None:
            return "its side of the pipe closed, but the program goes on"
        if code < 0:
            with contextlib.suppress(ValueError):
                return "signal %d (%s)" % (-code, signal.Signals(-code).name)
            return "signal %d" % -code
        return "exit code %d" % code

    def _details(self) -> str:
        parts = [""]
        tails = [("Its last output", self._inbox.tail())]
        for path in log_files(self.words, self.start_time):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                file.seek(max(os.path.getsize(path) - _TAIL_BYTES, 0))
                tails.append(("The end of its log %s" % path, file.read()))
        for title, content in tails:
            lines = content.decode("utf8", "replace").split("\n")
            lines = [line.rstrip() for line in lines if line.strip()][-_TAIL_LINES:]
            parts.append("%s:\n  %s" % (title, "\n  ".join(lines)) if lines else "%s: none" % title)
        return "\n".join([*parts, "Its command: %s" % subprocess.list2cmdline(self.words)])

    def close(self) -> None:
        """Kill the program if it still runs, and wait for its end. May be called again."""
        self._finalizer()


def _close(fds: tuple[int, int], inbox: _Inbox, thread: threading.Thread) -> None:
    for fd in fds:
        os.close(fd)  # the guard then kills the program
    inbox.discard()
    if thread is not threading.current_thread():
        thread.join()


class _Inbox:
    """Messages and output of a program, read by a thread."""

    def __init__(self, fd: int, process: subprocess.Popen[bytes]):
        self._fd = fd
        self._process = process
        self._changed = threading.Condition()
        self._messages: collections.deque[bytes] = collections.deque()
        self._waiting_bytes = 0
        self._tail = b""
        self._ended = False
        self._discarded = False

    def fill(self) -> None:
        """Read until the end of both, in a thread."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        open_fds = {self._fd, output}
        data = bytearray()
        while open_fds:
            for fd in select.select(list(open_fds), [], [])[0]:
                content = os.read(fd, 1 << 20)
                if not content:
                    open_fds.discard(fd)
                    if fd == self._fd:
                        self._end()
                elif fd == output:
                    self._keep_output(content)
                else:
                    data += content
                    self._deliver(data)
        self._process.stdout.close()
        os.close(self._fd)
        self._process.wait()

    def _keep_output(self, content: bytes) -> None:
        self._tail = (self._tail + content)[-_TAIL_BYTES:]
        with contextlib.suppress(OSError):
            os.write(2, content)

    def _deliver(self, data: bytearray) -> None:
        """Queue the complete messages of the data, waiting until there is room for them."""
        while len(data) >= 4:
            (size,) = struct.unpack_from("<i", data)
            if not 0 < size <= _MAX_MESSAGE:
                self._put(b"\0")  # which can't be unpickled
                data.clear()
                return
            if len(data) < 4 + size:
                return
            self._put(bytes(data[4 : 4 + size]))
            del data[: 4 + size]

    def _put(self, content: bytes) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._discarded or (len(self._messages) < MAX_MESSAGES and self._waiting_bytes < MAX_BYTES)
            )
            if not self._discarded:
                self._messages.append(content)
                self._waiting_bytes += len(content)
            self._changed.notify_all()

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def get(self, timeout: float) -> Optional[bytes]:
        """Return the next message, None at the end, b"" on a timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self._ended, timeout)
            if not self._messages:
                return None if self._ended else b""
            content = self._messages.popleft()
            self._waiting_bytes -= len(content)
            self._changed.notify_all()
            return content

    def discard(self) -> None:
        """Discard further data, so that the thread ends with the program."""
        with self._changed:
            self._discarded = True
            self._messages.clear()
            self._changed.notify_all()

    def tail(self) -> bytes:
        """Return the last bytes of the output."""
        return self._tail


class _Unpickler(pickle.Unpickler):
    """Admits arrays and plain data."""

    def find_class(self, module: str, name: str) -> Any:
        """Reject everything but what makes arrays, by the names in all versions of numpy."""
        module = module.replace("numpy._core", "numpy.core")
        allowed = {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy.core.multiarray", "scalar"),
            ("numpy.core.numeric", "_frombuffer"),
            ("_codecs", "encode"),
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError("it contains %s.%s" % (module, name))
        if name in ("ndarray", "dtype"):
            return getattr(np, name)
        return super().find_class(module, name)
