"""The CUDA compiler, its target GPUs and its flags."""

from __future__ import annotations

import glob
import os
import re
import shutil
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

from returnn_tf.logging.log import log
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.processes import command_in, output_of
from returnn_tf.util.lazy_tf import tf

_FIX = (
    "install the CUDA toolkit (version 12 or later) or set CUDA_HOME to where it is; for drivers since 580 the extra "
    "'nvcc' of this package will do"
)
_ARCH = re.compile(r"^sm_[0-9]+[a-z]?$")


@dataclass(frozen=True)
class CudaToolchain:
    """A working nvcc.

    :param nvcc: the command
    :param version: its release and build
    :param archs: the GPUs to compile for, as "sm_90", in ascending order
    """

    nvcc: tuple[str, ...]
    version: str
    archs: tuple[str, ...]

    def kernel_flags(self) -> list[str]:
        """Return flags for machine code for each GPU, plus PTX for newer ones, which their driver compiles."""
        numbers = [arch[len("sm_") :] for arch in self.archs]
        codes = ["arch=compute_%s,code=sm_%s" % (number, number) for number in numbers]
        codes.append("arch=compute_%s,code=compute_%s" % (numbers[-1], numbers[-1]))
        # the compiler that fits TensorFlow may be newer or older than nvcc supports; the kernels need little of it
        flags = ["-O3", "-std=c++17", "-allow-unsupported-compiler", "-Xcompiler", "-fPIC", "--threads", "0"]
        return [*flags, *(word for code in codes for word in ("-gencode", code))]

    def compile_command(self, compiler: Sequence[str]) -> list[str]:
        """Return the command, to be completed with ``-c source -o object``.

        :param compiler: the compiler for host code
        """
        return [*self.nvcc, "-ccbin", compiler[-1], *self._places("-I", "include"), *self.kernel_flags()]

    def link_command(self, compiler: Sequence[str], rpath: str) -> list[str]:
        """Return the command, to be completed with objects, libraries and ``-o library``.

        The CUDA runtime is linked statically: TensorFlow may bring another version.

        :param rpath: folder of the libraries at load time
        """
        link = [*self.nvcc, "-ccbin", compiler[-1], "-shared", "-cudart", "static", *self._places("-L", "lib64", "lib")]
        return [*link, "-Xlinker", "-rpath", "-Xlinker", rpath]

    def key(self) -> list[str]:
        """Return the version and the flags that determine the compiled code."""
        return [self.version, *self.kernel_flags()]

    def _places(self, flag: str, *names: str) -> list[str]:
        """Return flags for folders next to nvcc's own; nvcc does not search those of a toolkit from pip packages."""
        top = toolkit_folder(self.nvcc)
        return [flag + os.path.join(top, name) for name in names if os.path.isdir(os.path.join(top, name))]


def visible_archs() -> tuple[str, ...]:
    """Return the architectures of the GPUs that TensorFlow uses, as ("sm_80", "sm_90"); empty without GPU or CUDA.

    :raises NativeOpError: TensorFlow does not report the architecture of a GPU
    """
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus or not tf.test.is_built_with_cuda():
        return ()
    capabilities = set()
    for gpu in gpus:
        capability = tf.config.experimental.get_device_details(gpu).get("compute_capability")
        if capability is None:
            raise NativeOpError("TensorFlow does not report the compute capability of %s" % gpu.name)
        capabilities.add(tuple(capability))
    return tuple("sm_%d%d" % capability for capability in sorted(capabilities))


def too_old(archs: Sequence[str], capability: tuple[int, int]) -> str:
    """Return why kernels don't run on all of these GPUs, as one line; "" if they do.

    :param archs: as "sm_90"
    :param capability: what the kernels need, as (8, 0)
    """
    least = min((_number(arch)[0] for arch in archs if _ARCH.match(arch)), default=None)
    if least is None or least >= 10 * capability[0] + capability[1]:
        return ""
    return "its kernels need compute capability %d.%d, but the GPU has %d.%d" % (*capability, *divmod(least, 10))


def find_cuda_toolchain(archs: Sequence[str], driver: Optional[int] = None) -> CudaToolchain:
    """Return the first nvcc that runs and supports the GPUs, preferably one of TensorFlow's release of CUDA.

    One of another release will do, with a line in the log: the ops have a CUDA runtime of their own.

    :param archs: as "sm_90"
    :param driver: the last major release of CUDA that the driver runs, as 12; None if it is not known
    :raises NativeOpError: there is none; the text says why each candidate was rejected
    """
    for arch in archs:
        if not _ARCH.match(arch):
            raise NativeOpError("%r is not a GPU architecture; expected e.g. sm_90" % arch)
    failures = []
    wanted = _release_of_tensorflow()
    others = []
    for command in nvcc_candidates():
        try:
            version = nvcc_version(command)
            known = output_of([*command, "--list-gpu-code"]).split()
        except NativeOpError as exc:
            failures.append(str(exc))
            continue
        release = release_of(version)
        if driver is not None and release and int(release) > driver:
            text = "%s (%s) makes programs for CUDA %s, but the driver runs none above CUDA %d"
            failures.append(text % (" ".join(command), version, release, driver))
            continue
        unknown = [arch for arch in archs if arch not in known]
        if not unknown:
            found = CudaToolchain(tuple(command), version, tuple(sorted(archs, key=_number)))
            if wanted in ("", release):
                return found
            others.append(found)
            continue
        failures.append("%s (%s) does not compile for %s" % (" ".join(command), version, ", ".join(unknown)))
    if others:
        log.write(
            3,
            "No nvcc of CUDA %s, which is TensorFlow's, was found: native ops are compiled by %s, with its CUDA "
            "runtime." % (wanted, others[0].version),
            once=True,
        )
        return others[0]
    raise NativeOpError("; ".join([*failures, _FIX]) if failures else "the CUDA compiler nvcc was not found; " + _FIX)


def nvcc_candidates() -> Iterator[list[str]]:
    """Yield all commands that may be nvcc, in order of preference.

    ``$CUDACXX``, ``$CUDA_HOME``, ``$CUDA_PATH``, ``$PATH``, the toolkit's default folder, pip packages.
    """
    wanted = command_in("CUDACXX")
    if wanted:
        yield wanted
    places = [os.path.join(os.environ[key], "bin", "nvcc") for key in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(key)]
    places += filter(None, [shutil.which("nvcc")])
    places.append("/usr/local/cuda/bin/nvcc")
    places += sorted(glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "nvidia", "*", "bin", "nvcc")))
    for place in dict.fromkeys(places):
        if os.access(place, os.X_OK) and not os.path.isdir(place):
            yield [place]


def nvcc_version(command: Sequence[str]) -> str:
    """Return the release that nvcc reports, or the last line of its output.

    :raises NativeOpError: it does not run
    """
    lines = [line.strip() for line in output_of([*command, "--version"]).splitlines() if line.strip()]
    release = [line.rpartition(", ")[2] for line in lines if "release" in line]
    return "nvcc %s" % (release[0] if release else lines[-1] if lines else "without a version")


def release_of(version: str) -> str:
    """Return the major release of CUDA in what `nvcc_version` returns, as "12"; "" if there is none."""
    found = re.search(r"V?(\d+)\.\d", version)
    return found[1] if found else ""


def _release_of_tensorflow() -> str:
    """Return the major release of CUDA that TensorFlow was built with, as "12"; "" if it is for the CPU only."""
    return str(tf.sysconfig.get_build_info().get("cuda_version", "")).partition(".")[0]


def toolkit_folder(nvcc: Sequence[str]) -> str:
    """Return the parent of the folder that contains nvcc."""
    return os.path.dirname(os.path.dirname(os.path.realpath(shutil.which(nvcc[-1]) or nvcc[-1])))


def _number(arch: str) -> tuple[int, str]:
    """Return a sort key that puts "sm_90" before "sm_100"."""
    digits = re.sub(r"\D", "", arch)
    return int(digits), arch
