"""Decaying sums of outer products, the matrix-valued state of linear attention with gates, chunk by chunk."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Optional

from returnn_tf.config.options import option
from returnn_tf.native.dispatch import form, plain_form
from returnn_tf.native.scans.matrix_scan import matrix_scan_ops, native_matrix_scan
from returnn_tf.native.trials.measured import pays
from returnn_tf.native.trials.trial import Case, Size, Trial, draw, ragged
from returnn_tf.ops.cells.base import all_lengths
from returnn_tf.ops.cells.matrix.chunks import Chunks, carried_states
from returnn_tf.ops.cells.time_axis import frame_mask
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf

#: Frames whose products are computed one by one, without the state: a power of 2.
_BASE = 4


def _native(
    ops: Any,
    q: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    log_decay: tf.Tensor,
    state: tf.Tensor,
    *,
    lengths: Optional[tf.Tensor] = None,
    reverse: bool = False,
    chunk: int = 64,
    bonus: Optional[tf.Tensor] = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute `chunkwise` by the native op, which runs frame by frame with the state in cache or registers."""
    runs = all_lengths(lengths, q)
    o, last = native_matrix_scan(ops, q, k, v, log_decay, state, runs, reverse=reverse, exclusive=bonus is not None)
    if bonus is None:
        return o, last
    if lengths is not None:
        mask = frame_mask(lengths, tf.shape(q)[0])[:, :, None, None]
        q, k, v = (tf.where(mask, x, tf.zeros([], x.dtype)) for x in (q, k, v))
    return o + tf.reduce_sum(q * k * bonus, axis=-1, keepdims=True) * v, last


def _ops_for(q: tf.Tensor, _: tf.Tensor, v: tf.Tensor, log_decay: tf.Tensor, *__: Any, **___: Any) -> Any:
    ops = matrix_scan_ops(q.dtype)
    trial = MATRIX_SCAN_TRIAL if log_decay.shape[-1] != 1 else ONE_DECAY_TRIAL
    return ops if ops and pays(trial, max(q.shape[-1], v.shape[-1]), q.dtype) else None


@form(_native, where=_ops_for)
def chunkwise(
    q: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    log_decay: tf.Tensor,
    state: tf.Tensor,
    *,
    lengths: Optional[tf.Tensor] = None,
    reverse: bool = False,
    chunk: int = 64,
    bonus: Optional[tf.Tensor] = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Run ``S_t = diag(exp(log_decay_t)) S_{t-1} + k_t v_t^T,  o_t = S_t^T q_t`` over all frames.

    With a bonus u, the output sees the frame with another weight: ``o_t = (S_{t-1} + diag(u) k_t v_t^T)^T q_t``.

    The native op runs frame by frame, see `native_matrix_scan`. Here the frames of a chunk are computed by masked
    products, and the state goes from chunk to chunk (Yang et al. 2023, arXiv 2312.06635). All exponents are sums of log
    decays, thus at most 0, so decays may be as small as they like, also exactly 0 in float (log_decay -1e4, but not
    -inf). The gradient keeps the inputs and the states between chunks, and recomputes the rest. Padding may hold
    anything, also NaN.

    :param q: [time, batch, heads, keys]
    :param k: [time, batch, heads, keys]
    :param v: [time, batch, heads, values]
    :param log_decay: [time, batch, heads, keys], or [time, batch, heads, 1]: one decay for the head; at most 0
    :param state: before the first frame [batch, heads, keys, values]
    :param lengths: int [batch]; None: all sequences have all frames
    :param reverse: each sequence runs from its last to its first frame; inputs and outputs keep the order of time
    :param chunk: frames of a chunk, see `chunk_error`; any number of frames works, the last chunk is padded
    :param bonus: [heads, keys]
    :return: o [time, batch, heads, values], 0 after the end of each sequence; state after the frame that ran last
    """
    chunks = Chunks(tf.shape(q)[0], lengths, reverse, chunk)
    weights = tf.ones([1, 1], q.dtype) if bonus is None else bonus
    q, k, v, g = (chunks.split(x) for x in (q, k, v, log_decay))
    o, last = _run(q, k, v, g, weights, state, exclusive=bonus is not None)
    last.set_shape(state.shape)
    return chunks.join(o), last


def chunk_option(longest: Optional[int] = None) -> Any:
    """Declare the option ``chunk`` of a unit.

    :param longest: the most frames that the numbers of the unit allow
    """

    def error(chunk: int) -> Optional[str]:
        if chunk < _BASE or chunk & (chunk - 1):
            return "must be a power of 2 from %d (chunks are halved)" % _BASE
        if longest is not None and chunk > longest:
            return "must be at most %d, so that decays fit into floats" % longest
        return None

    most = "" if longest is None else " up to %d" % longest
    return option(64, check=error, help="frames of a chunk, a power of 2%s: for speed; the native op needs none" % most)


def _run(
    q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, g: tf.Tensor, weights: tf.Tensor, state: tf.Tensor, *, exclusive: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute outputs and the last state from arrays [chunks, batch, heads, frames, d]; recompute for the gradient."""
    before, last = carried_states(*_summaries(k, v, g), state)

    @custom_gradient
    def outputs(*inputs: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        def gradient(do: tf.Tensor) -> list[tf.Tensor]:
            with tf.control_dependencies([do]):  # else the forward pass would be reused, and so kept in memory
                again = [tf.identity(x) for x in inputs]
            with tf.GradientTape() as tape:
                tape.watch(again)
                o = _outputs(*again, exclusive=exclusive)
            gradients: list[tf.Tensor] = tape.gradient(o, again, do, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            return gradients

        return _outputs(*inputs, exclusive=exclusive), gradient

    return outputs(q, k, v, g, weights, before), last


def _summaries(k: tf.Tensor, v: tf.Tensor, g: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the decay of each chunk [.., keys or 1, 1], and what it adds to the state [.., keys, values]."""
    later = tf.cumsum(g, axis=-2, exclusive=True, reverse=True)  # of the frames after each one, in its chunk
    total = tf.reduce_sum(g, axis=-2)
    return tf.exp(total)[..., None], tf.matmul(k * tf.exp(later), v, transpose_a=True)


def _outputs(
    q: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    g: tf.Tensor,
    weights: tf.Tensor,
    before: tf.Tensor,
    *,
    exclusive: bool,
) -> tf.Tensor:
    """Compute the outputs of all chunks from the states before them.

    :param weights: of a frame in its own output [heads or 1, keys or 1]
    :param exclusive: the decay of a frame does not apply to the state that its output sees
    """
    past = tf.cumsum(g, axis=-2, exclusive=exclusive)
    o = tf.matmul(q * tf.exp(past), before)
    o += tf.reduce_sum(q * k * weights[:, None], axis=-1, keepdims=True) * v
    if g.shape[-1] == 1:
        return o + _with_one_decay(q, k, v, g, exclusive=exclusive)
    o += _neighbours(q, k, v, g, exclusive=exclusive)
    half = _BASE
    while half < q.shape[-2]:
        o += _halves(q, k, v, g, half, exclusive=exclusive)
        half *= 2
    return o


def _with_one_decay(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, g: tf.Tensor, *, exclusive: bool) -> tf.Tensor:
    """Compute what earlier frames of the chunk add to each output; one decay for all keys."""
    size = q.shape[-2]
    earlier = tf.linalg.band_part(tf.ones([size, size], tf.bool), -1, 0) & ~tf.eye(size, dtype=tf.bool)
    zero = tf.constant(0, q.dtype)
    # Entry [i, j] sums the frames after j up to i. A difference of two sums would lose digits after a large decay.
    decay = tf.exp(tf.cumsum(tf.where(earlier, g, zero), axis=-2, exclusive=exclusive))
    products = tf.matmul(q, k, transpose_b=True) * decay
    return tf.matmul(tf.where(earlier, products, zero), v)


def _neighbours(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, g: tf.Tensor, *, exclusive: bool) -> tf.Tensor:
    """Compute what earlier frames of the same `_BASE` frames add to each output."""
    q, k, v, g = (_blocks(x, _BASE) for x in (q, k, v, g))
    outputs = []
    for i in range(_BASE):
        o = tf.zeros_like(v[..., 0, :])
        exponent = tf.zeros_like(g[..., 0, :]) if exclusive else g[..., i, :]
        for j in range(i - 1, -1, -1):
            weight = tf.reduce_sum(q[..., i, :] * k[..., j, :] * tf.exp(exponent), axis=-1, keepdims=True)
            o += weight * v[..., j, :]
            exponent += g[..., j, :]
        outputs.append(o)
    return _unblocked(tf.stack(outputs, axis=-2))


def _halves(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, g: tf.Tensor, half: int, *, exclusive: bool) -> tf.Tensor:
    """Compute what the first half of each ``2 * half`` frames adds to the outputs of the second half.

    The decay between two frames is that from the first one to the middle, times that from the middle to the other.
    """
    q, k, v, g = (_blocks(x, 2 * half) for x in (q, k, v, g))
    since_middle = tf.cumsum(g[..., half:, :], axis=-2, exclusive=exclusive)
    to_middle = tf.cumsum(g[..., :half, :], axis=-2, exclusive=True, reverse=True)
    k = k[..., :half, :] * tf.exp(to_middle)
    products = tf.matmul(q[..., half:, :] * tf.exp(since_middle), k, transpose_b=True)
    o = tf.matmul(products, v[..., :half, :])
    return _unblocked(tf.concat([tf.zeros_like(o), o], axis=-2))


def _blocks(x: tf.Tensor, size: int) -> tf.Tensor:
    """Cut the frames of [..., frames, d] into [..., frames / size, size, d]."""
    shape = tf.shape(x)
    out = tf.reshape(x, tf.concat([shape[:-2], [x.shape[-2] // size, size], shape[-1:]], axis=0))
    out.set_shape([*x.shape[:-2], x.shape[-2] // size, size, x.shape[-1]])
    return out


def _unblocked(x: tf.Tensor) -> tf.Tensor:
    """Undo `_blocks`."""
    shape, frames = tf.shape(x), x.shape[-3] * x.shape[-2]
    out = tf.reshape(x, tf.concat([shape[:-3], [frames], shape[-1:]], axis=0))
    out.set_shape([*x.shape[:-3], frames, x.shape[-1]])
    return out


def _case(one_decay: bool, size: Size) -> Case:
    heads, n = 4, size.width
    frames = (size.frames, size.batch, heads)
    decays = (*frames, 1 if one_decay else n)
    inputs = draw(*((0.5, (*frames, n)),) * 3, (0.5, decays), (0.5, (size.batch, heads, n, n)))
    lengths = ragged(size)

    def of(run: Callable[..., Any], q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, g: tf.Tensor, state: tf.Tensor) -> Any:
        return run(q, k, v, -tf.square(g), state, lengths=tf.constant(lengths))

    def native(ops: Any, *arrays: tf.Tensor) -> Any:
        return of(partial(_native, ops), *arrays)

    return Case(inputs, native, partial(of, plain_form(chunkwise)))


MATRIX_SCAN_TRIAL = Trial(
    "matrix scan", "matrix_scan", __name__, "MATRIX_SCAN_TRIAL", partial(_case, False), "keys and values", (64, 128)
)
ONE_DECAY_TRIAL = Trial(
    "matrix scan with one decay", "matrix_scan", __name__, "ONE_DECAY_TRIAL", partial(_case, True), "keys and values",
    (64, 128),
)  # fmt: skip
