"""Whether self-attention in a beam search leaves keys and values where they were written, by the native op."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from returnn_tf.native.decoding.beam_attention import beam_attention_ops, native_beam_attention
from returnn_tf.native.trials.measured import pays
from returnn_tf.native.trials.trial import Case, Size, Trial, draw
from returnn_tf.util.lazy_tf import tf


def in_place_ops(key_size: int) -> Optional[Any]:
    """Return the native ops for float32, or None if each hypothesis has a history of its own, in TensorFlow.

    :param key_size: of a head
    """
    ops = beam_attention_ops()
    return ops if ops and pays(IN_PLACE_TRIAL, key_size, tf.float32) else None


#: Hypotheses of a sequence of a trial, and heads.
_BEAM, _HEADS = 12, 4


def _case(size: Size) -> Case:
    """Return the steps of a search in which each hypothesis continues another one of its sequence."""
    entries, width = _BEAM * size.batch, _HEADS * size.width
    own = np.arange(entries, dtype="int32")
    parents = own - own % _BEAM + (own + 5) % _BEAM

    def run(step: Any, first: Any, others: tuple[Any, ...], qkv: Any) -> list[Any]:
        """Run all steps: ``step`` gives the result and the next state, with the first one and its shape invariants."""

        def body(t: Any, total: Any, *state: Any) -> tuple[Any, ...]:
            y, *state_after = step(qkv * tf.cos(tf.cast(t, tf.float32)), *state)
            return (t + 1, total + y, *state_after)

        start = (tf.constant(0), tf.zeros([entries, width]), *first)
        shapes = [tf.TensorShape([]), tf.TensorShape([entries, width]), *map(tf.TensorShape, others)]
        _, total, *_ = tf.while_loop(lambda t, *_: t < size.frames, body, start, shape_invariants=tuple(shapes))
        return [total]

    def native(ops: Any, qkv: Any) -> list[Any]:
        def step(x: Any, keys: Any, values: Any, rows: Any) -> tuple[Any, ...]:
            return native_beam_attention(ops, x, keys, values, tf.gather(rows, parents), heads=_HEADS)

        arrays = (tf.zeros([0, entries, width]), tf.zeros([0, entries, width]), tf.zeros([entries, 0], tf.int32))
        return run(step, arrays, ([None, None, width], [None, None, width], [None, None]), qkv)

    def plain(qkv: Any) -> list[Any]:
        def step(x: Any, keys: Any, values: Any) -> tuple[Any, ...]:
            q, k, v = tf.split(tf.reshape(x, [entries, _HEADS, 3 * size.width]), 3, axis=-1)
            keys, values = (
                tf.concat([tf.gather(before, parents), frame[:, None]], axis=1)
                for before, frame in ((keys, k), (values, v))
            )
            weights = tf.nn.softmax(tf.einsum("ehd,eshd->ehs", q * size.width**-0.5, keys))
            return tf.reshape(tf.einsum("ehs,eshd->ehd", weights, values), [entries, width]), keys, values

        history, shape = tf.zeros([entries, 0, _HEADS, size.width]), [entries, None, _HEADS, size.width]
        return run(step, (history, history), (shape, shape), qkv)

    return Case(draw((1.0, (entries, 3 * width))), native, plain, has_gradients=False)


IN_PLACE_TRIAL = Trial(
    "attention to histories in place", "beam_attention", __name__, "IN_PLACE_TRIAL", _case, "numbers of a key", (32, 64)
)
