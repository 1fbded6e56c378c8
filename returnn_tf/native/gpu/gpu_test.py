"""Tests an op on GPUs in a separate process, so that a kernel that hangs or crashes does no other harm."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Optional

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.processes import signal_name
from returnn_tf.util.lazy_tf import tf
from returnn_tf.util.python_child import python_command

#: Exit code of the process if it cannot use the GPUs, e.g. in exclusive mode or without free memory.
NO_GPU = 3

#: Signals that end a process for an error of its own. Others come from schedulers, users, and systems without memory.
_CRASHES = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGTRAP}

#: The driver first compiles TensorFlow's kernels for a GPU that is newer than those that its package was built for.
_SECONDS = 300.0


class NoGpuError(NativeOpError):
    """A process could not use the GPUs, which says nothing about an op."""


class BadKernelError(NativeOpError):
    """An op crashes or hangs on a GPU."""


def passes_on_gpus(name: str, library: str, gpus: Sequence[str], seconds: float = _SECONDS) -> bool:
    """Run the self-test of an op on GPUs.

    :param name: of the op
    :param library: path of the compiled op
    :param gpus: names of the physical devices
    :param seconds: time limit of the process
    :return: False if the GPUs could not be used, so that the op was not tested
    :raises NativeOpError: the op gives wrong results there, hangs or crashes
    """
    code = "from returnn_tf.native.gpu_test_process import run; run()"
    try:
        output_of_child(code, [name, os.path.abspath(library), *gpus], seconds)
    except NoGpuError:
        return False
    return True


def output_of_child(code: str, arguments: Sequence[str], seconds: float) -> str:
    """Run a Python process that uses GPUs, and return its output.

    :param code: what it runs; it exits when its input closes, and with `NO_GPU` if it can't use the GPUs
    :param arguments: its ``sys.argv[1:]``
    :param seconds: time limit
    :raises NoGpuError: it can't use the GPUs
    :raises BadKernelError: it hangs or crashes
    :raises NativeOpError: it fails, is ended by others, or can't be started; the text has the last line that it printed
    """
    read, write = os.pipe()
    try:
        # it exits when the pipe closes, i.e. with this process
        process = subprocess.Popen(
            python_command(code, *arguments), stdin=read, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace",
        )  # fmt: skip
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(
                subprocess.TimeoutExpired
            ):  # the driver may block its end; then it is left running
                process.communicate(timeout=5)
            raise BadKernelError("on the GPU: its test did not end within %g seconds" % seconds) from None
    except OSError as exc:
        raise NativeOpError("on the GPU: its test cannot be run: %s" % (exc.strerror or exc)) from exc
    finally:
        os.close(read)
        os.close(write)
    if process.returncode == 0:
        return output
    said = (output.strip() or errors.strip() or "no message").splitlines()[-1]
    if process.returncode == NO_GPU:
        raise NoGpuError(said)
    if process.returncode < 0:
        error = BadKernelError if -process.returncode in _CRASHES else NativeOpError
        raise error("on the GPU: its test was ended by %s (%s)" % (signal_name(-process.returncode), said))
    raise NativeOpError(said)


def lacks_memory(error: Optional[BaseException]) -> bool:
    """Return whether an error of TensorFlow or of an op says that the GPU, or the machine, has no memory left."""
    return isinstance(error, (tf.errors.ResourceExhaustedError, MemoryError)) or "out of memory" in str(error).lower()
