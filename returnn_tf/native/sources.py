"""The native ops and their source files.

An op has kernels with a plain C interface, independent of TensorFlow and compiled for the CPU of this machine, and a
thin file that wraps them as TensorFlow ops.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Dict, Tuple

from returnn_tf.native.errors import NativeOpError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# beside the package in a checkout, inside it in an installation
_FOLDERS = (os.path.join(os.path.dirname(_PACKAGE), "native_ops"), os.path.join(_PACKAGE, "native_ops"))


@dataclass(frozen=True)
class NativeOp:
    """An op and its source files, relative to the folder of all sources.

    :param name: name for users, and of the library
    :param kernels: for the CPU, without TensorFlow's headers
    :param bindings: the TensorFlow ops
    :param cuda: kernels for GPUs; if empty, the form in plain TensorFlow is used on a GPU
    """

    name: str
    kernels: Tuple[str, ...]
    bindings: Tuple[str, ...]
    cuda: Tuple[str, ...] = ()


OPS: Dict[str, NativeOp] = {
    op.name: op
    for op in (
        NativeOp(
            name="lstm",
            kernels=("lstm/lstm_cpu.cc",),
            bindings=("lstm/lstm_op.cc",),
            cuda=("lstm/lstm_cuda.cu",),
        ),
        NativeOp(
            name="gru",
            kernels=("gru/gru_cpu.cc",),
            bindings=("gru/gru_op.cc",),
            cuda=("gru/gru_cuda.cu",),
        ),
        NativeOp(
            name="product",
            kernels=("product/product_cpu.cc",),
            bindings=("product/product_op.cc",),
        ),
        NativeOp(
            name="align",
            kernels=(
                "align/chain_cpu.cc",
                "align/acceptor_cpu.cc",
                "align/acceptor_best_cpu.cc",
                "align/transducer_cpu.cc",
            ),
            bindings=("align/chain_op.cc", "align/lattice_op.cc"),
            cuda=(
                "align/chain_cuda.cu",
                "align/viterbi_cuda.cu",
                "align/acceptor_cuda.cu",
                "align/acceptor_best_cuda.cu",
                "align/transducer_cuda.cu",
            ),
        ),
        NativeOp(
            name="chunk",
            kernels=("chunk/chunk_cpu.cc",),
            bindings=("chunk/chunk_op.cc",),
            cuda=("chunk/chunk_cuda.cu",),
        ),
        NativeOp(
            name="mdlstm",
            kernels=("mdlstm/mdlstm_cpu.cc",),
            bindings=("mdlstm/mdlstm_op.cc",),
            cuda=("mdlstm/mdlstm_cuda.cu",),
        ),
    )
}


def source_folder() -> str:
    """Return the folder of the sources.

    :raises NativeOpError: the package was installed without them
    """
    for folder in _FOLDERS:
        if os.path.isdir(os.path.join(folder, "common")):
            return folder
    raise NativeOpError("the sources of the native ops are missing: there is no %s" % _FOLDERS[-1])


def source_bytes(op: NativeOp, *, cuda: bool = False) -> bytes:
    """Return the names of the op's files and the contents of its folders and the shared one, for a fingerprint.

    :param cuda: include the sources of GPU kernels
    """
    paths = op.kernels + op.bindings + (op.cuda if cuda else ())
    shared = {"common", "common/cuda"} if cuda else {"common"}
    parts = ["\n".join(paths).encode()]
    for folder in sorted({os.path.dirname(path) for path in paths} | shared):
        whole = os.path.join(source_folder(), folder)
        for file in sorted(os.listdir(whole)) if os.path.isdir(whole) else ():
            if file.endswith((".h", ".cc", *([".cu"] if cuda else []))):
                with open(os.path.join(whole, file), "rb") as f:
                    parts += [("%s/%s\n" % (folder, file)).encode(), f.read()]
    return b"\0".join(parts)
