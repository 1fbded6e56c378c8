"""The native ops and their source files.

An op has kernels with a plain C interface, independent of TensorFlow and compiled for the CPU of this machine, and a
thin file that wraps them as TensorFlow ops by `BRIDGE`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

from returnn_tf.config import did_you_mean
from returnn_tf.config.registry import Registry
from returnn_tf.native.errors import NativeOpError
from returnn_tf.util.shipped import shipped_folder

#: The file that joins ops to TensorFlow: the only one with its headers.
BRIDGE = "common/tf_bridge.cc"

SelfTest = Callable[[Any], None]
"""Takes the module of the ops; raises `NativeOpError` if results are wrong. Runs once per device."""


@dataclass(frozen=True)
class NativeOp:
    """An op and its source files, relative to the folder of all sources.

    :param name: name for users, and of the library
    :param kernels: for the CPU, without TensorFlow's headers
    :param bindings: the TensorFlow ops
    :param cuda: kernels for GPUs; if empty, the form in plain TensorFlow is used on a GPU
    :param capability: the least compute capability of a GPU for them, as (8, 0), if nvcc knows GPUs below that
    :param self_test: see `SelfTest`
    :param folder: of its sources, absolute; default: that of all sources
    :param replaces: names of RETURNN's ops for the same
    :param twice_differentiable: whether the gradient of the op has a gradient; else the form in plain TensorFlow is
        used where a gradient is differentiated
    """

    name: str
    kernels: tuple[str, ...]
    bindings: tuple[str, ...]
    cuda: tuple[str, ...] = ()
    self_test: Optional[SelfTest] = None
    folder: str = ""
    replaces: tuple[str, ...] = ()
    capability: tuple[int, int] = (0, 0)
    twice_differentiable: bool = False

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
    capability: tuple[int, int] = (0, 0),
    folder: str = "",
    replaces: Sequence[str] = (),
    twice_differentiable: bool = False,
) -> Callable[[SelfTest], SelfTest]:
    """Decorate the self-test of an op, which registers the op; for the parameters see `NativeOp`."""

    def decorate(self_test: SelfTest) -> SelfTest:
        op = NativeOp(
            name, tuple(kernels), tuple(bindings), tuple(cuda), self_test, folder, tuple(replaces), capability,
            twice_differentiable,
        )  # fmt: skip
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


def source_folder() -> str:
    """Return the folder of all sources.

    :raises NativeOpError: the package was installed without them
    """
    folder = shipped_folder("native_ops")
    if not os.path.isdir(os.path.join(folder, "common")):
        raise NativeOpError("the sources of the native ops are missing: there is no folder %s" % folder)
    return folder


def source_bytes(op: NativeOp, *, cuda: bool = False) -> bytes:
    """Return the names of the op's files and the contents of its folders and the shared one, for a fingerprint.

    :param cuda: include the sources of GPU kernels
    """
    paths = op.kernels + op.bindings + (op.cuda if cuda else ())
    folders = {os.path.dirname(path): op.folder for path in paths}
    return b"\0".join(["\n".join(paths).encode(), *_contents(folders, cuda), shared_bytes(cuda=cuda)])


def shared_bytes(*, cuda: bool = False) -> bytes:
    """Return the names and contents of the files that all ops share, for a fingerprint.

    :param cuda: include the sources of GPU kernels
    """
    return b"\0".join(_contents(dict.fromkeys(("common", *(["common/cuda"] if cuda else [])), ""), cuda))


def _contents(folders: Mapping[str, str], cuda: bool) -> list[bytes]:
    """Return the names and contents of the sources in folders.

    :param folders: folder -> its root, "" for the sources of the package
    """
    parts = []
    for folder, root in sorted(folders.items()):
        for file, content in sorted(_files(root, folder).items()):
            if file.endswith((".h", ".cc", *([".cu"] if cuda else []))):
                parts += [("%s/%s\n" % (folder, file)).encode(), content]
    return parts


def _files(root: str, folder: str) -> dict[str, bytes]:
    """Return the files in a folder of sources, not those in folders below it.

    :param root: of a plug-in; "" for the sources of the package
    """
    whole = os.path.join(root or source_folder(), folder)
    found = {}
    for file in os.listdir(whole) if os.path.isdir(whole) else ():
        if os.path.isfile(os.path.join(whole, file)):
            with open(os.path.join(whole, file), "rb") as f:
                found[file] = f.read()
    return found
