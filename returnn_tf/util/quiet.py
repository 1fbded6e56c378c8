"""Filters the output of C++ libraries to stderr."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

from returnn_tf.logging.log import log

#: Lines of Abseil's log: informational ones, and what precedes the first line of any level while a library is loaded.
_INFO = ("/^I[0-9][0-9][0-9][0-9] /d", "/^WARNING: All log messages before absl::InitializeLog() /d")
_PATIENCE = 5.0


@contextlib.contextmanager
def without_info_lines() -> Iterator[None]:
    """Leave informational lines of C++ libraries out of what this process writes to file descriptor 2.

    A process filters, not a thread or a file: if a library ends this process by a signal, its last messages are shown.
    """
    program = shutil.which("sed")
    try:
        saved = os.dup(2)  # before there is a pipe, which would get the number of a closed stderr
    except OSError:
        yield
        return
    command = [program or "", "-u", *(word for script in _INFO for word in ("-e", script))]
    read, write = os.pipe()
    try:
        # in a separate session, so that Ctrl-C does not reach it
        process = subprocess.Popen(command, stdin=read, stdout=saved, stderr=subprocess.DEVNULL, start_new_session=True)
    except OSError:  # no sed
        process = None
    os.close(read)
    if process is None:
        os.close(write)
        os.close(saved)
        yield
        return
    os.dup2(write, 2)
    os.close(write)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        try:
            process.wait(_PATIENCE)  # until all is shown
        except subprocess.TimeoutExpired:  # a process that was started in the context still writes there
            log.write(4, "another process keeps the stderr of an import open")


@contextlib.contextmanager
def stderr_to_log() -> Iterator[None]:
    """Send what this process writes to file descriptor 2, of all threads, to the log at its lowest level."""
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            text = file.read().decode("utf8", "replace").strip()
            if text:
                log.write(4, text)
