"""The best labels of a softmax over many."""

from __future__ import annotations

from typing import Any

from returnn_tf.native.decoding.best_labels import best_labels_ops, native_best_labels
from returnn_tf.native.dispatch import form, plain_form
from returnn_tf.native.trials.measured import pays
from returnn_tf.native.trials.trial import Case, Size, Trial, draw
from returnn_tf.util.lazy_tf import tf

#: With fewer labels TensorFlow's ops take no time either. With more that are wanted, the native op takes too much.
_LEAST_LABELS, _MOST_WANTED = 256, 256
#: Hypotheses of a sequence in a trial.
_BEAM = 12


def _ops_for(x: Any, count: int, *, with_gradient: bool) -> Any:
    fits = x.dtype == tf.float32 and x.shape[1] >= _LEAST_LABELS and count <= _MOST_WANTED
    ops = best_labels_ops() if fits and not with_gradient else None
    return ops if ops and pays(BEST_LABELS_TRIAL, x.shape[1], x.dtype) else None


def _native(ops: Any, x: Any, count: int, *, with_gradient: bool) -> tuple[Any, Any]:
    values, labels, log_sums = native_best_labels(ops, x, count)
    return (values - values[:, :1]) - log_sums[:, None], labels


@form(_native, where=_ops_for)
def best_of_log_softmax(x: Any, count: int, *, with_gradient: bool) -> tuple[Any, Any]:
    """Compute the highest entries of the log softmax over the last axis.

    :param x: [rows, labels]
    :param count: at most the number of labels
    :return: values, highest first, and labels, int32, each [rows, count]; equal ones in the order of the labels
    """
    found: tuple[Any, Any] = tf.math.top_k(tf.nn.log_softmax(x), k=count)
    return found


def _case(size: Size) -> Case:
    count = min(_BEAM, size.width)

    def scored(x: Any, values: Any, labels: Any) -> list[Any]:
        return [values, tf.gather(x, labels, batch_dims=1)]

    return Case(
        draw((3.0, (_BEAM * size.batch, size.width))),
        lambda ops, x: scored(x, *_native(ops, x, count, with_gradient=False)),
        lambda x: scored(x, *plain_form(best_of_log_softmax)(x, count, with_gradient=False)),
        has_gradients=False,
    )


BEST_LABELS_TRIAL = Trial("best labels", "best_labels", __name__, "BEST_LABELS_TRIAL", _case, "labels", (1000, 10000))
