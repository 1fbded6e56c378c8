"""The GPUs that a process uses, as they are named in records of what was measured on them."""

from __future__ import annotations

import ctypes
import functools
import platform
from typing import Optional

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.processes import output_of
from returnn_tf.util.lazy_tf import tf


def card_in_use() -> str:
    """Return names and compute capabilities of the visible GPUs, and the version of their driver; "" without a GPU."""
    gpus = tf.config.get_visible_devices("GPU")
    return "%s, driver %s" % (" + ".join(sorted({_name(gpu) for gpu in gpus})), driver_version()) if gpus else ""


def cpu_as_card() -> str:
    """Return the name of the CPU, for a trial that runs there in place of a GPU."""
    try:
        with open("/proc/cpuinfo", encoding="utf8", errors="replace") as f:
            names = [line.partition(":")[2].strip() for line in f if line.startswith("model name")]
    except OSError:
        names = []
    return "CPU: %s" % (names[0] if names else platform.machine())


@functools.cache
def driver_version() -> str:
    """Return the version of NVIDIA's driver, or "unknown" where ``nvidia-smi`` does not tell it."""
    try:
        lines = output_of(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]).split()
    except NativeOpError:
        return "unknown"
    return lines[0] if lines else "unknown"


def cuda_of_driver() -> Optional[int]:
    """Return the last major release of CUDA whose programs the driver runs, as 12; None without a driver.

    Of the library that programs get, which may be newer than the module of the kernel that ``nvidia-smi`` tells.
    """
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed else version.value // 1000


def _name(gpu: tf.config.PhysicalDevice) -> str:
    details = tf.config.experimental.get_device_details(gpu)
    capability = details.get("compute_capability")
    return str(details.get("device_name", "GPU")) + (" (sm_%d%d)" % tuple(capability) if capability else "")
