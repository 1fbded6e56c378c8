"""The delta rule with decays over all frames, in chunks: the states of single frames are never materialised."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Optional

import numpy as np

from returnn_tf.native.dispatch import form, plain_form
from returnn_tf.native.scans.delta_scan import delta_scan_ops, native_delta_scan
from returnn_tf.native.trials.measured import pays
from returnn_tf.native.trials.trial import Case, Size, Trial, draw, ragged
from returnn_tf.ops.cells.base import all_lengths
from returnn_tf.ops.cells.matrix.chunks import Chunks
from returnn_tf.ops.cells.matrix.head_frames import HeadFrames
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf


def _native(
    ops: Any, heads: HeadFrames, state: tf.Tensor, *, lengths: Optional[tf.Tensor], chunk: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute `delta_rule` by the native op, which runs frame by frame with the state in cache or registers."""
    log_decay = tf.zeros_like(heads.r[..., :1]) if heads.log_decay is None else heads.log_decay
    arrays = (heads.r, heads.k, heads.v, heads.a, heads.b, log_decay, state)
    return native_delta_scan(ops, *arrays, lengths=all_lengths(lengths, heads.r))


def _ops_for(heads: HeadFrames, *_: Any, **__: Any) -> Any:
    ops = delta_scan_ops(heads.r.dtype)
    return ops if ops and pays(DELTA_RULE_TRIAL, max(heads.r.shape[-1], heads.v.shape[-1]), heads.r.dtype) else None


@form(_native, where=_ops_for)
def delta_rule(
    heads: HeadFrames, state: tf.Tensor, *, lengths: Optional[tf.Tensor], chunk: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute ``S' = diag(exp(log_decay)) S + b (a S) + k v`` and ``y = r S'`` over all frames.

    Within a chunk the terms ``u = a S`` of all frames solve a triangular system, ``(1 - A) u = a S + A' v``, where S is
    the state before the chunk, and A, A' are products of pairs of frames (the WY representation, arXiv 2406.06484). For
    a whole chunk then ``S' = P S + Q``, and only that runs in a loop.

    Decays between two frames are quotients of those from the middle of the chunk. The sum of `log_decay` over half a
    chunk must not be below -40, so that these and their products fit into floats.

    :param heads: [time, batch, heads, d], with ``a`` and ``b``, without a bonus
    :param state: [batch, heads, d, m], before the first frame
    :param lengths: int [batch]; None: all sequences have all frames
    :param chunk: frames in a chunk, see `chunk_error`
    :return: y [time, batch, heads, m], and the state at the end of each sequence
    """
    chunks = Chunks(tf.shape(heads.r)[0], lengths, False, chunk)

    def split(x: Optional[tf.Tensor]) -> tf.Tensor:
        """Return [chunks * batch * heads, chunk, d]; zeros after the end leave the state as it is."""
        assert x is not None
        return tf.reshape(chunks.split(x), [-1, chunk, x.shape[-1]])

    r, k, v, a, b = (split(x) for x in (heads.r, heads.k, heads.v, heads.a, heads.b))
    log_decay = None if heads.log_decay is None else split(heads.log_decay)
    kept = tf.eye(r.shape[-1], dtype=r.dtype)
    a_start, r_start, b_end, k_end = a, r, b, k
    if log_decay is not None:
        # From the middle of the chunk to each frame, so that the exponents stay small.
        to_middle = np.tri(chunk) - np.tri(chunk)[(chunk - 1) // 2]
        decays = tf.matmul(tf.constant(to_middle, r.dtype), log_decay)
        before, until = tf.exp(decays - log_decay), tf.exp(decays)
        a, r, b, k = a * before, r * until, b / until, k / until
        start, end = 1 / before[:, :1], until[:, -1:]
        a_start, r_start, b_end, k_end = a * start, r * start, b * end, k * end
        kept = tf.linalg.diag(tf.squeeze(start * end, 1))
    pairs = tf.matmul(tf.concat([a, r], 1), tf.concat([b, k], 1), transpose_b=True)
    pairs *= tf.constant(np.block([[np.tri(chunk, k=-1)] * 2, [np.tri(chunk)] * 2]), r.dtype)
    (a_b, a_k), (r_b, r_k) = (tf.split(rows, 2, -1) for rows in tf.split(pairs, 2, 1))
    # u = from_state S + from_frames
    right = tf.concat([a_start, tf.matmul(a_k, v)], -1)
    solved = tf.linalg.triangular_solve(tf.eye(chunk, dtype=r.dtype) - a_b, right)
    from_state, from_frames = tf.split(solved, [a.shape[-1], v.shape[-1]], -1)
    factor = kept + tf.matmul(b_end, from_state, transpose_a=True)
    term = tf.matmul(b_end, from_frames, transpose_a=True) + tf.matmul(k_end, v, transpose_a=True)
    before, last = _states(factor, term, state)
    y = tf.matmul(r_start + tf.matmul(r_b, from_state), before) + tf.matmul(r_b, from_frames) + tf.matmul(r_k, v)
    shape = tf.concat([[-1], tf.shape(state)[:2], [chunk, v.shape[-1]]], 0)
    return chunks.join(tf.ensure_shape(tf.reshape(y, shape), [None, None, state.shape[1], chunk, v.shape[-1]])), last


def _states(factor: tf.Tensor, term: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute ``S' = factor S + term`` from chunk to chunk.

    :param factor: [chunks * batch * heads, d, d]
    :param term: [chunks * batch * heads, d, m]
    :param state: [batch, heads, d, m], before the first chunk
    :return: states before each chunk [chunks * batch * heads, d, m], and the last state
    """
    d, m = term.shape[1:]
    leading = tf.concat([[-1], tf.shape(state)[:2]], 0)
    factor = tf.reshape(factor, tf.concat([leading, [d, d]], 0))
    states = matrix_recurrence(factor, tf.reshape(term, tf.concat([leading, [d, m]], 0)), state)
    last = states[-1]
    last.set_shape(state.shape)
    return tf.reshape(states[:-1], [-1, d, m]), last


def matrix_recurrence(factor: tf.Tensor, term: tf.Tensor, state: tf.Tensor) -> tf.Tensor:
    """Compute ``state[n+1] = factor[n] state[n] + term[n]``.

    Besides the results nothing is kept for the gradient, which runs in a loop of the same kind.

    :param factor: [steps, ..., d, d]
    :param term: [steps, ..., d, m]
    :param state: [..., d, m], the first one
    :return: [steps + 1, ..., d, m], all states
    """

    @custom_gradient
    def run(
        factor: tf.Tensor, term: tf.Tensor, state: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]]:
        states = _loop(factor, term, state)

        def gradient(d_states: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            # backwards in time: d[n] = factor[n]^T d[n+1] + d_states[n]
            backwards = tf.reverse(factor, [0])
            sums = tf.reverse(_loop(backwards, tf.reverse(d_states[:-1], [0]), d_states[-1], transpose=True), [0])
            d_term = sums[1:]
            return tf.matmul(d_term, states[:-1], transpose_b=True), d_term, sums[0]

        return states, gradient

    states = run(factor, term, state)
    states.set_shape(tf.TensorShape([None]).concatenate(term.shape[1:]))
    return states


def _loop(factor: tf.Tensor, term: tf.Tensor, state: tf.Tensor, transpose: bool = False) -> tf.Tensor:
    """Run `matrix_recurrence` step by step; return all states [steps + 1, ...]."""
    steps = tf.shape(term)[0]
    factors = tf.TensorArray(factor.dtype, steps).unstack(factor)
    terms = tf.TensorArray(term.dtype, steps).unstack(term)
    states = tf.TensorArray(term.dtype, steps + 1, clear_after_read=False).write(0, state)

    def body(n: tf.Tensor, state: tf.Tensor, states: tf.TensorArray) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
        state = tf.ensure_shape(tf.matmul(factors.read(n), state, transpose_a=transpose) + terms.read(n), state.shape)
        return n + 1, state, states.write(n + 1, state)

    *_, states = tf.while_loop(lambda n, *_: n < steps, body, (0, state, states), parallel_iterations=1)
    return states.stack()


def _case(size: Size) -> Case:
    heads, n = 4, size.width
    frames = (size.frames, size.batch, heads, n)
    inputs = draw(*((0.5, frames),) * 6, (0.5, (size.batch, heads, n, n)))
    lengths = ragged(size)

    def of(run: Callable[..., Any], *arrays: tf.Tensor) -> Any:
        """Run it with what is removed read by the same key, and with decays like those of RWKV-7."""
        r, k, v, removed, rate, decay, state = arrays
        removed = tf.math.l2_normalize(removed, -1)
        b = tf.sigmoid(rate) * removed
        return run(
            HeadFrames(r=r, k=k, v=v, log_decay=-0.6 * tf.sigmoid(decay), a=-removed, b=b), state,
            lengths=tf.constant(lengths), chunk=64,
        )  # fmt: skip

    def native(ops: Any, *arrays: tf.Tensor) -> Any:
        return of(partial(_native, ops), *arrays)

    return Case(inputs, native, partial(of, plain_form(delta_rule)))


DELTA_RULE_TRIAL = Trial("delta rule", "delta_scan", __name__, "DELTA_RULE_TRIAL", _case, "keys and values", (64, 128))
