"""Full-sum losses of transducers under the names that configs import them by: HawkAaron's warp-transducer, and rnnt_tf.

They run as a native op if it is available (see `returnn_tf.ops.sequence.alignments`).
"""

from __future__ import annotations

import sys
from typing import Any

from returnn_tf.compat.imports.stand_ins import FALLBACK, register_compat
from returnn_tf.ops.sequence.alignments import transducer
from returnn_tf.util.lazy_tf import tf

register_compat(__name__, "returnn.extern.HawkAaronWarpTransducer")
register_compat(__name__, "returnn.extern.WarpRna")
register_compat(__name__, "returnn.extern.HawkAaronWarpRna")
FALLBACK.add(sys.modules[__name__], "rnnt_tf_impl", owner=sys.modules[__name__])

__all__ = ["rna_loss", "rnnt_loss"]


def is_checked_out(*args: Any) -> bool:
    """Return True: no other repository is needed."""
    return True


def rnnt_loss(
    acts: Any = None,
    labels: Any = None,
    input_lengths: Any = None,
    label_lengths: Any = None,
    blank_label: int = 0,
    *,
    log_probs: Any = None,
    blank_index: Any = None,
    debug: bool = False,
    with_alignment: bool = False,
) -> Any:
    """Compute ``-log p(labels | acts)`` per sequence, summed over all alignments (Graves 2012).

    :param acts: [batch, time, labels + 1, classes]; log probabilities, which a softmax does not change
    :param labels: int32 [batch, labels]
    :param input_lengths: int32 [batch]
    :param label_lengths: int32 [batch]
    :param blank_label: index of the blank
    :param log_probs: the same as acts
    :param blank_index: the same as blank_label
    :param debug: not needed
    :param with_alignment: not supported
    :return: [batch]
    """
    del debug
    if with_alignment:
        raise ValueError("rnnt_loss: with_alignment is not supported. Use it without, or a layer of class 'fast_bw'.")
    scores = acts if log_probs is None else log_probs
    return _loss(scores, labels, input_lengths, label_lengths, blank_label if blank_index is None else blank_index)


def rna_loss(
    log_probs: Any, labels: Any, input_lengths: Any, label_lengths: Any, blank_label: int = 0, **others: Any
) -> Any:
    """Compute `rnnt_loss` where a label takes a frame, as the blank does (Sak et al. 2017)."""
    if others:
        raise TypeError("rna_loss: the arguments %s are not supported" % ", ".join(sorted(others)))
    return _loss(log_probs, labels, input_lengths, label_lengths, blank_label, label_takes_frame=True)


def _loss(scores: Any, labels: Any, lens: Any, label_lens: Any, blank: Any, label_takes_frame: bool = False) -> Any:
    scores = tf.convert_to_tensor(scores)
    classes = int(scores.shape[-1])
    lens, labels, label_lens = (tf.cast(x, tf.int32) for x in (lens, labels, label_lens))
    return transducer(
        scores, lens, labels, label_lens, blank=int(blank) % classes, label_takes_frame=label_takes_frame,
        normalized=False,
    )  # fmt: skip
