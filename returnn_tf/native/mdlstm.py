"""The native multi-dimensional LSTM, with its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.comparison import compare, compare_rounded
from returnn_tf.native.library import c_functions, check_type, native_op, runs_on_gpu
from returnn_tf.native.sources import register_op
from returnn_tf.native.weight_gradient import outer_sum
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf


def mdlstm_ops() -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason)."""
    return native_op("mdlstm", self_test)


def native_mdlstm(
    ops: Any,
    z: Sequence[tf.Tensor],
    left: Sequence[tf.Tensor],
    up: Sequence[tf.Tensor],
    heights: tf.Tensor,
    widths: tf.Tensor,
    flips: Sequence[tuple[bool, bool]],
    *,
    stable: bool = True,
    rounded: bool = False,
) -> list[tf.Tensor]:
    """Run all directions of an MDLSTM over images of different sizes; formula: ``native_ops/mdlstm/mdlstm.h``.

    Float32, on a GPU also bfloat16 and float16.

    :param ops: what `mdlstm_ops` returned
    :param z: per direction, the projected input, with bias [batch, height, width, 5 n]
    :param left: per direction, the weights for the pixel to the left [n, 5 n]
    :param up: per direction, the weights for the pixel above [n, 5 n]
    :param heights: int32 [batch], at most ``height``
    :param widths: int32 [batch], at most ``width``
    :param flips: per direction, whether it starts at the last row, and at the last column
    :param stable: the stable cell, else two forget gates
    :param rounded: round the factors of products with ``left`` and ``up``, and of those in the gradient, to bfloat16;
        sums are float32. For float32 on a CPU with AVX512_BF16, see `returnn_tf.native.product.rounds`
    :return: per direction, h [batch, height, width, n], 0 in the padding
    :raises NativeOpError: there are no kernels for the type
    """
    check_type("mdlstm", z[0].dtype)
    count, n = len(z), left[0].shape[0]
    attrs = {
        "flip_rows": [bool(rows) for rows, _ in flips],
        "flip_columns": [bool(columns) for _, columns in flips],
        "stable": stable,
        "rounded": rounded,
    }

    @custom_gradient
    def run(*inputs: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
        r = inputs[count:]
        out = ops.rtf_md_lstm(z=inputs[:count], r=r, heights=heights, widths=widths, **attrs)

        def gradient(*dh: tf.Tensor) -> list[tf.Tensor]:
            dz, before = ops.rtf_md_lstm_grad(
                gates=out.gates, r=r, heights=heights, widths=widths, h=out.h, c=out.c, dh=dh, **attrs
            )
            # one product over all pixels; those in the padding are 0
            return [*dz, *(outer_sum(x, d, rounded=rounded) for x, d in zip(before, dz))]

        return list(out.h), gradient

    result = run(*z, *(tf.concat(pair, axis=0) for pair in zip(up, left)))
    result = list(result) if isinstance(result, (list, tuple)) else [result]
    for h, x in zip(result, z):
        h.set_shape([*x.shape[:3], n])
    return result


@register_op(
    "mdlstm",
    kernels=("mdlstm/mdlstm_cpu.cc",),
    bindings=("mdlstm/mdlstm_op.cc",),
    cuda=("mdlstm/mdlstm_cuda.cu",),
    capability=(8, 0),
    replaces=("TwoDLSTM",),
)
def self_test(ops: Any) -> None:
    """Compare the op and its gradient with numpy on a small ragged batch.

    :raises NativeOpError: they differ
    """
    rng = np.random.RandomState(1)
    batch, height, width, n = 3, 4, 5, 19
    sizes = np.array([[4, 5], [2, 3], [0, 4]], "int32")
    inputs = [rng.normal(0, 0.5, s) for s in ((batch, height, width, 5 * n), (n, 5 * n), (n, 5 * n))]

    def op(z: tf.Tensor, left: tf.Tensor, up: tf.Tensor, rounded: bool = False) -> list[tf.Tensor]:
        return native_mdlstm(ops, [z], [left], [up], sizes[:, 0], sizes[:, 1], [(True, False)], rounded=rounded)

    def formula(z: NDArray[Any], left: NDArray[Any], up: NDArray[Any]) -> list[NDArray[Any]]:
        out = np.zeros((batch, height, width, n))
        for b, (rows, columns) in enumerate(sizes):
            out[b, :rows, :columns] = _image(z[b, :rows, :columns][::-1], left, up)[::-1]
        return [out]

    compare("MDLSTM", op, formula, inputs)
    if not runs_on_gpu("mdlstm") and c_functions(ops).rtf_mdlstm_rounds():
        compare_rounded("MDLSTM", partial(op, rounded=True), formula, inputs)


def _image(z: NDArray[Any], left: NDArray[Any], up: NDArray[Any]) -> NDArray[Any]:
    """Return h of one image, starting in the upper left corner, with the stable cell."""
    height, width, n = z.shape[0], z.shape[1], len(left)
    h, c = np.zeros((2, height + 1, width + 1, n))
    for y in range(1, height + 1):
        for x in range(1, width + 1):
            gates = z[y - 1, x - 1] + h[y, x - 1] @ left + h[y - 1, x] @ up
            i, f, mix, o = (1 / (1 + np.exp(-gates[: 4 * n]))).reshape(4, n)
            c[y, x] = f * (mix * c[y, x - 1] + (1 - mix) * c[y - 1, x]) + i * np.tanh(gates[4 * n :])
            h[y, x] = o * np.tanh(c[y, x])
    result: NDArray[Any] = h[1:, 1:]
    return result
