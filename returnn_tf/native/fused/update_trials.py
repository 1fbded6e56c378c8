"""Whether a native op updates all parameters on a GPU, or TensorFlow's ops for each of them; likewise the norm."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Callable, Optional

import numpy as np

from returnn_tf.native.fused.update import (
    AdafactorRule,
    AdamRule,
    LambRule,
    UpdateRule,
    native_global_norm,
    update_ops,
)
from returnn_tf.native.trials.measured import pays
from returnn_tf.native.trials.trial import Case, Size, Trial, draw
from returnn_tf.util.lazy_tf import tf

#: Larger networks are limited by the memory of the GPU as those of this size are, in both forms.
_MOST_BITS = 24
_WIDTHS = (1 << 18, 1 << 21, 1 << 24)


def update_ops_for(rule: UpdateRule, size: int) -> Optional[Any]:
    """Return the ops if they can be used, and on a GPU pay for this rule and parameters of so many entries."""
    return _ops_for(_TRIALS[rule.sums], size)


def norm_ops_for(size: int) -> Optional[Any]:
    """Return the ops if they can be used, and on a GPU pay for the norm of gradients of so many entries."""
    return _ops_for(NORM_OF_ALL_TRIAL, size)


def _ops_for(trial: Trial, size: int) -> Optional[Any]:
    """Return the ops if they pay. Trials are made for the next power of 2, so that networks share them."""
    ops = update_ops()
    bits = min((size - 1).bit_length(), _MOST_BITS)
    return ops if ops is not None and pays(trial, 1 << bits, tf.float32) else None


def _matrices(size: Size) -> tuple[int, int, int]:
    """Return the shape of an array with a matrix for each parameter: few large ones, and many small ones."""
    entries = max(1, size.width // size.batch)
    rows = 1 << (entries.bit_length() - 1) // 2
    return size.batch, rows, entries // rows


#: One parameter in plain TensorFlow: handles of the parameter and its slots, the gradient, the numbers of the rule.
Plain = Callable[[Sequence[Any], Any, Any], None]


def _adam(handles: Sequence[Any], grad: Any, rule: AdamRule) -> None:
    var, m, v = handles
    numbers = {
        "lr": rule.rate, "beta1_power": rule.beta1_power, "beta2_power": rule.beta2_power, "beta1": rule.beta1,
        "beta2": rule.beta2, "epsilon": rule.epsilon,
    }  # fmt: skip
    tf.raw_ops.ResourceApplyAdam(var=var, m=m, v=v, grad=grad, **numbers)


def _lamb(handles: Sequence[Any], grad: Any, rule: LambRule) -> None:
    w, m, v = map(_value, handles)
    m += (1.0 - rule.beta1) * (grad - m)
    v += (1.0 - rule.beta2) * (tf.square(grad) - v)
    step = rule.m_factor * m / (tf.sqrt(rule.v_factor * v) + rule.epsilon) + rule.weight_decay * w
    _assign(handles, [w - rule.rate * (tf.norm(w) / tf.norm(step)) * step, m, v])


def _adafactor(handles: Sequence[Any], grad: Any, rule: AdafactorRule) -> None:
    w, row, col = map(_value, handles)
    square, size = tf.square(grad), float(grad.shape.num_elements())
    row += rule.weight * (tf.reduce_mean(square, -1) + rule.epsilon1 - row)
    col += rule.weight * (tf.reduce_mean(square, -2) + rule.epsilon1 - col)
    of_row, of_col = tf.reduce_mean(row) / row, 1.0 / col
    total = tf.reduce_sum(of_row * tf.linalg.matvec(square, of_col))
    rate = rule.rate * tf.maximum(tf.sqrt(2.0 * tf.nn.l2_loss(w) / size), rule.epsilon2)
    rate /= tf.maximum(tf.sqrt(total / size) / rule.threshold, 1.0)
    step = grad * (rate * tf.sqrt(of_row))[:, None] * tf.sqrt(of_col)
    _assign(handles, [w - step - rule.rate * rule.weight_decay * w, row, col])


def _update_case(rule: UpdateRule, plain_step: Plain, size: Size) -> Case:
    whole = _matrices(size)
    of_slots = [whole[:2], whole[::2]] if rule.sums == "rows and columns" else [whole, whole]
    weights, grads, *slots = draw(*((1.0, shape) for shape in (whole, whole, *of_slots)))

    def native(ops: Any, *arrays: Any) -> list[Any]:
        *values, g = (tf.unstack(array) for array in arrays)
        w, *of_rule = (_variables("native %d" % i, rows) for i, rows in enumerate(values))
        of_all = [slot for of_one in zip(*of_rule) for slot in of_one]
        ops.rtf_update(rule=rule.name, vars=w, slots=of_all, grads=g, numbers=rule.numbers(), when=True)
        return [_taken(handles) for handles in (w, *of_rule)]

    def plain(*arrays: Any) -> list[Any]:
        *values, g = (tf.unstack(array) for array in arrays)
        handles = [_variables("plain %d" % i, rows) for i, rows in enumerate(values)]
        for *of_one, grad in zip(*handles, g):
            plain_step(of_one, grad, rule)
        return [_taken(of_all) for of_all in handles]

    return Case([weights, *map(np.abs, slots), grads], native, plain, has_gradients=False)


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


def _value(handle: Any) -> Any:
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)


def _assign(handles: Sequence[Any], values: Sequence[Any]) -> None:
    for handle, value in zip(handles, values):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def _taken(handles: Sequence[Any]) -> Any:
    """Return the values of variables as rows, and remove them."""
    values = [_value(handle) for handle in handles]
    for handle in handles:
        tf.raw_ops.DestroyResourceOp(resource=handle)
    return tf.stack(values)


def _norm_case(size: Size) -> Case:
    def native(ops: Any, arrays: Any) -> list[Any]:
        return [native_global_norm(ops, tf.unstack(arrays))]

    return Case(
        draw((1.0, _matrices(size))),
        native,
        lambda arrays: [tf.linalg.global_norm(tf.unstack(arrays))],
        has_gradients=False,
    )


def _trial(name: str, constant: str, rule: UpdateRule, plain_step: Plain) -> Trial:
    case, entries = partial(_update_case, rule, plain_step), "entries of all parameters"
    return Trial(name, "update", __name__, constant, case, entries, _WIDTHS)


UPDATE_TRIAL = _trial("update of all parameters", "UPDATE_TRIAL", AdamRule(0.1, 0.8, 0.9, 0.9, 0.99, 1e-3), _adam)
UPDATE_BY_SUMS_TRIAL = _trial(
    "update by sums of each parameter", "UPDATE_BY_SUMS_TRIAL", LambRule(0.1, 1.5, 1.2, 0.9, 0.99, 1e-3, 0.5), _lamb
)
ADAFACTOR_TRIAL = _trial(
    "update by rows and columns", "ADAFACTOR_TRIAL", AdafactorRule(0.1, 0.3, 1e-3, 1e-3, 0.8, True, 0.5), _adafactor
)
NORM_OF_ALL_TRIAL = Trial(
    "norm of all gradients", "update", __name__, "NORM_OF_ALL_TRIAL", _norm_case, "entries of all gradients", _WIDTHS
)
#: By `UpdateRule.sums`, one rule for all of a kind: for the others of the first kind TensorFlow has one op, too, or
#: several; the self-test compares the results of each.
_TRIALS = {"": UPDATE_TRIAL, "entries": UPDATE_BY_SUMS_TRIAL, "rows and columns": ADAFACTOR_TRIAL}
