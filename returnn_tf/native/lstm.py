"""The native LSTM, with its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.comparison import compare_recurrence, compare_rounded_recurrence
from returnn_tf.native.library import c_functions, check_type, has_type, native_op, runs_on_gpu
from returnn_tf.native.sources import register_op
from returnn_tf.native.weight_gradient import weight_gradient
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf

Result = tuple["tf.Tensor", "tf.Tensor", "tf.Tensor"]


def lstm_ops(dtype: tf.DType) -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason) or lack this type.

    :param dtype: float32; on a GPU also bfloat16 and float16
    """
    return native_op("lstm", self_test) if has_type("lstm", dtype) else None


def native_lstm(
    ops: Any,
    z: tf.Tensor,
    w_re: tf.Tensor,
    c0: tf.Tensor,
    h0: tf.Tensor,
    lengths: tf.Tensor,
    *,
    reverse: bool = False,
    rounded: bool = False,
) -> Result:
    """Run an LSTM with gates in the order cell input j, input gate i, forget gate f, output gate o on a ragged batch.

    ``j, i, f, o = split(z_t + h W_re);  c = sigmoid(f) c + sigmoid(i) tanh(j);  h = sigmoid(o) tanh(c)``
    (Hochreiter & Schmidhuber 1997; forget gate: Gers et al. 2000). Types: see `lstm_ops`. On a GPU the products with
    ``w_re`` use TF32 if TensorFlow's own products do.

    :param ops: what `lstm_ops` returned
    :param z: projected input, with bias [time, batch, 4 n]
    :param w_re: recurrent weights [n, 4 n]
    :param c0: initial cell state [batch, n]
    :param h0: initial output [batch, n]
    :param lengths: int32 [batch], at most ``time``
    :param reverse: run each sequence from its last to its first frame; z and the result keep the order of time
    :param rounded: round the factors of products with ``w_re``, and of those in the gradient, to bfloat16; sums are
        float32. For float32 on a CPU with AVX512_BF16, see `returnn_tf.native.product.rounds`
    :return: h [time, batch, n], 0 after the end of each sequence; c and h [batch, n] after the last step
    :raises NativeOpError: there are no kernels for the type
    """
    check_type("lstm", z.dtype)

    @custom_gradient
    def run(z: tf.Tensor, w_re: tf.Tensor, c0: tf.Tensor, h0: tf.Tensor) -> tuple[Result, Callable[..., Any]]:
        out = ops.rtf_lstm(z=z, r=w_re, c0=c0, h0=h0, lengths=lengths, reverse=reverse, rounded=rounded)

        def gradient(dh: tf.Tensor, dc_last: tf.Tensor, dh_last: tf.Tensor) -> tuple[tf.Tensor, ...]:
            dz, dc0, dh0 = ops.rtf_lstm_grad(
                r=w_re, c0=c0, lengths=lengths, c=out.c, gates=out.gates, dh=dh, dc_last=dc_last, dh_last=dh_last,
                reverse=reverse, rounded=rounded,
            )  # fmt: skip
            return dz, weight_gradient(out.h, h0, dz, lengths, reverse, rounded=rounded), dc0, dh0

        return (out.h, out.c_last, out.h_last), gradient

    h, c_last, h_last = run(z, w_re, c0, h0)
    h.set_shape([z.shape[0], z.shape[1], w_re.shape[0]])
    return h, c_last, h_last


@register_op(
    "lstm",
    kernels=("lstm/lstm_cpu.cc",),
    bindings=("lstm/lstm_op.cc",),
    cuda=("lstm/lstm_cuda.cu",),
    capability=(8, 0),
    replaces=("NativeLstm2", "NativeLstm", "LstmGenericBase", "LstmLowMem"),
)
def self_test(ops: Any) -> None:
    """Compare the op and its gradient with numpy on a small ragged batch, in both directions.

    :raises NativeOpError: they differ
    """
    run, shapes = partial(native_lstm, ops), lambda t, b, n: [(t, b, 4 * n), (n, 4 * n), (b, n), (b, n)]
    compare_recurrence("LSTM", run, _numpy_lstm, shapes)
    if not runs_on_gpu("lstm") and c_functions(ops).rtf_lstm_rounds():
        compare_rounded_recurrence("LSTM", run, _numpy_lstm, shapes)


def _numpy_lstm(
    z: NDArray[Any], w_re: NDArray[Any], c: NDArray[Any], h: NDArray[Any], lengths: NDArray[Any], reverse: bool
) -> Sequence[NDArray[Any]]:
    """Evaluate the formula of `native_lstm` frame by frame."""
    out = np.zeros([len(z), *h.shape])
    for t in range(len(z))[:: -1 if reverse else 1]:
        j, ifo = np.split(z[t] + h @ w_re, [h.shape[1]], axis=1)
        i, f, o = np.split(1 / (1 + np.exp(-ifo)), 3, axis=1)
        runs = (t < lengths)[:, None]
        c = np.where(runs, f * c + i * np.tanh(j), c)
        h = np.where(runs, o * np.tanh(c), h)
        out[t] = np.where(runs, h, 0)
    return out, c, h
