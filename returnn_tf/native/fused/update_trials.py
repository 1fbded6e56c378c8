"""Whether a native op updates all parameters on a GPU, or TensorFlow's op for each of them; likewise the norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from returnn_tf.native.fused.update import AdamRule, native_global_norm, update_ops
from returnn_tf.native.trials.measured import pays
from returnn_tf.native.trials.trial import Case, Size, Trial, draw
from returnn_tf.util.lazy_tf import tf

#: Larger networks are limited by the memory of the GPU as those of this size are, in both forms.
_MOST_BITS = 24


def update_ops_for(trial: Trial, size: int) -> Optional[Any]:
    """Return the ops if they can be used, and on a GPU pay for parameters of so many entries.

    :param trial: `UPDATE_TRIAL` or `NORM_OF_ALL_TRIAL`
    :param size: entries of all parameters. Trials are made for the next power of 2, so that networks share them.
    """
    ops = update_ops()
    bits = min((size - 1).bit_length(), _MOST_BITS)
    return ops if ops is not None and pays(trial, 1 << bits, tf.float32) else None


def _rows(size: Size) -> tuple[int, int]:
    """Return the shape of an array with a row for each parameter: few large ones, and many small ones."""
    return size.batch, max(1, size.width // size.batch)


def _update_case(size: Size) -> Case:
    weights, grads, first, second = draw(*[(1.0, _rows(size))] * 4)
    rule = AdamRule(0.1, 0.8, 0.9, 0.9, 0.99, 1e-3)

    def native(ops: Any, *arrays: Any) -> list[Any]:
        *slots, g = (tf.unstack(array) for array in arrays)
        w, m, v = (_variables("native %d" % i, rows) for i, rows in enumerate(slots))
        of_all = [slot for of_one in zip(m, v) for slot in of_one]
        ops.rtf_update(rule=rule.name, vars=w, slots=of_all, grads=g, numbers=rule.numbers, when=True)
        return [_taken(handles) for handles in (w, m, v)]

    def plain(*arrays: Any) -> list[Any]:
        *slots, g = (tf.unstack(array) for array in arrays)
        w, m, v = (_variables("plain %d" % i, rows) for i, rows in enumerate(slots))
        numbers = {
            "lr": rule.rate, "beta1_power": rule.beta1_power, "beta2_power": rule.beta2_power, "beta1": rule.beta1,
            "beta2": rule.beta2, "epsilon": rule.epsilon,
        }  # fmt: skip
        for var, of_m, of_v, grad in zip(w, m, v, g):
            tf.raw_ops.ResourceApplyAdam(var=var, m=of_m, v=of_v, grad=grad, **numbers)
        return [_taken(handles) for handles in (w, m, v)]

    return Case([weights, first, np.abs(second), grads], native, plain, has_gradients=False)


def _variables(name: str, values: Sequence[Any]) -> list[Any]:
    """Return handles of variables that exist within a step, where the step runs."""
    handles = []
    for i, value in enumerate(values):
        handle = tf.raw_ops.VarHandleOp(
            dtype=tf.float32, shape=value.shape, shared_name="trial of update, %s, %d" % (name, i)
        )
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        handles.append(handle)
    return handles


def _taken(handles: Sequence[Any]) -> Any:
    """Return the values of variables as rows, and remove them."""
    values = [tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32) for handle in handles]
    for handle in handles:
        tf.raw_ops.DestroyResourceOp(resource=handle)
    return tf.stack(values)


def _norm_case(size: Size) -> Case:
    def native(ops: Any, arrays: Any) -> list[Any]:
        return [native_global_norm(ops, tf.unstack(arrays))]

    return Case(
        draw((1.0, _rows(size))),
        native,
        lambda arrays: [tf.linalg.global_norm(tf.unstack(arrays))],
        has_gradients=False,
    )


_WIDTHS = (1 << 18, 1 << 21, 1 << 24)
UPDATE_TRIAL = Trial(
    "update of all parameters", "update", __name__, "UPDATE_TRIAL", _update_case, "entries of all parameters", _WIDTHS
)
NORM_OF_ALL_TRIAL = Trial(
    "norm of all gradients", "update", __name__, "NORM_OF_ALL_TRIAL", _norm_case, "entries of all gradients", _WIDTHS
)
