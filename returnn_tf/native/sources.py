"""The native ops and their source files.

An op has kernels with a plain C interface, independent of TensorFlow and compiled for the CPU of this machine, and a
thin file that wraps them as TensorFlow ops.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

from returnn_tf.config import did_you_mean
from returnn_tf.config.registry import Registry
from returnn_tf.native.errors import NativeOpError
from returnn_tf.util.packed_files import ARCHIVE, packed, unpack

#: Of a checkout, where it stands beside the package. An installation has an archive.
_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "native_ops")


SelfTest = Callable[[Any], None]
"""Takes the module of the ops; raises `NativeOpError` if results are wrong. Runs once per device."""


@dataclass(frozen=True)
class NativeOp:
    """An op and its source files, relative to the folder of all sources.

    :param name: name for users, and of the library
    :param kernels: for the CPU, without TensorFlow's headers
    :param bindings: the TensorFlow ops
    :param cuda: kernels for GPUs; if empty, the form in plain TensorFlow is used on a GPU
    :param self_test: see `SelfTest`
    :param folder: of its sources, absolute; default: that of all sources
    :param replaces: names of RETURNN's ops for the same
    """

    name: str
    kernels: tuple[str, ...]
    bindings: tuple[str, ...]
    cuda: tuple[str, ...] = ()
    self_test: Optional[SelfTest] = None
    folder: str = ""
    replaces: tuple[str, ...] = ()

    def path(self, source: str, root: str) -> str:
        """Return the whole path of one of its source files.

        :param root: the folder of all sources
        """
        return os.path.join(self.folder or root, source)


OPS: Registry[NativeOp] = Registry("native op", "returnn_tf.native", plugins="returnn_tf.native_ops")


def register_op(
    name: str,
    *,
    kernels: Sequence[str],
    bindings: Sequence[str],
    cuda: Sequence[str] = (),
    folder: str = "",
    replaces: Sequence[str] = (),
) -> Callable[[SelfTest], SelfTest]:
    """Decorate the self-test of an op, which registers the op; for the parameters see `NativeOp`."""

    def decorate(self_test: SelfTest) -> SelfTest:
        op = NativeOp(name, tuple(kernels), tuple(bindings), tuple(cuda), self_test, folder, tuple(replaces))
        OPS.add(op, name, owner=self_test)
        return self_test

    return decorate


def op_by_any_name(name: str) -> NativeOp:
    """Return the op of this name, or the one that replaces RETURNN's op of this name.

    :raises NativeOpError: there is none; with the nearest name
    """
    ops = {other: op for _, op in OPS.items() for other in (op.name, *op.replaces)}
    if name not in ops:
        raise NativeOpError("there is no native op %r. %s" % (name, did_you_mean(name, list(ops), max_listed=30)))
    return ops[name]


def source_folder(unpacked: str = "") -> str:
    """Return the folder of all sources.

    :param unpacked: where an installed package writes them, below a folder that the caller removes
    :raises NativeOpError: the package was installed without them
    """
    if os.path.isdir(os.path.join(_FOLDER, "common")):
        return _FOLDER
    if not unpacked or not _packed():
        raise NativeOpError(
            "the sources of the native ops are missing: there is neither %s nor %s" % (_FOLDER, ARCHIVE)
        )
    unpack("native_ops", unpacked)
    return unpacked


def _packed() -> Mapping[str, bytes]:
    try:
        return packed("native_ops")
    except OSError as exc:
        raise NativeOpError("the sources of the native ops are missing: %s: %s" % (exc.filename, exc.strerror)) from exc


def source_bytes(op: NativeOp, *, cuda: bool = False) -> bytes:
    """Return the names of the op's files and the contents of its folders and the shared one, for a fingerprint.

    :param cuda: include the sources of GPU kernels
    """
    paths = op.kernels + op.bindings + (op.cuda if cuda else ())
    shared = ("common", "common/cuda") if cuda else ("common",)
    folders = {os.path.dirname(path): op.folder for path in paths}
    folders.update((name, "") for name in shared)
    parts = ["\n".join(paths).encode()]
    for folder, root in sorted(folders.items()):
        for file, content in sorted(_files(root, folder).items()):
            if file.endswith((".h", ".cc", *([".cu"] if cuda else []))):
                parts += [("%s/%s\n" % (folder, file)).encode(), content]
    return b"\0".join(parts)


def _files(root: str, folder: str) -> dict[str, bytes]:
    """Return the files in a folder of sources, not those in folders below it.

    :param root: of a plug-in; "" for the sources of the package
    """
    if not root and not os.path.isdir(os.path.join(_FOLDER, "common")):
        if not _packed():
            source_folder()  # says what is missing
        return {os.path.basename(path): code for path, code in _packed().items() if os.path.dirname(path) == folder}
    whole = os.path.join(root or _FOLDER, folder)
    found = {}
    for file in os.listdir(whole) if os.path.isdir(whole) else ():
        if os.path.isfile(os.path.join(whole, file)):
            with open(os.path.join(whole, file), "rb") as f:
                found[file] = f.read()
    return found
