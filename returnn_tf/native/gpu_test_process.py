"""The process in which an op is tested on GPUs. Its arguments: NAME LIBRARY GPU ...

It prints an error as one line. Exit code: 0, 1, or `gpu_test.NO_GPU`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.gpu.gpu_test import NO_GPU, lacks_memory
from returnn_tf.native.library import load_library, run_test_on
from returnn_tf.native.sources import OPS
from returnn_tf.util.lazy_tf import tf


def main(arguments: Sequence[str]) -> int:
    """Run the command.

    :param arguments: of the command line
    :return: exit code
    """
    name, library, *gpus = arguments
    try:
        devices = claim(gpus)
    except (tf.errors.OpError, RuntimeError, ValueError) as exc:
        print(exc)
        return NO_GPU
    try:
        ops = load_library(library)
        self_test = OPS[name].self_test
        assert self_test is not None
        for device in devices:
            run_test_on(device, ops, self_test)
    except NativeOpError as exc:
        print(exc)
        return NO_GPU if lacks_memory(exc.__cause__) or lacks_memory(exc) else 1
    return 0


def claim(names: Sequence[str]) -> list[str]:
    """Make only these physical GPUs visible, without allocating all of their memory.

    :return: their names as TensorFlow devices
    :raises RuntimeError: one is missing
    """
    gpus = [gpu for gpu in tf.config.list_physical_devices("GPU") if gpu.name in names]
    if not gpus or len(gpus) < len(names):
        raise RuntimeError("TensorFlow sees no %s" % " or ".join(names))
    tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    devices = ["GPU:%d" % index for index in range(len(gpus))]
    for device in devices:
        with tf.device(device):
            tf.zeros([1]).numpy()
    return devices


def end_with_parent() -> None:
    """Exit as soon as the parent process has exited or stopped waiting."""

    def watch() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run() -> None:
    """Run the process."""
    end_with_parent()
    sys.exit(main(sys.argv[1:]))
