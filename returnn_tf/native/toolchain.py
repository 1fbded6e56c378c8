"""The compiler of this machine, and the flags which it gets."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from returnn_tf.native.errors import NativeOpError
from returnn_tf.util.lazy_tf import tf

_COMPILERS = ("g++", "c++", "clang++")
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

    def link_flags(self) -> List[str]:
        """TensorFlow's library, found again where it is now."""
        folder = tf.sysconfig.get_lib()
        return ["-shared", *tf.sysconfig.get_link_flags(), "-Wl,-rpath," + folder]


def find_toolchain(target: Optional[Sequence[str]] = None) -> Toolchain:
    """The compiler in ``$CXX``, else the first that is installed, and the widest instruction set that it compiles for.

    :param target: take these flags for the instruction set instead of trying
    :raises NativeOpError: there is none, or it compiles nothing
    """
    wanted = os.environ.get("CXX", "").strip()
    command = shlex.split(wanted) or [name for name in _COMPILERS if shutil.which(name)][:1]
    if not command or shutil.which(command[0]) is None:
        missing = "$CXX = %r" % wanted if wanted else "a C++ compiler (%s)" % ", ".join(_COMPILERS)
        raise NativeOpError("%s was not found; on Debian and Ubuntu: apt-get install g++" % missing)
    version = _run([*command, "--version"]).partition("\n")[0]
    if target is not None:
        return Toolchain(tuple(command), version, tuple(target))
    failure = ""
    for flag in _TARGETS.get(platform.machine(), ("",)):
        flags = tuple(filter(None, [flag]))
        try:
            _run([*command, *flags, "-x", "c++", "-fsyntax-only", "-"], text="#include <vector>\n")
        except NativeOpError as exc:
            failure = str(exc)
        else:
            return Toolchain(tuple(command), version, flags)
    raise NativeOpError(failure)


def fingerprint(toolchain: Toolchain, sources: bytes) -> str:
    """Names all that a compiled op depends on: where two machines agree in it they can share the file."""
    parts = [
        toolchain.version,
        *toolchain.kernel_flags(),
        *(flag for flag in toolchain.binding_flags() if not flag.startswith("-I")),
        tf.version.VERSION,
        tf.version.GIT_VERSION,
        platform.machine(),
        # -march=native says nothing by itself
        cpu_features(),
    ]
    return hashlib.sha256("\n".join(parts).encode() + b"\0" + sources).hexdigest()[:24]


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


def _run(command: List[str], text: str = "") -> str:
    """Output of a command.

    :raises NativeOpError: it failed, with the line of its output that says most
    """
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise NativeOpError("%s cannot be run: %s" % (command[0], exc)) from exc
    if done.returncode:
        raise NativeOpError("%s failed: %s" % (" ".join(command[:3]), failing_line(done.stderr)))
    return done.stdout


def failing_line(output: str) -> str:
    """The line of a compiler's output that names the first error, else its first line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no message")
