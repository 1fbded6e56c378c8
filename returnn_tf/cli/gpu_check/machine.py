"""The machine that is checked, and why it may have no GPU to check. It is asked in a child process."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import time
from typing import Any, Optional

from returnn_tf.cli.gpu_check.messages import Machine, print_machine
from returnn_tf.engine.support.devices import gpu_in_use
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.gpu.card import card_in_use, cpu_as_card, cuda_of_driver
from returnn_tf.native.gpu.cuda_toolchain import find_cuda_toolchain, release_of, visible_archs
from returnn_tf.native.sources import OPS
from returnn_tf.util.lazy_tf import tf

#: Megabytes that the largest trial and the trainings need.
_NEEDED_MB = 6000
_BUS_ID = re.compile(r"([0-9A-Fa-f]+):([0-9A-Fa-f:.]+)")


def look(device: str) -> Machine:
    """Return what TensorFlow and the driver of this machine say. It begins to use the GPU.

    :param device: "gpu", or "cpu" to check the CPU in its place
    """
    build = tf.sysconfig.get_build_info()
    facts = {
        "TensorFlow": tf.__version__, "PyTorch": _version("torch") or "not installed",
        "Python": platform.python_version(), "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
    cores = "%d cores" % (os.cpu_count() or 1)
    if device == "cpu":
        tf.config.set_visible_devices([], "GPU")
        facts = {"device": "%s, %s" % (cpu_as_card(), cores), **facts}
        return Machine(facts, ["This is a CPU in place of a GPU: no CUDA kernel runs."])
    reason = _why_no_gpu() or _why_unusable()
    if reason:
        return Machine(facts, [], reason)
    gpu = tf.config.get_visible_devices("GPU")[0]
    capability = tf.config.experimental.get_device_details(gpu).get("compute_capability", (0, 0))
    memory = _memory()
    facts = {
        "device": card_in_use(), "memory": "%d of %d MB free" % memory if memory else "unknown",
        "CPU": "%s, %s" % (cpu_as_card().partition(": ")[2], cores),
        "CUDA of TensorFlow": str(build.get("cuda_version", "unknown")),
        "cuDNN of TensorFlow": str(build.get("cudnn_version", "unknown")), **facts,
    }  # fmt: skip
    remarks = []
    unusable = sorted(op.name for _, op in OPS.items() if op.cuda and tuple(capability) < op.capability)
    if unusable:
        remarks.append(
            "Compute capability %d.%d is too old for the kernels of %s: their forms in TensorFlow are used."
            % (*capability, ", ".join(unusable))
        )
    try:
        nvcc = find_cuda_toolchain(visible_archs(), cuda_of_driver())
        facts["nvcc"] = nvcc.version
        if release_of(nvcc.version) != str(build.get("cuda_version", "")).partition(".")[0]:
            remarks.append(
                "nvcc and TensorFlow are of different releases of CUDA (%s, %s): the native ops have a CUDA runtime of "
                "their own, that of nvcc." % (nvcc.version, build.get("cuda_version", "unknown"))
            )
    except NativeOpError as exc:
        facts["nvcc"] = "none"
        remarks.append("No native op is compiled for the GPU, and the forms in TensorFlow are used: %s." % exc)
    return Machine(facts, remarks)


def _why_no_gpu() -> str:
    """Return why TensorFlow sees no GPU, as one line; "" if it does."""
    if tf.config.get_visible_devices("GPU"):
        return ""
    there = _smi("name")
    if isinstance(there, str):
        return "there is no NVIDIA GPU (%s): the CPU is used." % there
    names = ", ".join(row[0] for row in there)
    if not tf.test.is_built_with_cuda():
        return "%s, but this TensorFlow is for the CPU only: the CPU is used. Install tensorflow[and-cuda]." % names
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        return "%s, but CUDA_VISIBLE_DEVICES=%s shows TensorFlow none: the CPU is used." % (names, hidden)
    return "%s, but TensorFlow doesn't find its CUDA libraries: the CPU is used. Install tensorflow[and-cuda]." % names


def _why_unusable() -> str:
    """Return why the GPU can't be used now, as one line; "" if it can."""
    memory = _memory()
    if memory:
        free_mb, total_mb = memory
        if total_mb < _NEEDED_MB:
            return "the GPU is too small: it has %d MB, and the check needs %d; the CPU is used." % (
                total_mb,
                _NEEDED_MB,
            )
        if free_mb < _NEEDED_MB:
            return "the GPU is busy: %d of %d MB are free, and the check needs %d. Wait for other programs." % (
                free_mb, total_mb, _NEEDED_MB,
            )  # fmt: skip
    try:
        for gpu in tf.config.get_visible_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
        if not tf.config.list_logical_devices("GPU"):
            return "%s is not supported by this TensorFlow, e.g. too old: the CPU is used." % card_in_use()
        with tf.device("GPU:0"):
            tf.zeros([1]).numpy()
    except (tf.errors.OpError, RuntimeError) as exc:
        return (
            "the GPU can't be used now (%s). Wait for other programs, or see its compute mode."
            % (str(exc).splitlines()[0])
        )
    return ""


def _memory() -> Optional[tuple[int, int]]:
    """Return the free and the total megabytes of the GPU in use; None if ``nvidia-smi`` does not tell.

    It lists all GPUs of the machine, in another order than CUDA, and also those that CUDA_VISIBLE_DEVICES hides.
    """
    rows = _smi("pci.bus_id,memory.free,memory.total")
    if isinstance(rows, str):
        return None
    wanted = _bus(gpu_in_use())
    found = rows if len(rows) == 1 else [row for row in rows if wanted and _bus(row[0]) == wanted]
    numbers = [int(word) for row in found for word in row[1:] if word.isdigit()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None


def _bus(text: str) -> Optional[tuple[int, str]]:
    """Return a PCI bus ID in one form: its domain has four digits for CUDA, and eight for ``nvidia-smi``."""
    found = _BUS_ID.fullmatch(text)
    return (int(found[1], 16), found[2].upper()) if found else None


def _smi(query: str) -> Any:
    """Return rows of what ``nvidia-smi`` tells, or why it tells nothing."""
    if shutil.which("nvidia-smi") is None:
        return "no nvidia-smi, which comes with the driver"
    command = ["nvidia-smi", "--query-gpu=" + query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return "nvidia-smi: %s" % exc
    said = [line.strip() for line in done.stdout.splitlines() + done.stderr.splitlines() if line.strip()]
    if done.returncode:
        return said[0] if said else "nvidia-smi failed"
    return [[word.strip() for word in line.split(",")] for line in said] or "nvidia-smi lists none"


def _version(package: str) -> Optional[str]:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def tell(device: str) -> None:
    """Print what is checked."""
    print_machine(look(device))
