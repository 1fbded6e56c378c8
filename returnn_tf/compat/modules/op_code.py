"""``from TFUtil import OpCodeCompiler``: TensorFlow ops whose C++ code is in the config, compiled on first use."""

from __future__ import annotations

import os
import re
import tempfile
from typing import Any, Optional

from returnn_tf.config.errors import CodeError
from returnn_tf.native.build import build
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.library import load_library
from returnn_tf.native.sources import NativeOp

#: Names that this TensorFlow no longer has, in code for older ones.
_RENAMED = {r"\bStatus::OK\(\)": "::tensorflow::OkStatus()"}


class OpCodeCompiler:
    """Compiles C++ code with TensorFlow ops for this machine, and keeps the library for later runs.

    :param base_name: name of the library
    :param code_version: part of what identifies the library
    :param code: with all ``#include``, ``REGISTER_OP`` and ``REGISTER_KERNEL_BUILDER``
    :param is_cpp: has to be True
    :param use_cuda_if_available: has to be False
    :param others: flags and paths, which have to be empty
    """

    def __init__(
        self,
        base_name: str,
        code_version: Any,
        code: str,
        is_cpp: bool = True,
        use_cuda_if_available: bool = False,
        verbose: bool = False,
        **others: Any,
    ) -> None:
        del verbose
        given = sorted(name for name, value in others.items() if value)
        if given or not is_cpp or use_cuda_if_available:
            raise CodeError(
                "OpCodeCompiler: only C++ code for the CPU can be compiled, without the arguments %s. Set "
                "use_cuda_if_available=False." % (", ".join(given) or "for CUDA or C")
            )
        self._name = re.sub(r"\W", "_", base_name)
        header = "// %s, version %r\n" % (base_name, code_version)
        for old, new in _RENAMED.items():
            code = re.sub(old, new, code)
        self._code = header + code
        self._ops: Optional[Any] = None

    def load_tf_module(self) -> Any:
        """Return a module with the ops as functions; the code is compiled once.

        :raises ConfigError: it does not compile; has the first error of the compiler
        """
        if self._ops is None:
            with tempfile.TemporaryDirectory() as folder:
                with open(os.path.join(folder, "op.cc"), "w", encoding="utf8") as file:
                    file.write(self._code)
                op = NativeOp("config_" + self._name, (), ("op.cc",), folder=folder)
                try:
                    self._ops = load_library(build(op)[0])
                except NativeOpError as exc:
                    raise CodeError("OpCodeCompiler: the code of %r does not compile: %s" % (self._name, exc)) from exc
        return self._ops
