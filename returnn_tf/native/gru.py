"""The native GRU, with its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.comparison import compare_recurrence, compare_rounded_recurrence
from returnn_tf.native.library import c_functions, check_type, has_type, native_op, runs_on_gpu
from returnn_tf.native.sources import register_op
from returnn_tf.native.weight_gradient import outer_sum, weight_gradient
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf

Result = tuple["tf.Tensor", "tf.Tensor"]


def gru_ops(dtype: tf.DType) -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason) or lack this type.

    :param dtype: float32; on a GPU also bfloat16 and float16
    """
    return native_op("gru", self_test) if has_type("gru", dtype) else None


def native_gru(
    ops: Any,
    z: tf.Tensor,
    w_gates: tf.Tensor,
    w_candidate: tf.Tensor,
    h0: tf.Tensor,
    lengths: tf.Tensor,
    *,
    reverse: bool = False,
    rounded: bool = False,
) -> Result:
    """Run a GRU with reset gate r, update gate u and candidate c on a ragged batch.

    ``r, u = sigmoid(split(z_ru + h W_gates));  c = tanh(z_c + (r h) W_candidate);  h = u h + (1 - u) c``
    (Cho et al. 2014, arXiv 1406.1078). Types: see `gru_ops`. On a GPU the products with the recurrent weights use TF32
    if TensorFlow's own products do.

    :param ops: what `gru_ops` returned
    :param z: projected input, with bias, in the order r, u, c [time, batch, 3 n]
    :param w_gates: recurrent weights of r and u [n, 2 n]
    :param w_candidate: recurrent weights of c [n, n]
    :param h0: initial state [batch, n]
    :param lengths: int32 [batch], at most ``time``
    :param reverse: run each sequence from its last to its first frame; z and the result keep the order of time
    :param rounded: round the factors of products with weights, and of those in the gradient, to bfloat16; sums are
        float32. For float32 on a CPU with AVX512_BF16, see `returnn_tf.native.product.rounds`
    :return: h [time, batch, n], 0 after the end of each sequence; h [batch, n] after the last step
    :raises NativeOpError: there are no kernels for the type
    """
    check_type("gru", z.dtype)

    @custom_gradient
    def run(
        z: tf.Tensor, w_gates: tf.Tensor, w_candidate: tf.Tensor, h0: tf.Tensor
    ) -> tuple[Result, Callable[..., Any]]:
        weights = {"r_gates": w_gates, "r_candidate": w_candidate, "h0": h0, "lengths": lengths}
        options = {"reverse": reverse, "rounded": rounded}
        out = ops.rtf_gru(z=z, **weights, **options)

        def gradient(dh: tf.Tensor, dh_last: tf.Tensor) -> tuple[tf.Tensor, ...]:
            dz, reset_h, dh0 = ops.rtf_gru_grad(h=out.h, gates=out.gates, dh=dh, dh_last=dh_last, **weights, **options)
            split = 2 * (h0.shape[1] or tf.shape(h0)[1])
            dw_gates = weight_gradient(out.h, h0, dz[..., :split], lengths, reverse, rounded=rounded)
            return dz, dw_gates, outer_sum(reset_h, dz[..., split:], rounded=rounded), dh0

        return (out.h, out.h_last), gradient

    h, h_last = run(z, w_gates, w_candidate, h0)
    h.set_shape([z.shape[0], z.shape[1], w_candidate.shape[0]])
    return h, h_last


@register_op(
    "gru",
    kernels=("gru/gru_cpu.cc",),
    bindings=("gru/gru_op.cc",),
    cuda=("gru/gru_cuda.cu",),
    capability=(8, 0),
)
def self_test(ops: Any) -> None:
    """Compare the op and its gradient with numpy on a small ragged batch, in both directions.

    :raises NativeOpError: they differ
    """
    run, shapes = partial(native_gru, ops), lambda t, b, n: [(t, b, 3 * n), (n, 2 * n), (n, n), (b, n)]
    compare_recurrence("GRU", run, _numpy_gru, shapes)
    if not runs_on_gpu("gru") and c_functions(ops).rtf_gru_rounds():
        compare_rounded_recurrence("GRU", run, _numpy_gru, shapes)


def _numpy_gru(
    z: NDArray[Any],
    w_gates: NDArray[Any],
    w_candidate: NDArray[Any],
    h: NDArray[Any],
    lengths: NDArray[Any],
    reverse: bool,
) -> Sequence[NDArray[Any]]:
    """Evaluate the formula of `native_gru` frame by frame."""
    out, n = np.zeros([len(z), *h.shape]), h.shape[1]
    for t in range(len(z))[:: -1 if reverse else 1]:
        r, u = np.split(1 / (1 + np.exp(-(z[t, :, : 2 * n] + h @ w_gates))), 2, axis=1)
        c = np.tanh(z[t, :, 2 * n :] + (r * h) @ w_candidate)
        runs = (t < lengths)[:, None]
        h = np.where(runs, u * h + (1 - u) * c, h)
        out[t] = np.where(runs, h, 0)
    return out, h
