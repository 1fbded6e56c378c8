"""``returnn-tf doctor``: which components are installed, and how to install the missing ones.

Each check is a function in a table. None of them may raise: the command has to work on a broken installation. What may
crash or hang runs in child processes. They import what this process imports: Python would put the current folder first.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

from returnn_tf._version import shown_version
from returnn_tf.cli.commands import register_command
from returnn_tf.cli.gpu_check import run_check
from returnn_tf.cli.shared.parser import CommandParser
from returnn_tf.config.errors import CommandError
from returnn_tf.engine.distributed import horovod
from returnn_tf.logging.text import paint, wants_color
from returnn_tf.util.installing import install_command
from returnn_tf.util.python_child import python_command

_TENSORFLOW_NAMES = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos", "tf-nightly")
#: Releases that are tested, see docs/versions.md; Pythons for which there is one of them.
_TENSORFLOWS = ((2, 16), (2, 21))
_PYTHONS = ((3, 9), (3, 13))
#: A line of the self-test with the result of an op; others tell what it does.
_RESULT = re.compile(r"\w+: ")
#: For compiling and testing all native ops: minutes of one core, and this machine may have others to run.
_SECONDS = 1800.0
_REPORT = "gpu-check.md"
_DOC = """
Show what is installed, what is missing and how to install it. The native ops are compiled where they are new, and
tested, which takes some minutes the first time. The exit code is 1 if a required component is missing.

    returnn-tf doctor              all of this
    returnn-tf doctor --quick      without the native ops
    returnn-tf doctor --gpu        check the GPU of this machine

--gpu compiles all CUDA kernels for this GPU, compares each with its form for the CPU and its form in TensorFlow, and
its speed with that of the latter; runs the tests for GPUs; times an LSTM beside cuDNN, and PyTorch if it is installed;
trains a BLSTM and a Transformer. All figures, and what failed, are in gpu-check.md: please send it to us. The exit code
is 1 if something failed, and 2 if there is no GPU that can be used.
"""
_MODULE = "from %s import main; sys.exit(main())"
_PROBE = """
import json
from returnn_tf.util.lazy_tf import tf
print("PROBE" + json.dumps({
    "version": tf.__version__,
    "cuda": tf.test.is_built_with_cuda(),
    "gpus": [tf.config.experimental.get_device_details(d).get("device_name", d.name)
             for d in tf.config.list_physical_devices("GPU")],
}))
"""

#: A rank that is alone starts its server and sums a number with itself, as several do with each other.
_COLLECTIVES_PROBE = """
import socket
from returnn_tf.engine.distributed import tf_server
from returnn_tf.util.lazy_tf import tf
with socket.create_server(("127.0.0.1", 0)) as holder:
    port = holder.getsockname()[1]
tf_server.start(["127.0.0.1:%d" % port], 0)
total = tf.raw_ops.CollectiveReduceV2(
    input=tf.constant(2.0), group_size=1, group_key=1, instance_key=1, ordering_token=[], merge_op="Add", final_op="Id"
)
print("PROBE" * (float(total) == 2.0))
"""

_HOROVOD_PROBE = """
import json, os
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import horovod.tensorflow as hvd
print("PROBE" + json.dumps({"MPI": hvd.mpi_built(), "Gloo": hvd.gloo_built(), "NCCL": bool(hvd.nccl_built())}))
"""


@dataclass
class Diagnosis:
    """The result of a check."""

    found: bool
    detail: str
    advice: str = ""


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str
    look: Callable[[], Diagnosis]
    required: bool
    slow: bool = False


@register_command(
    "doctor",
    "[--quick] | --gpu [--output FILE]",
    "show what is installed, what is missing and how to install it; check a GPU",
    own_help=lambda _: _parser().format_help(),
    group="start",
)
def run(args: list[str]) -> int:
    """Print the report.

    :return: exit code: 0, or 1 if a required component is missing
    """
    options = _parser().parse_args(args)
    if options.gpu:
        return run_check(options.output, device=options.device, quick=options.quick)
    if options.output != _REPORT or options.device != "gpu":
        raise CommandError("doctor: --output and --device are options of doctor --gpu.")
    color = wants_color(sys.stdout)
    missing = []
    print("returnn_tf %s on %s" % (shown_version(), platform.platform()), flush=True)
    for check in CHECKS:
        finding = Diagnosis(False, "not tested, because of --quick") if options.quick and check.slow else examine(check)
        if not finding.found and check.required:
            missing.append(check.name)
        word, hue = ("found", "green") if finding.found else ("MISSING", "red") if check.required else ("-", "yellow")
        print("  %-15s %s  %s" % (check.name, paint("%-7s" % word, hue, color), finding.detail))
        if finding.advice:
            print(" " * 27 + "-> " + finding.advice)
        sys.stdout.flush()
    print("Required, but missing: %s" % ", ".join(missing) if missing else "All required components are installed.")
    return 1 if missing else 0


def _parser() -> CommandParser:
    parser = CommandParser("doctor", _DOC)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="neither compile nor test the native ops; with --gpu: small sizes, few steps",
    )
    parser.add_argument("--gpu", action="store_true", help="check the GPU, and write a report")
    parser.add_argument("--output", metavar="FILE", default=_REPORT, help="the report (default %(default)s)")
    # not in the help: runs the same check on a machine without a GPU
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu", help=argparse.SUPPRESS)
    return parser


def examine(check: Check) -> Diagnosis:
    """Run a check; its own failure counts as a finding."""
    try:
        return check.look()
    except Exception as exc:
        return Diagnosis(False, "the check failed: %s: %s" % (type(exc).__name__, exc))


def version_of(*distributions: str) -> Optional[str]:
    """Return ``name version`` of the first of these distributions that is installed."""
    for name in distributions:
        try:
            return "%s %s" % (name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def output_of(command: Sequence[str], timeout: float = 60.0) -> Optional[str]:
    """Return the output of a program; None if it is missing, fails or hangs."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(list(command), capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _python() -> Diagnosis:
    supported = _PYTHONS[0] <= sys.version_info[:2] <= _PYTHONS[1]
    advice = "" if supported else "use one of %s" % _range(_PYTHONS)
    return Diagnosis(supported, "%s (%s)" % (platform.python_version(), sys.executable), advice)


def _package(distribution: str, advice: str) -> Callable[[], Diagnosis]:
    def look() -> Diagnosis:
        version = version_of(distribution)
        return Diagnosis(True, version) if version else Diagnosis(False, "not installed", advice)

    return look


_probed: list[Optional[dict[str, Any]]] = []


def probe_tensorflow() -> Optional[dict[str, Any]]:
    """Find version and GPUs in a subprocess: a TensorFlow that crashes must not take us along."""
    if not _probed:
        output = output_of(python_command(_PROBE), timeout=120)
        lines = [line for line in (output or "").splitlines() if line.startswith("PROBE")]
        _probed.append(json.loads(lines[-1][len("PROBE") :]) if lines else None)
    return _probed[0]


def _tensorflow() -> Diagnosis:
    version = version_of(*_TENSORFLOW_NAMES)
    if version is None:
        return Diagnosis(False, "not installed", _cpu_or_gpu())
    probed = probe_tensorflow()
    if probed is None:
        return Diagnosis(
            False, version + ", but it can't be imported", "see the error of: python -c 'import tensorflow'"
        )
    if not _TENSORFLOWS[0] <= _release(probed["version"]) <= _TENSORFLOWS[1]:
        return Diagnosis(True, version, "only tested with %s" % _range(_TENSORFLOWS))
    return Diagnosis(True, version)


def _cpu_or_gpu() -> str:
    return "%s; with an NVIDIA GPU: %s" % (install_command("cpu"), install_command("gpu"))


def _release(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _range(releases: tuple[tuple[int, int], tuple[int, int]]) -> str:
    """Return the first and the last one as text."""
    return "%d.%d - %d.%d" % (*releases[0], *releases[1])


def _gpu() -> Diagnosis:
    probed = probe_tensorflow()
    if probed and probed["gpus"]:
        return Diagnosis(True, ", ".join(probed["gpus"]))
    names = output_of(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    if not names:
        return Diagnosis(False, "none; computing on the CPU")
    detail = "%s, but TensorFlow doesn't see it" % names.strip().replace("\n", ", ")
    if probed is None:
        return Diagnosis(False, detail, "install TensorFlow: " + install_command("gpu"))
    if not probed["cuda"]:
        return Diagnosis(False, detail, "this TensorFlow is for the CPU only: " + install_command("gpu"))
    return Diagnosis(False, detail, "its CUDA libraries are missing: " + install_command("gpu"))


def _compiler() -> Diagnosis:
    name = os.environ.get("CXX", "g++")
    output = output_of([name, "--version"])
    if output:
        return Diagnosis(True, output.splitlines()[0])
    return Diagnosis(False, "no %s; native ops can't be compiled" % name, "apt-get install g++, or set CXX")


def _nvcc() -> Diagnosis:
    """Look for nvcc in a subprocess: the package of native ops needs numpy."""
    output = output_of(python_command(_MODULE % "returnn_tf.native.gpu.find_nvcc"))
    if output:
        return Diagnosis(True, output.strip())
    return Diagnosis(
        False,
        "native ops run on the CPU only",
        "for a GPU: install the CUDA toolkit or the extra nvcc, or set CUDA_HOME",
    )


def _native_ops() -> Diagnosis:
    """Compile and test the native ops in a subprocess, as a miscompiled op may crash; show its progress."""
    command = python_command(_MODULE % "returnn_tf.native.self_test")
    print("  native ops      compiled where they are new, and tested; --quick leaves this out", flush=True)
    results = []
    with tempfile.TemporaryFile("w+", encoding="utf8", errors="replace") as errors:
        try:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace")
        except OSError as exc:
            return Diagnosis(False, "they can't be compiled and tested: %s" % exc)
        assert process.stdout is not None
        limit = threading.Timer(_SECONDS, process.kill)
        limit.start()
        try:
            with process:
                for line in process.stdout:
                    if _RESULT.match(line):
                        results.append(line.strip())
                    else:
                        print("    " + line.rstrip(), flush=True)
        except BaseException:
            process.kill()
            raise
        finally:
            limit.cancel()
        errors.seek(0)
        complaints = errors.read().strip().splitlines()
    if process.returncode == 0:
        tested = [line.replace(": ok on", " on").replace(": ok", "") for line in results]
        return Diagnosis(True, ", ".join(tested) + ": compiled for this machine and tested")
    wrong = [line for line in results if ": ok" not in line]
    last = (complaints or ["exit code %d" % process.returncode])[-1]
    return Diagnosis(False, wrong[0] if wrong else last, "plain TensorFlow is used instead, which is slower")


def _collectives() -> Diagnosis:
    """Start TensorFlow's server in a subprocess."""
    if version_of(*_TENSORFLOW_NAMES) is None:
        return Diagnosis(False, "TensorFlow is not installed")
    output = output_of(python_command(_COLLECTIVES_PROBE), timeout=120)
    if output is None or "PROBE" not in output:
        advice = "one process works; for several, see the error of: returnn-tf launch --processes 2 my.config"
        return Diagnosis(False, "TensorFlow's server does not start", advice)
    return Diagnosis(True, "several processes by TensorFlow: returnn-tf launch, srun")


def _horovod() -> Diagnosis:
    version = version_of("horovod")
    if version is None:
        tensorflow = version_of(*_TENSORFLOW_NAMES) or ""
        later = tensorflow and _release(tensorflow.split()[-1]) > _TENSORFLOWS[0]
        note = " (Horovod is made for TensorFlow %d.%d; with a later one it may not build)" % _TENSORFLOWS[0]
        advice = "for several processes by mpirun or horovodrun: " + horovod.install() + (note if later else "")
        return Diagnosis(False, "not installed", advice)
    output = output_of(python_command(_HOROVOD_PROBE), timeout=120)
    lines = [line for line in (output or "").splitlines() if line.startswith("PROBE")]
    if not lines:
        advice = "built without TensorFlow, or for another version: pip uninstall -y horovod; " + horovod.install()
        return Diagnosis(False, version + ", but horovod.tensorflow can't be imported", advice)
    built = json.loads(lines[-1][len("PROBE") :])
    return Diagnosis(True, "%s with %s" % (version, ", ".join(name for name in built if built[name]) or "nothing"))


CHECKS = [
    Check("Python", _python, required=True),
    Check("numpy", _package("numpy", "pip install numpy"), required=True),
    Check("h5py", _package("h5py", "pip install h5py"), required=True),
    Check("TensorFlow", _tensorflow, required=True),
    Check("GPU", _gpu, required=False),
    Check("C++ compiler", _compiler, required=False),
    Check("nvcc", _nvcc, required=False),
    Check("native ops", _native_ops, required=False, slow=True),
    Check("collectives", _collectives, required=False),
    Check("Horovod", _horovod, required=False),
    Check("soundfile", _package("soundfile", "for audio: " + install_command("audio")), required=False),
    Check("matplotlib", _package("matplotlib", "to draw: " + install_command("plot")), required=False),
]
