"""``python -m returnn_tf.native.gpu.find_nvcc`` prints which CUDA compiler is used."""

from __future__ import annotations

import sys

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.gpu.card import cuda_of_driver
from returnn_tf.native.gpu.cuda_toolchain import find_cuda_toolchain


def main() -> int:
    """Print the version and path of nvcc.

    :return: exit code: 0, or 1 if nvcc was not found
    """
    try:
        found = find_cuda_toolchain((), cuda_of_driver())
    except NativeOpError as exc:
        print(exc)
        return 1
    print("%s (%s)" % (found.version, " ".join(found.nvcc)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
