"""Device selection and memory use: ``device`` and ``tf_session_opts``."""

from __future__ import annotations

import ctypes
import os
import re
import socket
from collections.abc import Mapping
from functools import partial
from typing import Any, Callable, Optional

from returnn_tf.compiler.for_xla import announce_xla
from returnn_tf.config import Config
from returnn_tf.config.errors import SettingError
from returnn_tf.config.settings.logging import LoggingSettings
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.logging.log import log
from returnn_tf.logging.memory import process_memory
from returnn_tf.logging.text import bytes_text
from returnn_tf.util.lazy_tf import tf

_DRIVER = "libcuda.so.1"
_LONGEST_BUS_ID = 32
_DEVICE = re.compile(r"^(cpu|gpu(\d*)|all)$")


_for_rank: list[int] = []  # the local rank for which the device was chosen


def set_up(config: Config, local_rank: int = 0, local_size: int = 1, cores: Optional[int] = None) -> None:
    """Choose the device; to be called before anything is computed.

    ``cpu``; ``gpu`` or ``gpu<index>``; absent or ``all``: a GPU if there is one. GPU memory is taken as it is needed.
    With several processes on a host, each uses the GPU of its local rank, and its share of the cores. This is done once
    they are connected; later calls do nothing.

    :param local_rank: of this process on its host
    :param local_size: number of processes on this host
    :param cores: share of this process if there are several, the number of its threads unless the config has one
    :raises ConfigError: another value, or a GPU that does not exist
    """
    if _for_rank:
        return
    if local_size > 1:
        _for_rank.append(local_rank)
    if NetworkSettings(config).jit_compile:
        announce_xla()  # TensorFlow reads its flags along with its devices
    wanted = TaskSettings(config).device.lower()
    match = _DEVICE.match(wanted)
    if match is None:
        raise SettingError("device must be 'cpu', 'gpu' or 'gpu<index>', not %r." % wanted)
    gpus: list[Any] = tf.config.list_physical_devices("GPU")
    index = int(match.group(2) or _gpu_of_rank(local_rank, local_size, 0 if wanted == "cpu" else len(gpus)))
    if wanted.startswith("gpu") and index >= len(gpus):
        raise SettingError(
            "device = %r, but TensorFlow sees %i GPUs. Run returnn-tf doctor, or compute on the CPU: ++device cpu"
            % (wanted, len(gpus))
        )
    options = LoggingSettings(config).tf_session_opts or {}
    if cores is not None:
        options = {"intra_op_parallelism_threads": cores, **options}
    _session_options(options)
    if gpus:
        visible = [] if wanted == "cpu" else gpus[index : index + 1]
        _unless_running(lambda: tf.config.set_visible_devices(visible, "GPU"), "device")
        for gpu in visible:
            _unless_running(partial(tf.config.experimental.set_memory_growth, gpu, True), "device")
    _set_tensor_float_32(NetworkSettings(config).tensor_float_32)
    if not tf.config.get_visible_devices("GPU"):
        # It infers all shapes of a graph, a tenth of the time before the first step, and then leaves CPUs their layout.
        tf.config.optimizer.set_experimental_options({"layout_optimizer": False})


def _set_tensor_float_32(wanted: Optional[bool]) -> None:
    """Allow TF32 or forbid it, in TensorFlow's products and in those of native ops, and log what a GPU will do.

    :param wanted: the setting ``tensor_float_32``
    """
    switch = tf.config.experimental
    if wanted is not None:
        switch.enable_tensor_float_32_execution(wanted)
    if tf.config.get_visible_devices("GPU"):
        allowed = switch.tensor_float_32_execution_enabled()
        log.write(
            4 if wanted is None else 3, "Products of float32 on the GPU %s TF32" % ("use" if allowed else "don't use")
        )
    elif wanted is not None:
        log.write(3, "tensor_float_32 has no effect: it is for GPUs, and this process uses none")


def _gpu_of_rank(local_rank: int, local_size: int, number: int) -> int:
    """Return the index of the GPU for a process; 0 where the scheduler shows it a single GPU.

    :param number: of GPUs
    :raises ConfigError: there are fewer GPUs than processes
    """
    if local_size == 1 or number < 2:
        return 0
    if number < local_size:
        raise SettingError(
            "%d processes run on this host (%s), but it has %d GPUs. Start one process for each GPU, or compute on the "
            "CPU: ++device cpu" % (local_size, socket.gethostname(), number)
        )
    return local_rank


def gpu_in_use() -> str:
    """Return what tells the GPU of this process from others of the machine; "" if it has none.

    That is the PCI bus ID, as NCCL goes by it: numbers of GPUs are those that the process sees, and where a scheduler
    shows each process one GPU, all of them have number 0. Parts of a GPU (MIG) have the same.
    """
    gpus: list[Any] = tf.config.get_visible_devices("GPU")
    if not gpus:
        return ""
    number = int(gpus[0].name.rpartition(":")[2])  # that of CUDA
    return _pci_bus_id(number) or "%d of CUDA_VISIBLE_DEVICES=%s" % (number, os.environ.get("CUDA_VISIBLE_DEVICES", ""))


def _pci_bus_id(number: int) -> str:
    """Return the PCI bus ID of a GPU by its number; "" if there is no driver of CUDA, or it does not tell."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return ""
    device, text = ctypes.c_int(), ctypes.create_string_buffer(_LONGEST_BUS_ID)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), number):
        return ""
    if driver.cuDeviceGetPCIBusId(text, _LONGEST_BUS_ID, device):
        return ""
    return text.value.decode("ascii")


def memory_text() -> str:
    """Return the memory used by the process, and the peak of each GPU: ``1.5GB, GPU:0 3.0GB``."""
    return ", ".join(
        bytes_text(value) if name == "process" else "%s %s" % (name, bytes_text(value))
        for name, value in memory_bytes().items()
    )


def memory_bytes() -> dict[str, int]:
    """Return the bytes used by the process, as ``process``, and the peak of each GPU by its name."""
    values = {"process": process_memory()}
    for index, _ in enumerate(tf.config.list_logical_devices("GPU")):
        name = "GPU:%i" % index
        values[name] = tf.config.experimental.get_memory_info(name)["peak"]
    return values


def _session_options(options: Mapping[str, Any]) -> None:
    """Apply the options of a TensorFlow 1 session that still have an effect: the numbers of threads."""
    setters: dict[str, Callable[[int], Optional[Any]]] = {
        "intra_op_parallelism_threads": tf.config.threading.set_intra_op_parallelism_threads,
        "inter_op_parallelism_threads": tf.config.threading.set_inter_op_parallelism_threads,
    }
    for name, value in options.items():
        if name in setters:
            _unless_running(partial(setters[name], int(value)), "tf_session_opts %r" % name)


def _unless_running(change: Callable[[], Any], what: str) -> None:
    try:
        change()
    except RuntimeError as exc:  # TensorFlow has started already, e.g. in an interactive session
        log.warn("%s can't be changed any more in this process: %s" % (what, exc))
