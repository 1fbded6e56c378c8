"""The native sLSTM, with its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.comparison import compare_recurrence, compare_rounded_recurrence
from returnn_tf.native.library import c_functions, native_op, runs_on_gpu
from returnn_tf.native.sources import register_op
from returnn_tf.native.weight_gradient import weight_gradient
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf

Result = tuple["tf.Tensor", ...]
_PARTS = 4


def slstm_ops(dtype: tf.DType) -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason) or lack this type.

    :param dtype: of the arrays; there are kernels for float32
    """
    return native_op("slstm", self_test) if dtype == tf.float32 else None


def native_slstm(
    ops: Any,
    z: tf.Tensor,
    w_re: tf.Tensor,
    *initial: tf.Tensor,
    lengths: tf.Tensor,
    reverse: bool = False,
    exp_forget: bool = False,
    rounded: bool = False,
) -> Result:
    """Run the heads of an sLSTM on a ragged batch; the formulas are in `returnn_tf.ops.cells.slstm`.

    :param ops: what `slstm_ops` returned
    :param z: projected input, with bias, of all heads [heads, time, batch, 4 d], in the order i, f, z, o
    :param w_re: recurrent weights [heads, d, 4 d]
    :param initial: c, n, m, h [heads, batch, d]
    :param lengths: int32 [batch], at most ``time``
    :param reverse: run each sequence from its last to its first frame; z and the result keep the order of time
    :param exp_forget: the forget gate is an exponential function
    :param rounded: round the factors of products with ``w_re``, and of those in the gradient, to bfloat16; sums are
        float32. For a CPU with AVX512_BF16, see `returnn_tf.native.product.rounds`
    :return: h [heads, time, batch, d], 0 after the end of each sequence; c, n, m, h [heads, batch, d] after its last
    """
    options = {"lengths": lengths, "reverse": reverse, "exp_forget": exp_forget, "rounded": rounded}

    @custom_gradient
    def run(z: tf.Tensor, w_re: tf.Tensor, *initial: tf.Tensor) -> tuple[Result, Callable[..., Any]]:
        out = ops.rtf_slstm(z=z, r=w_re, initial=list(initial), **options)
        h = out.states[3]

        def gradient(dh: tf.Tensor, *dlast: tf.Tensor) -> tuple[tf.Tensor, ...]:
            back = ops.rtf_slstm_grad(
                gates=out.gates,
                r=w_re,
                initial=list(initial),
                states=out.states[:3],
                dh=dh,
                dlast=list(dlast),
                **options,
            )
            heads = (tf.unstack(x, num=w_re.shape[0]) for x in (h, initial[3], back.dz))
            of_head = partial(weight_gradient, lengths=lengths, reverse=reverse, rounded=rounded)
            dw_re = tf.stack([of_head(h, h0, dz) for h, h0, dz in zip(*heads)])
            return back.dz, dw_re, *back.dinitial

        return (h, *out.last), gradient

    h, *last = run(z, w_re, *initial)
    h.set_shape(z.shape[:3].concatenate([w_re.shape[1]]))
    return h, *last


@register_op(
    "slstm",
    kernels=("slstm/slstm_cpu.cc",),
    bindings=("slstm/slstm_op.cc",),
    cuda=("slstm/slstm_cuda.cu",),
    capability=(8, 0),
)
def self_test(ops: Any) -> None:
    """Compare the op and its gradient with numpy on a small ragged batch, in both directions, for one and two heads.

    :raises NativeOpError: they differ
    """
    for heads, exp_forget in ((1, False), (2, True)):
        op = partial(_smooth, partial(native_slstm, ops, exp_forget=exp_forget), tf.exp)
        formula = partial(_smooth, partial(_numpy_slstm, exp_forget=exp_forget), np.exp)
        shapes = partial(_shapes, heads)
        compare_recurrence("sLSTM", op, formula, shapes)
        if not runs_on_gpu("slstm") and c_functions(ops).rtf_slstm_rounds():
            compare_rounded_recurrence("sLSTM", op, formula, shapes)


def _shapes(heads: int, frames: int, batch: int, n: int) -> list[tuple[int, ...]]:
    return [(heads, frames, batch, 4 * n), (heads, n, 4 * n), *[(heads, batch, n)] * _PARTS]


def _smooth(run: Any, exp: Any, z: Any, w_re: Any, c: Any, n: Any, *rest: Any, **options: Any) -> Any:
    """Run with n > 0, and return h, c exp(m), n exp(m) and the last h, which have no kinks, unlike c, n and m."""
    h, c, n, m, last = run(z, w_re * 0.3, c, exp(n), *rest, **options)
    return h, c * exp(m), n * exp(m), last


def _numpy_slstm(
    z: NDArray[Any],
    w_re: NDArray[Any],
    *state: NDArray[Any],
    lengths: NDArray[Any],
    reverse: bool,
    exp_forget: bool,
) -> Sequence[NDArray[Any]]:
    """Evaluate the formula of `native_slstm` frame by frame."""
    c, n, m, h = state
    out = np.zeros([*z.shape[:3], w_re.shape[1]])
    for t in range(z.shape[1])[:: -1 if reverse else 1]:
        i, f, cell, o = np.split(z[:, t] + h @ w_re, 4, axis=-1)
        kept = (f if exp_forget else -np.logaddexp(0, -f)) + m
        m_new = np.maximum(kept, i)
        f, i = np.exp(kept - m_new), np.exp(i - m_new)
        c_new, n_new = f * c + i * np.tanh(cell), f * n + i
        h_new = c_new / n_new / (1 + np.exp(-o))
        runs = (t < lengths)[:, None]
        c, n, m, h = (np.where(runs, new, old) for new, old in zip((c_new, n_new, m_new, h_new), (c, n, m, h)))
        out[:, t] = np.where(runs, h, 0)
    return out, c, n, m, h
