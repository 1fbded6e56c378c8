"""The machine that is checked, and why it may have no GPU to check. It is asked in a child process."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
from typing import Any, Optional

from returnn_tf.cli.gpu_check.messages import Machine, print_machine
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.gpu.card import card_in_use, cpu_as_card
from returnn_tf.native.gpu.cuda_toolchain import find_cuda_toolchain, release_of, visible_archs
from returnn_tf.util.lazy_tf import tf

#: The kernels with products on tensor cores need this compute capability: lstm, gru, mdlstm.
_TENSOR_CORES = (8, 0)
#: Megabytes that the largest trial and the trainings need.
_NEEDED_MB = 6000


def look(device: str) -> Machine:
    """Return what TensorFlow and the driver of this machine say. It begins to use the GPU.

    :param device: "gpu", or "cpu" to check the CPU in its place
    """
    build = tf.sysconfig.get_build_info()
    facts = {"TensorFlow": tf.__version__, "PyTorch": _version("torch") or "not installed"}
    if device == "cpu":
        tf.config.set_visible_devices([], "GPU")
        return Machine({"device": cpu_as_card(), **facts}, ["This is a CPU in place of a GPU: no CUDA kernel runs."])
    reason = _why_no_gpu() or _why_unusable()
    if reason:
        return Machine(facts, [], reason)
    gpu = tf.config.get_visible_devices("GPU")[0]
    capability = tf.config.experimental.get_device_details(gpu).get("compute_capability", (0, 0))
    facts = {"device": card_in_use(), "CUDA of TensorFlow": str(build.get("cuda_version", "unknown")), **facts}
    remarks = []
    if tuple(capability) < _TENSOR_CORES:
        remarks.append(
            "Compute capability %d.%d is too old for the kernels of lstm, gru and mdlstm, which need %d.%d: their "
            "forms in TensorFlow are used." % (*capability, *_TENSOR_CORES)
        )
    try:
        nvcc = find_cuda_toolchain(visible_archs())
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
    free = _smi("memory.free,memory.total")
    if not isinstance(free, str) and all(word.isdigit() for word in free[0]):
        free_mb, total_mb = map(int, free[0])
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
        with tf.device("GPU:0"):
            tf.zeros([1]).numpy()
    except (tf.errors.OpError, RuntimeError) as exc:
        return (
            "the GPU can't be used now (%s). Wait for other programs, or see its compute mode."
            % (str(exc).splitlines()[0])
        )
    return ""


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
