"""The best labels of a softmax over many."""

from __future__ import annotations

from typing import Any

from returnn_tf.native.decoding.search import native_best_labels, search_ops
from returnn_tf.native.dispatch import form
from returnn_tf.util.lazy_tf import tf

#: With fewer labels TensorFlow's ops take no time either. With more that are wanted, the native op takes too much.
_LEAST_LABELS, _MOST_WANTED = 256, 256


def _is_worth_it(x: Any, count: int) -> bool:
    return bool(x.dtype == tf.float32 and x.shape[1] >= _LEAST_LABELS and count <= _MOST_WANTED)


def _native(ops: Any, x: Any, count: int, *, with_gradient: bool) -> tuple[Any, Any]:
    values, labels, log_sums = native_best_labels(ops, x, count)
    return (values - values[:, :1]) - log_sums[:, None], labels


@form(_native, where=lambda x, count, *, with_gradient: not with_gradient and _is_worth_it(x, count) and search_ops())
def best_of_log_softmax(x: Any, count: int, *, with_gradient: bool) -> tuple[Any, Any]:
    """Compute the highest entries of the log softmax over the last axis.

    :param x: [rows, labels]
    :param count: at most the number of labels
    :return: values, highest first, and labels, int32, each [rows, count]; equal ones in the order of the labels
    """
    found: tuple[Any, Any] = tf.math.top_k(tf.nn.log_softmax(x), k=count)
    return found
