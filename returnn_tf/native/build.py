"""Compiles native ops, unless they are in the cache, and what joins all of them to TensorFlow."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Callable, Optional

from returnn_tf.logging.log import log
from returnn_tf.native.cache import (
    BUILD_PREFIX,
    SHARED_OBJECT,
    CacheEntry,
    find_entry,
    find_entry_of_any_compiler,
    new_entry,
    unusable,
)
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.gpu.card import cuda_of_driver
from returnn_tf.native.gpu.cuda_toolchain import CudaToolchain, find_cuda_toolchain, too_old, visible_archs
from returnn_tf.native.processes import run_all
from returnn_tf.native.sources import BRIDGE, NativeOp, shared_bytes, source_bytes, source_folder
from returnn_tf.native.toolchain import CUDA_DEFINITION, Toolchain, find_toolchain, fingerprint, machine_key
from returnn_tf.util.lazy_tf import tf

#: About how many CPU seconds a compiler takes for a file, on which depends only which file is next.
_FOR_BRIDGE, _FOR_KERNELS, _FOR_BINDING, _FOR_CUDA = 6.0, 2.0, 0.5, 20.0


@dataclass(frozen=True)
class Compilers:
    """The compilers for an op.

    :param cuda: None without GPUs, or for an op that has no kernels for them
    """

    cpu: Toolchain
    cuda: Optional[CudaToolchain] = None

    @property
    def description(self) -> str:
        """Return the versions of the compilers, in one line."""
        return self.cpu.version + (", %s for %s" % (self.cuda.version, " ".join(self.cuda.archs)) if self.cuda else "")

    def key(self) -> list[str]:
        """Return the compilers, flags and targets that determine the compiled code."""
        return self.cpu.key() + (self.cuda.key() if self.cuda else [])


def find_compilers(
    op: NativeOp,
    archs: Sequence[str] = (),
    target: Optional[Sequence[str]] = None,
    driver: Optional[int] = None,
) -> Compilers:
    """Find the compilers for an op.

    :param archs: GPUs, as "sm_90"; ignored for an op without GPU kernels
    :param target: flags for the instruction set of the CPU; None selects that of this machine
    :param driver: see `find_cuda_toolchain`
    :raises NativeOpError: one is missing, or a GPU is too old for the kernels of the op
    """
    reason = too_old(archs, op.capability) if op.cuda else ""
    if reason:
        raise NativeOpError(reason)
    return Compilers(find_toolchain(target), find_cuda_toolchain(archs, driver) if op.cuda and archs else None)


def find(op: NativeOp) -> Optional[str]:
    """Return the path of the library of an op if it is in the cache, see `build`.

    :raises NativeOpError: it is not in the cache, and there is no compiler
    """
    found, *_ = _look_up(op)
    return found


def build(op: NativeOp) -> tuple[str, bool]:
    """Return the library of an op, for the CPU of this machine and the GPUs that TensorFlow uses.

    :return: its path, and whether this call compiled it
    :raises NativeOpError: it is not in the cache and cannot be compiled
    """
    found, compilers, place, key = _look_up(op)
    if found is not None:
        return found, False
    assert compilers is not None

    def compile_op(entry: CacheEntry) -> None:
        compile_into(entry, op, compilers, place, bridge=_bridge)

    return _make(op.name, key, "the native op " + op.name, compile_op)


def _look_up(op: NativeOp) -> tuple[Optional[str], Optional[Compilers], str, str]:
    """Look for the library of an op in the cache.

    :return: its path; the compilers, the place and the key to compile it, if there is none
    """
    archs = visible_archs() if op.cuda else ()
    sources = source_bytes(op, cuda=bool(archs))
    place = fingerprint(machine_key(), archs, sources=sources)
    try:
        compilers = find_compilers(op, archs, driver=cuda_of_driver() if archs else None)
    except NativeOpError:
        found = find_entry_of_any_compiler(op.name, place)
        if found is None:
            raise
        return found.library, None, place, ""
    key = fingerprint(machine_key(), compilers.key(), sources=sources)
    found = find_entry(op.name, key)
    return None if found is None else found.library, compilers, place, key


def _make(name: str, key: str, what: str, make: Callable[[CacheEntry], None]) -> tuple[str, bool]:
    """Return a file that is not in the cache, made by one process while others wait, and whether this call made it.

    :param what: for the log
    :param make: puts it into the entry
    :raises NativeOpError: it can't be made, or no folder is writable
    """
    entry = new_entry(name, key)
    with entry.lock() as alone:
        if entry.is_whole():  # made by another process meanwhile
            return entry.library, False
        again = ", as the one in the cache is damaged or incomplete" if alone and entry.has_remains() else ", once"
        log.write(3, "Compiling %s for this machine%s ..." % (what, again))
        try:
            if alone:
                entry.remove_leftovers()
            make(entry)
        except OSError as exc:
            raise unusable(exc, entry.folder) from exc
    return entry.library, True


def _bridge(compilers: Compilers) -> str:
    """Return the object that joins ops to TensorFlow, the same for all ops."""
    key = fingerprint(machine_key(), compilers.key(), sources=shared_bytes(cuda=bool(compilers.cuda)))
    found = find_entry(SHARED_OBJECT, key)
    if found is not None:
        return found.library

    def compile_bridge(entry: CacheEntry) -> None:
        folder = tempfile.mkdtemp(prefix=BUILD_PREFIX, dir=entry.folder)
        try:
            made = os.path.join(folder, "bridge.o")
            run_all([[*_bridge_command(compilers, source_folder()), "-o", made]], [_FOR_BRIDGE])
            entry.put(made, compiler=compilers.description, flags=" ".join(compilers.key()[1:]))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return _make(SHARED_OBJECT, key, "the interface of native ops to TensorFlow", compile_bridge)[0]


def compile_into(
    entry: CacheEntry,
    op: NativeOp,
    compilers: Compilers,
    place: str = "",
    bridge: Optional[Callable[[Compilers], str]] = None,
) -> None:
    """Compile and link the op, with all files in parallel.

    :param place: identifies the machines on which the result runs, see `cache.find_entry_of_any_compiler`
    :param bridge: returns the object that joins ops to TensorFlow, while the op is compiled; default: compiled with it
    :raises NativeOpError: a compiler fails
    """
    folder = tempfile.mkdtemp(prefix=BUILD_PREFIX, dir=entry.folder)
    try:
        jobs = _compile_commands(op, compilers, source_folder())
        jobs += [] if bridge else [(_bridge_command(compilers, source_folder()), _FOR_BRIDGE)]
        objects = [os.path.join(folder, "%d.o" % index) for index in range(len(jobs))]
        with ThreadPoolExecutor(1) as thread:
            made = [thread.submit(bridge, compilers)] if bridge else []
            commands = [[*command, "-o", to] for (command, _), to in zip(jobs, objects)]
            run_all(commands, [seconds for _, seconds in jobs])
            objects += [future.result() for future in made]
        library = os.path.join(folder, "op.so")
        rpath, cpu, cuda = tf.sysconfig.get_lib(), compilers.cpu, compilers.cuda
        link = cuda.link_command(cpu.compiler, rpath) if cuda else cpu.link_command(rpath)
        run_all([[*link, *objects, "-o", library, *tf.sysconfig.get_link_flags()]])
        flags = " ".join(compilers.key()[1:])
        entry.put(library, compiler=compilers.description, flags=flags, place=place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def build_without_ops(path: str) -> None:
    """Write a library that has no ops: for programs that load a second one, which must not register the same again.

    :raises NativeOpError: there is no compiler, or it fails
    """
    run_all([[*find_toolchain().compiler, "-shared", "-fPIC", "-x", "c++", os.devnull, "-o", path]])


def _compile_commands(op: NativeOp, compilers: Compilers, sources: str) -> list[tuple[list[str], float]]:
    """Return the command for each file, without the name of the object, and about how many seconds it takes.

    :param sources: the folder of our sources, which is in the include path, for the ops of plug-ins
    """
    cpu, cuda = compilers.cpu, compilers.cuda
    jobs = [([*cpu.compiler, *cpu.kernel_flags()], path, _FOR_KERNELS) for path in op.kernels]
    binding = [*cpu.compiler, *cpu.binding_flags(), *([CUDA_DEFINITION] if cuda else [])]
    jobs += [(binding, path, _FOR_BINDING) for path in op.bindings]
    if cuda:
        jobs += [(cuda.compile_command(cpu.compiler), path, _FOR_CUDA) for path in op.cuda]
    return [([*command, "-I", sources, "-c", op.path(path, sources)], seconds) for command, path, seconds in jobs]


def _bridge_command(compilers: Compilers, sources: str) -> list[str]:
    """Return the command for the file with TensorFlow's headers, without the name of the object."""
    cuda = [CUDA_DEFINITION] if compilers.cuda else []
    return [*compilers.cpu.compiler, *compilers.cpu.binding_flags(), *cuda, "-c", os.path.join(sources, BRIDGE)]
