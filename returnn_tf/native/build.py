"""Compiles a native op, unless it is in the cache."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
from typing import List, Sequence, Tuple

from returnn_tf.native.cache import BUILD_PREFIX, Entry, find_entry, new_entry
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.sources import NativeOp, source_bytes, source_folder
from returnn_tf.native.toolchain import Toolchain, failing_line, find_toolchain, fingerprint

log = logging.getLogger(__name__)


def build(op: NativeOp) -> Tuple[str, bool]:
    """The library of an op.

    :return: its path, and whether it was compiled just now
    :raises NativeOpError: it is not there and cannot be compiled
    """
    toolchain = find_toolchain()
    key = fingerprint(toolchain, source_bytes(op))
    found = find_entry(op.name, key)
    if found is not None:
        return found.library, False
    entry = new_entry(op.name, key)
    with entry.lock() as alone:
        if entry.is_whole():  # another process was faster
            return entry.library, False
        if alone:
            entry.remove_leftovers()
        log.info("Compiling the native op %s for this machine, once ...", op.name)
        try:
            compile_into(entry, op, toolchain)
        except OSError as exc:
            raise NativeOpError("%s: %s" % (exc.filename or entry.folder, exc.strerror or exc)) from exc
    return entry.library, True


def compile_into(entry: Entry, op: NativeOp, toolchain: Toolchain) -> None:
    """Compile and link the op, all files at once.

    :raises NativeOpError: the compiler does not accept it
    """
    folder = tempfile.mkdtemp(prefix=BUILD_PREFIX, dir=entry.folder)
    try:
        jobs = [(path, toolchain.kernel_flags()) for path in op.kernels]
        jobs += [(path, toolchain.binding_flags()) for path in op.bindings]
        objects = [os.path.join(folder, "%d.o" % index) for index in range(len(jobs))]
        commands = [
            [*toolchain.compiler, *flags, "-c", os.path.join(source_folder(), path), "-o", to]
            for (path, flags), to in zip(jobs, objects)
        ]
        _run_all(commands)
        library = os.path.join(folder, "op.so")
        _run_all([[*toolchain.compiler, *objects, "-o", library, *toolchain.link_flags()]])
        entry.put(library, compiler=toolchain.version, flags=" ".join(toolchain.kernel_flags()))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_all(commands: Sequence[List[str]]) -> None:
    """Run commands beside each other.

    :raises NativeOpError: one failed, with the line that says most
    """
    running = []
    for command in commands:
        try:
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        except OSError as exc:
            raise NativeOpError("%s cannot be run: %s" % (command[0], exc.strerror)) from exc
    outputs = [process.communicate()[1] for process in running]
    for command, process, output in zip(commands, running, outputs):
        if process.returncode:
            raise NativeOpError("%s failed: %s" % (os.path.basename(command[0]), failing_line(output)))
