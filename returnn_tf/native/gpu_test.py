"""Tests an op on GPUs in a process of its own, such that a kernel which hangs or crashes takes nothing else along."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import List, Sequence

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.processes import signal_name

#: Exit code of the process if it cannot use the GPUs, as where they let only one process in, or have no memory left.
NO_GPU = 3

_SECONDS = 120.0
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def passes_on_gpus(name: str, library: str, gpus: Sequence[str], seconds: float = _SECONDS) -> bool:
    """Run the self-test of an op on GPUs.

    :param name: of the op
    :param library: path of the compiled op
    :param gpus: names of the physical devices
    :param seconds: the process may take
    :return: False if it could not use the GPUs: then nothing is known about the op
    :raises NativeOpError: the op computes something wrong there, hangs or crashes
    """
    read, write = os.pipe()
    try:
        # It ends with the pipe, that is with this process. The folder: nothing in the current one is imported.
        process = subprocess.Popen(
            _command(name, os.path.abspath(library), gpus), stdin=read, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", cwd=_ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join(_paths())},
        )  # fmt: skip
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the driver may hold it; then it has to stay
                process.communicate(timeout=5)
            raise NativeOpError("on the GPU: its test did not end within %g seconds" % seconds) from None
    except OSError as exc:
        raise NativeOpError("on the GPU: its test cannot be run: %s" % (exc.strerror or exc)) from exc
    finally:
        os.close(read)
        os.close(write)
    if process.returncode in (0, NO_GPU):
        return process.returncode == 0
    said = (output.strip() or errors.strip() or "no message").splitlines()[-1]
    if process.returncode < 0:
        raise NativeOpError("on the GPU: its test was ended by %s (%s)" % (signal_name(-process.returncode), said))
    raise NativeOpError(said)


def _command(name: str, library: str, gpus: Sequence[str]) -> List[str]:
    return [sys.executable, "-m", "returnn_tf.native.gpu_test_process", name, library, *gpus]


def _paths() -> List[str]:
    """What this process imports from."""
    return [os.path.abspath(path) for path in sys.path if path]
