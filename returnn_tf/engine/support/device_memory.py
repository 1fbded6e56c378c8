"""Memory of the device of this process: how much of it a training may use, and what a step needs at its peak."""

from __future__ import annotations

import ctypes
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any, Callable, Optional

from returnn_tf.config.errors import SettingDataError
from returnn_tf.util.lazy_tf import tf

#: Share of the memory of a GPU that steps may take; libraries, fragments and updates need some, too.
_GPU_SHARE = 0.9
#: Share of the main memory that is available which steps may take; data and other programs need some, too.
_CPU_SHARE = 0.5
_DRIVER = "libcuda.so.1"
_GIVE = "Give batch_size a number of frames."
#: What a cgroup writes that has no limit, and about which v1 writes instead.
_NO_LIMIT, _HUGE = "max", 1 << 60
#: Bytes of files that are in memory, which a cgroup counts as used, but frees when they are needed; v1, v2.
_CACHES = ("total_active_file", "total_inactive_file"), ("active_file", "inactive_file")


@dataclasses.dataclass(frozen=True)
class DeviceMemory:
    """What steps on the device of this process may use.

    :param device: its name in TensorFlow
    :param limit: bytes, parameters and states of the optimizer included
    """

    device: str
    limit: int

    def peak_of(self, step: Callable[[], Any]) -> Optional[int]:
        """Run a step, and return the most bytes that were in use meanwhile; None: they did not suffice.

        :raises DataError: TensorFlow does not tell
        """
        try:
            tf.config.experimental.reset_memory_stats(self.device)
            step()
            return int(tf.config.experimental.get_memory_info(self.device)["peak"])
        except (tf.errors.ResourceExhaustedError, MemoryError):
            return None
        except ValueError as exc:  # its allocator keeps no statistics
            raise SettingDataError(
                "batch_size = 'auto': TensorFlow does not tell the memory of a step on %s: %s. %s"
                % (self.device, exc, _GIVE)
            ) from None


def of_this_process(local_size: int = 1) -> DeviceMemory:
    """Return the memory of the first GPU that TensorFlow sees, or the main memory if there is none.

    :param local_size: number of processes on this machine, which share the main memory
    :raises DataError: its size is not known
    """
    gpus: list[Any] = tf.config.get_visible_devices("GPU")
    if gpus:
        return DeviceMemory("GPU:0", int(_GPU_SHARE * _gpu_memory(int(gpus[0].name.rpartition(":")[2]))))
    return DeviceMemory("CPU:0", int(_CPU_SHARE * available_memory() / local_size))


def _gpu_memory(number: int) -> int:
    """Return the bytes of a GPU, by the number that CUDA gives it.

    :raises DataError: the driver does not tell
    """
    size, device = ctypes.c_size_t(), ctypes.c_int()
    try:
        driver = ctypes.CDLL(_DRIVER)
        failed = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), number)
        failed = failed or driver.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    except (OSError, AttributeError):
        failed = 1
    if failed:
        raise SettingDataError(
            "batch_size = 'auto': the driver of CUDA does not tell the memory of the GPU. %s" % _GIVE
        )
    return size.value


def available_memory(root: pathlib.Path = pathlib.Path("/")) -> int:
    """Return the bytes of main memory that are free, or can be freed, within the limits of the cgroups.

    :param root: where ``proc`` and ``sys`` are
    :raises DataError: the system does not tell
    """
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        raise SettingDataError(
            "batch_size = 'auto': /proc/meminfo does not tell the memory that is available. %s" % _GIVE
        ) from None
    return min([free, *_left_in_cgroups(root)])


def _left_in_cgroups(root: pathlib.Path) -> Iterator[int]:
    """Yield the bytes that are left in the cgroup of this process and in those around it, where they have a limit."""
    for folder, limit, usage in _cgroups(root):
        for each in (folder, *folder.parents):
            if each == root / "sys/fs/cgroup" or root / "sys/fs/cgroup" in each.parents:
                try:
                    most, used = (each / limit).read_text().strip(), int((each / usage).read_text())
                except (OSError, ValueError):
                    continue
                if most != _NO_LIMIT and int(most) < _HUGE:
                    yield max(int(most) - max(used - _cached(each), 0), 0)


def _cached(folder: pathlib.Path) -> int:
    """Return the bytes that a cgroup can free; 0 if it does not tell."""
    try:
        found = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return next((sum(int(found[name]) for name in names) for names in _CACHES if names[0] in found), 0)
    except (OSError, ValueError, KeyError):
        return 0


def _cgroups(root: pathlib.Path) -> Iterator[tuple[pathlib.Path, str, str]]:
    """Yield the folder of each cgroup of this process that can limit memory, and its files of limit and usage."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mounted = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        inside = path.lstrip("/")
        if not controllers:
            yield mounted / inside, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            yield mounted / "memory" / inside, "memory.limit_in_bytes", "memory.usage_in_bytes"
