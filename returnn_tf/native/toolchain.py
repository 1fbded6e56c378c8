"""The C++ compiler and its flags."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from returnn_tf.native.errors import NativeOpError, ToolNotRunError
from returnn_tf.native.processes import command_in, output_of
from returnn_tf.util.lazy_tf import tf

_COMPILERS = ("g++", "c++", "clang++")
#: Defined for the bindings of an op with GPU kernels.
CUDA_DEFINITION = "-DRTF_CUDA=1"

_COMMON = ("-std=c++17", "-fPIC", "-fno-math-errno")
_OPTIMISE = ("-O3",)
# the widest instruction set of this machine; else that of CPUs since about 2013; else the baseline
_TARGETS = {"x86_64": ("-march=native", "-march=x86-64-v3", ""), "aarch64": ("-mcpu=native", "")}


@dataclass(frozen=True)
class Toolchain:
    """A working compiler.

    :param compiler: the command: a program, or one with a launcher before it, as "ccache g++"
    :param version: the first line of its ``--version``
    :param target: flags that select the instruction set
    """

    compiler: tuple[str, ...]
    version: str
    target: tuple[str, ...]

    def kernel_flags(self) -> list[str]:
        """Return the flags for the kernels, where speed matters."""
        return [*_COMMON, *_OPTIMISE, *self.target]

    def binding_flags(self) -> list[str]:
        """Return the flags for the files that include TensorFlow's headers, and for those with ops.

        TensorFlow's Eigen was built for some other CPU, and types that cross the boundary must have the same layout on
        both sides: no machine-specific flags here.
        """
        return [*_COMMON, "-O2", *tf.sysconfig.get_compile_flags()]

    def key(self) -> list[str]:
        """Return the version and the flags that determine the compiled code, without a launcher before the compiler."""
        own = [word for word in self.compiler if word.startswith("-")]
        return [self.version, *own, *self.kernel_flags(), *(f for f in self.binding_flags() if not f.startswith("-I"))]

    def link_command(self, rpath: str) -> list[str]:
        """Return the command, to be completed with objects, libraries and ``-o library``.

        :param rpath: folder of the libraries at load time
        """
        return [*self.compiler, "-shared", "-Wl,-rpath," + rpath]


def find_toolchain(target: Optional[Sequence[str]] = None) -> Toolchain:
    """Return the compiler in ``$CXX``, else the first one installed, with the widest instruction set it supports.

    :param target: flags for the instruction set, which are not checked
    :raises NativeOpError: there is none, or it does not work
    """
    wanted = command_in("CXX")
    command = wanted or [name for name in _COMPILERS if shutil.which(name)][:1]
    if not command or shutil.which(command[0]) is None:
        missing = "$CXX = %r" % os.environ["CXX"] if wanted else "a C++ compiler (%s)" % ", ".join(_COMPILERS)
        raise NativeOpError("%s was not found; on Debian and Ubuntu: apt-get install g++" % missing)
    if target is not None:
        return Toolchain(tuple(command), _version(command), tuple(target))
    return _with_widest_target(tuple(command), shutil.which(command[0]), _TARGETS.get(platform.machine(), ("",)))


def _version(command: Sequence[str]) -> str:
    return output_of([*command, "--version"]).partition("\n")[0]


@functools.cache
def _with_widest_target(command: tuple[str, ...], program: Optional[str], targets: tuple[str, ...]) -> Toolchain:
    """Return a compiler with the first of some targets that it supports, which takes a quarter of a second to find.

    :param program: its path, as the search path may change
    """
    version, failure = _version(command), ""
    for flag in targets:
        flags = tuple(filter(None, [flag]))
        try:
            output_of([*command, *flags, "-x", "c++", "-fsyntax-only", "-"], text="#include <vector>\n")
        except ToolNotRunError:
            raise  # on a machine with much other load: narrower instructions would give other roundings
        except NativeOpError as exc:
            failure = str(exc)
        else:
            return Toolchain(command, version, flags)
    raise NativeOpError(failure)


def machine_key() -> list[str]:
    """Return the machine properties that a compiled op depends on.

    Machines with equal keys can load each other's ops.
    """
    flags = [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")]
    # the last one because -march=native alone does not identify the machine
    return [tf.version.VERSION, tf.version.GIT_VERSION, *flags, platform.machine(), cpu_features()]


def fingerprint(*parts: Sequence[str], sources: bytes = b"") -> str:
    """Return a short hash of all arguments."""
    return hashlib.sha256("\n".join(line for part in parts for line in part).encode() + b"\0" + sources).hexdigest()[
        :24
    ]


def cpu_features() -> str:
    """Return the feature flags of the CPU as Linux reports them; on other systems the name of the CPU."""
    try:
        with open("/proc/cpuinfo", encoding="utf8", errors="replace") as f:
            for line in f:
                if line.startswith(("flags", "Features")):
                    return " ".join(sorted(line.split(":", 1)[1].split()))
    except OSError:
        pass
    return platform.processor()
