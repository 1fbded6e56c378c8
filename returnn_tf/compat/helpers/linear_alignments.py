"""Linear alignments of labels to frames, by which configs begin the training of a transducer."""

from __future__ import annotations

from typing import Any

from returnn_tf.util.lazy_tf import tf


def get_linear_alignment_out_to_in_indices(input_lens: Any, output_lens: Any, pad_value: int = 0) -> Any:
    """Return for each of ``output_lens`` positions, at equal distances, the index of a position in the input.

    Position n (from 0) gets ``round((n + 1) * (input_len + 1) / (output_len + 1)) - 1``, rounded half
    to even, and clipped to ``0 .. input_len - 1``.

    :param input_lens: int [batch]
    :param output_lens: int [batch]
    :param pad_value: what stands after the end of a sequence
    :return: int32 [batch, max(output_lens)]
    """
    input_lens, output_lens = _lens(input_lens), _lens(output_lens)
    n = tf.range(tf.reduce_max(tf.concat([output_lens, [0]], axis=0)))
    indices = tf.clip_by_value(_places(n, input_lens, output_lens), 0, tf.maximum(input_lens, 1)[:, None] - 1)
    return tf.where(n < output_lens[:, None], indices, tf.fill(tf.shape(indices), tf.cast(pad_value, tf.int32)))


def get_rnnt_linear_aligned_output(
    input_lens: Any,
    targets: Any,
    target_lens: Any,
    blank_label_idx: int,
    pad_value: int = 0,
    targets_consume_time: bool = False,
) -> tuple[Any, Any]:
    """Return an alignment where the labels are at equal distances, and blanks between them.

    :param input_lens: int [batch]
    :param targets: int [batch, labels]
    :param target_lens: int [batch]
    :param blank_label_idx: the blank
    :param pad_value: what stands after the end of a sequence
    :param targets_consume_time: a label takes a frame, so that there are as many positions as frames; labels that would
        lie behind them are left out. Else there is a position per frame and one per label
    :return: alignment [batch, max length], and its lengths int32 [batch]
    """
    input_lens, target_lens = _lens(input_lens), _lens(target_lens)
    targets = tf.convert_to_tensor(targets)
    out_lens = input_lens if targets_consume_time else input_lens + target_lens
    size = tf.reduce_max(tf.concat([out_lens, [0]], axis=0))
    n = tf.range(tf.shape(targets)[1])
    lens = tf.maximum(out_lens, target_lens)
    places = tf.clip_by_value(_places(n, lens, target_lens), 0, tf.maximum(lens, 1)[:, None] - 1)
    used = tf.logical_and(n < target_lens[:, None], places < out_lens[:, None])
    batch = tf.broadcast_to(tf.range(tf.shape(targets)[0])[:, None], tf.shape(places))
    at = tf.boolean_mask(tf.stack([batch, places], axis=-1), used)
    blanks = tf.fill([tf.shape(targets)[0], size], tf.cast(blank_label_idx, targets.dtype))
    out = tf.tensor_scatter_nd_update(blanks, at, tf.boolean_mask(targets, used))
    valid = tf.sequence_mask(out_lens, size)
    return tf.where(valid, out, tf.fill(tf.shape(out), tf.cast(pad_value, out.dtype))), out_lens


def _lens(lens: Any) -> Any:
    return tf.cast(tf.convert_to_tensor(lens), tf.int32)


def _places(n: Any, lens: Any, count: Any) -> Any:
    """Return the position of each of ``count`` entries in sequences of these lengths, [batch, n]; it may be outside."""
    n, lens, count = (tf.cast(x + 1, tf.float64) for x in (n, lens, count))
    # One division, the last operation: a rounded step would turn exact halves into numbers beside them.
    return tf.cast(tf.round(n * lens[:, None] / count[:, None]), tf.int32) - 1
