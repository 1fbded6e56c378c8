"""The CUDA compiler, for which GPUs it compiles, and the flags which it gets.

``python -m returnn_tf.native.cuda_toolchain`` says which one is found.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from typing import Iterator, List, Sequence, Tuple

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.processes import command_in, output_of
from returnn_tf.util.lazy_tf import tf

_FIX = "install the CUDA toolkit (version 12 or later) or set CUDA_HOME to where it is"
_ARCH = re.compile(r"^sm_[0-9]+[a-z]?$")


@dataclass(frozen=True)
class CudaToolchain:
    """An nvcc that works.

    :param nvcc: the command
    :param version: its release and build
    :param archs: the GPUs to compile for, as "sm_90", in ascending order
    """

    nvcc: Tuple[str, ...]
    version: str
    archs: Tuple[str, ...]

    def kernel_flags(self) -> List[str]:
        """Machine code for each GPU, and PTX, which the driver compiles, for those that come after the last one."""
        numbers = [arch[len("sm_") :] for arch in self.archs]
        codes = ["arch=compute_%s,code=sm_%s" % (number, number) for number in numbers]
        codes.append("arch=compute_%s,code=compute_%s" % (numbers[-1], numbers[-1]))
        # TensorFlow's own compiler may be newer or older than what nvcc asks for: our kernels need little of it
        flags = ["-O3", "-std=c++17", "-allow-unsupported-compiler", "-Xcompiler", "-fPIC", "--threads", "0"]
        return [*flags, *(word for code in codes for word in ("-gencode", code))]

    def compile_command(self, compiler: Sequence[str]) -> List[str]:
        """To be completed with ``-c source -o object``.

        :param compiler: for the part that runs on the CPU
        """
        return [*self.nvcc, "-ccbin", compiler[-1], *self._places("-I", "include"), *self.kernel_flags()]

    def link_command(self, compiler: Sequence[str], rpath: str) -> List[str]:
        """To be completed with objects, libraries and ``-o library``.

        The CUDA runtime becomes a part of the library: TensorFlow may bring one of another version.

        :param rpath: where the libraries are found when it is loaded
        """
        link = [*self.nvcc, "-ccbin", compiler[-1], "-shared", "-cudart", "static", *self._places("-L", "lib64", "lib")]
        return [*link, "-Xlinker", "-rpath", "-Xlinker", rpath]

    def key(self) -> List[str]:
        """What the result depends on of all this."""
        return [self.version, *self.kernel_flags()]

    def _places(self, flag: str, *names: str) -> List[str]:
        """Folders beside nvcc's own; a toolkit of pip packages has them where its nvcc does not look."""
        top = toolkit_folder(self.nvcc)
        return [flag + os.path.join(top, name) for name in names if os.path.isdir(os.path.join(top, name))]


def visible_archs() -> Tuple[str, ...]:
    """The architectures of the GPUs that TensorFlow uses, as ("sm_80", "sm_90"); none without a GPU or without CUDA.

    :raises NativeOpError: TensorFlow does not say which one a GPU has
    """
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus or not tf.test.is_built_with_cuda():
        return ()
    capabilities = set()
    for gpu in gpus:
        capability = tf.config.experimental.get_device_details(gpu).get("compute_capability")
        if capability is None:
            raise NativeOpError("TensorFlow does not say which compute capability %s has" % gpu.name)
        capabilities.add(tuple(capability))
    return tuple("sm_%d%d" % capability for capability in sorted(capabilities))


def find_cuda_toolchain(archs: Sequence[str]) -> CudaToolchain:
    """The first nvcc that runs and knows the GPUs.

    :param archs: as "sm_90"
    :raises NativeOpError: there is none; the text says what is wrong with those that were found
    """
    for arch in archs:
        if not _ARCH.match(arch):
            raise NativeOpError("%r is no GPU architecture; one looks like sm_90" % arch)
    failures = []
    for command in nvcc_candidates():
        try:
            version = nvcc_version(command)
            known = output_of([*command, "--list-gpu-code"]).split()
        except NativeOpError as exc:
            failures.append(str(exc))
            continue
        unknown = [arch for arch in archs if arch not in known]
        if not unknown:
            return CudaToolchain(tuple(command), version, tuple(sorted(archs, key=_number)))
        failures.append("%s (%s) does not compile for %s" % (" ".join(command), version, ", ".join(unknown)))
    raise NativeOpError("; ".join([*failures, _FIX]) if failures else "the CUDA compiler nvcc was not found; " + _FIX)


def nvcc_candidates() -> Iterator[List[str]]:
    """All the commands that may be nvcc, the most wanted first.

    ``$CUDACXX``, ``$CUDA_HOME``, ``$CUDA_PATH``, the path, where the toolkit installs itself, pip packages.
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
    """What nvcc says of itself: its release, or the last line.

    :raises NativeOpError: it does not run
    """
    lines = [line.strip() for line in output_of([*command, "--version"]).splitlines() if line.strip()]
    release = [line.rpartition(", ")[2] for line in lines if "release" in line]
    return "nvcc %s" % (release[0] if release else lines[-1] if lines else "without a version")


def toolkit_folder(nvcc: Sequence[str]) -> str:
    """The folder above that of nvcc itself."""
    return os.path.dirname(os.path.dirname(os.path.realpath(shutil.which(nvcc[-1]) or nvcc[-1])))


def _number(arch: str) -> Tuple[int, str]:
    """To sort "sm_90" before "sm_100"."""
    digits = re.sub(r"\D", "", arch)
    return int(digits), arch


def main() -> int:
    """Prints the version and place of nvcc.

    :return: 0, or 1 if there is none
    """
    try:
        found = find_cuda_toolchain(())
    except NativeOpError as exc:
        print(exc)
        return 1
    print("%s (%s)" % (found.version, " ".join(found.nvcc)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
