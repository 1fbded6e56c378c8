"""The process in which an op is tried out on a GPU. Its arguments: LIBRARY WIDTH TYPE DEVICE WITH_CPU TF32 GPU ...

It prints the verdict, or an error as one line. Exit code: 0; `gpu_test.NO_GPU` if it can't use the GPU; 1 if no process
would find a verdict.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.gpu.gpu_test import NO_GPU
from returnn_tf.native.gpu_test_process import claim, end_with_parent
from returnn_tf.native.library import load_library
from returnn_tf.native.trials.measured import NoMemoryError, verdict_here, verdict_line
from returnn_tf.native.trials.trial import Trial
from returnn_tf.util.lazy_tf import tf


def main(trial: Trial, arguments: Sequence[str]) -> int:
    """Run the command.

    :param arguments: of the command line
    :return: exit code
    """
    library, width, dtype, device, with_cpu, tf32, *gpus = arguments
    try:
        if gpus:
            claim(gpus)
        else:
            tf.config.set_visible_devices([], "GPU")
    except (tf.errors.OpError, RuntimeError, ValueError) as exc:
        print(str(exc).splitlines()[0])
        return NO_GPU
    tf.config.experimental.enable_tensor_float_32_execution(tf32 == "1")
    try:
        ops = load_library(library)
        print(verdict_line(verdict_here(trial, ops, int(width), dtype, device, with_cpu == "1")))
    except NoMemoryError as exc:  # the process that asks may have some
        print(exc)
        return NO_GPU
    except NativeOpError as exc:
        print(exc)
        return 1
    return 0


def run(trial: Trial) -> None:
    """Run the process."""
    end_with_parent()
    sys.exit(main(trial, sys.argv[1:]))
