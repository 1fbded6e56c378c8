"""The compiler of this machine, and the flags which it gets."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.processes import command_in, output_of
from returnn_tf.util.lazy_tf import tf

_COMPILERS = ("g++", "c++", "clang++")
#: Of the bindings, where an op has kernels for a GPU.
CUDA_DEFINITION = "-DRTF_CUDA=1"

_COMMON = ("-std=c++17", "-fPIC", "-fno-math-errno")
_OPTIMISE = ("-O3",)
# the widest instructions that this machine has; else those of CPUs since about 2013; else what every one has
_TARGETS = {"x86_64": ("-march=native", "-march=x86-64-v3", ""), "aarch64": ("-mcpu=native", "")}


@dataclass(frozen=True)
class Toolchain:
    """A compiler that works.

    :param compiler: the command: a program, or one with a launcher before it, as "ccache g++"
    :param version: the line with which it introduces itself
    :param target: flags that choose the instruction set
    """

    compiler: Tuple[str, ...]
    version: str
    target: Tuple[str, ...]

    def kernel_flags(self) -> List[str]:
        """For the kernels, where the speed matters."""
        return [*_COMMON, *_OPTIMISE, *self.target]

    def binding_flags(self) -> List[str]:
        """For the files with TensorFlow's headers.

        TensorFlow's own Eigen was built for some other CPU, and types of it that cross the border must look the same on
        both sides: no flag of the machine here.
        """
        return [*_COMMON, "-O2", *tf.sysconfig.get_compile_flags()]

    def key(self) -> List[str]:
        """What the result depends on of all this."""
        return [self.version, *self.kernel_flags(), *(f for f in self.binding_flags() if not f.startswith("-I"))]

    def link_command(self, rpath: str) -> List[str]:
        """To be completed with objects, libraries and ``-o library``.

        :param rpath: where the libraries are found when it is loaded
        """
        return [*self.compiler, "-shared", "-Wl,-rpath," + rpath]


def find_toolchain(target: Optional[Sequence[str]] = None) -> Toolchain:
    """The compiler in ``$CXX``, else the first that is installed, and the widest instruction set that it compiles for.

    :param target: take these flags for the instruction set instead of trying
    :raises NativeOpError: there is none, or it compiles nothing
    """
    wanted = command_in("CXX")
    command = wanted or [name for name in _COMPILERS if shutil.which(name)][:1]
    if not command or shutil.which(command[0]) is None:
        missing = "$CXX = %r" % os.environ["CXX"] if wanted else "a C++ compiler (%s)" % ", ".join(_COMPILERS)
        raise NativeOpError("%s was not found; on Debian and Ubuntu: apt-get install g++" % missing)
    version = output_of([*command, "--version"]).partition("\n")[0]
    if target is not None:
        return Toolchain(tuple(command), version, tuple(target))
    failure = ""
    for flag in _TARGETS.get(platform.machine(), ("",)):
        flags = tuple(filter(None, [flag]))
        try:
            output_of([*command, *flags, "-x", "c++", "-fsyntax-only", "-"], text="#include <vector>\n")
        except NativeOpError as exc:
            failure = str(exc)
        else:
            return Toolchain(tuple(command), version, flags)
    raise NativeOpError(failure)


def machine_key() -> List[str]:
    """What a compiled op depends on besides its sources and the compiler: where two machines agree in it, each can load
    what the other one compiled."""
    flags = [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")]
    # the last one as -march=native says nothing by itself
    return [tf.version.VERSION, tf.version.GIT_VERSION, *flags, platform.machine(), cpu_features()]


def fingerprint(*parts: Sequence[str], sources: bytes = b"") -> str:
    """A short name for all of this together."""
    return hashlib.sha256("\n".join(line for part in parts for line in part).encode() + b"\0" + sources).hexdigest()[
        :24
    ]


def cpu_features() -> str:
    """What the CPU can do, in the words of Linux; on other systems the name of the CPU."""
    try:
        with open("/proc/cpuinfo", encoding="utf8", errors="replace") as f:
            for line in f:
                if line.startswith(("flags", "Features")):
                    return " ".join(sorted(line.split(":", 1)[1].split()))
    except OSError:
        pass
    return platform.processor()
