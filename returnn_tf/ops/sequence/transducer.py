"""The transducer loss (Graves 2012, arXiv 1211.3711), in plain TensorFlow, with automatic gradient."""

from __future__ import annotations

from typing import Any

from returnn_tf.util.lazy_tf import tf

_NEG = -1e30


def transducer_loss(
    scores: Any,
    lens: Any,
    labels: Any,
    label_lens: Any,
    *,
    blank: int,
    label_takes_frame: bool = False,
    normalized: bool = False,
) -> Any:
    """Compute ``-log p(labels | scores)``, summed over all alignments.

    An alignment starts at frame 0 without labels. Each step emits a label or the blank, with the score for this frame
    and the number of labels so far. The blank advances to the next frame; the last step is the blank of the last frame.

    :param scores: [batch, time, labels + 1, classes]; logits, or log probabilities if ``normalized``
    :param lens: int32 [batch]
    :param labels: int32 [batch, labels]
    :param label_lens: int32 [batch]
    :param label_takes_frame: a label also advances to the next frame (RNA, Sak et al. 2017); ends after the last frame
    :return: [batch]; 0 with a gradient of 0 where there is no alignment
    """
    inside = tf.sequence_mask(lens, tf.shape(scores)[1])[:, :, None]
    inside = tf.logical_and(inside, tf.sequence_mask(label_lens + 1, tf.shape(scores)[2])[:, None])
    # Padding may hold anything; this keeps its NaN out of the gradient.
    clean = tf.where(inside[..., None], scores, tf.zeros_like(scores))
    clean = clean if normalized else tf.nn.log_softmax(clean)
    stay, label = _ways(clean, inside, labels, label_lens, blank)
    if label_takes_frame:
        alpha = _forward(stay, label, lens)
    else:  # a step is a frame or a label; then the scores of a step are not of one frame
        alpha = _forward(_skewed(stay), _skewed(label), lens + label_lens)
    total = tf.gather(alpha, label_lens[:, None], batch_dims=1)[:, 0]
    found = tf.logical_not(total <= _NEG / 2)  # NaN is passed on for detection
    return tf.where(found, -tf.where(found, total, tf.zeros_like(total)), tf.zeros_like(total))


def _ways(scores: Any, inside: Any, labels: Any, label_lens: Any, blank: int) -> tuple[Any, Any]:
    """Return the scores of the blank and of the next label, [batch, labels + 1, time]; ``_NEG`` where impossible."""
    padded = tf.pad(tf.cast(labels, tf.int32), [[0, 0], [0, 1]])
    goes_on = tf.sequence_mask(label_lens, tf.shape(padded)[1])
    following = tf.where(goes_on, padded, tf.zeros_like(padded))
    label = tf.gather(scores, tf.broadcast_to(following[:, None], tf.shape(scores)[:3]), batch_dims=3)
    label = tf.where(tf.logical_and(inside, goes_on[:, None]), label, tf.cast(_NEG, label.dtype))
    stay = tf.where(inside, scores[..., blank], tf.cast(_NEG, label.dtype))
    stay, label = (tf.maximum(tf.transpose(x, [0, 2, 1]), tf.cast(_NEG, x.dtype)) for x in (stay, label))
    return stay, label


def _skewed(x: Any) -> Any:
    """Shift row u of [batch, rows, time] by u to later times, with ``_NEG`` in the gaps."""
    batch, rows, time = (tf.shape(x)[i] for i in range(3))
    flat = tf.reshape(tf.pad(x, [[0, 0], [0, 0], [0, rows]], constant_values=_NEG), [batch, -1])
    return tf.reshape(flat[:, : rows * (time + rows - 1)], [batch, rows, time + rows - 1])


def _forward(stay: Any, label: Any, steps: Any) -> Any:
    """Return the log of the sum over all paths of ``steps`` steps to each number of labels; [batch, labels + 1].

    :param stay: [batch, labels + 1, steps], the scores of keeping the number of labels
    :param label: those of adding one label
    :param steps: int32 [batch]
    """
    n_steps, dtype = tf.shape(stay)[2], stay.dtype
    arrays = [
        tf.TensorArray(dtype, n_steps, element_shape=[None, None]).unstack(tf.transpose(x, [2, 0, 1]))
        for x in (stay, label)
    ]
    start = tf.where(tf.range(tf.shape(stay)[1]) > 0, tf.cast(_NEG, dtype), tf.zeros([], dtype))

    def step(d: Any, alpha: Any) -> Any:
        kept, more = (alpha + array.read(d) for array in arrays)
        more = tf.pad(more[:, :-1], [[0, 0], [1, 0]], constant_values=_NEG)
        new = tf.maximum(tf.reduce_logsumexp(tf.stack([kept, more]), axis=0), tf.cast(_NEG, dtype))
        return d + 1, tf.where((d < steps)[:, None], new, alpha)

    start = tf.broadcast_to(start, tf.shape(stay)[:2])
    shapes = [tf.TensorShape([]), tf.TensorShape([None, None])]
    return tf.while_loop(lambda d, _: d < n_steps, step, [0, start], shape_invariants=shapes)[1]
