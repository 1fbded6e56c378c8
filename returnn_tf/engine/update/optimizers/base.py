"""Base of the optimizers: options as dataclass fields, slot variables per parameter, one application per step.

An optimizer turns final gradients (clipped, accumulated, ...) into changes of the parameters. Where TensorFlow has a
fused kernel for the update rule, the subclass calls that kernel: one op per parameter and step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Callable, ClassVar, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.options import option
from returnn_tf.native.fused.update import LEAST_SIZE, UpdateRule, native_update
from returnn_tf.native.fused.update_trials import update_ops_for
from returnn_tf.util.lazy_tf import tf

# The epsilon of the optimizers that RETURNN has, unless ``optimizer_epsilon`` or the optimizer dict sets it; the others
# have that of their paper.
DEFAULT_EPSILON = 1e-16


@dataclass(frozen=True)
class Slot:
    """State of one parameter.

    :param shape: static sizes
    :param initial: value of all entries
    """

    shape: tuple[int, ...]
    initial: float = 0.0


@dataclass
class Optimizer:
    """Base of all optimizers; the dataclass fields of a subclass are its options in the optimizer dict."""

    learning_rate_multiplier: float = option(
        1.0, help="factor on the learning rate of the parameters of this optimizer"
    )
    use_locking: bool = option(
        False, help="guard each update kernel by the lock of the variable; matters for asynchronous use only"
    )

    #: registered name, set by ``register_optimizer``
    name: ClassVar[str] = ""
    #: the older setting that selects the class
    switch: ClassVar[str] = ""
    #: slot -> last part of the name of its variables in TensorFlow 1, after the name of the parameter
    tf1_slots: ClassVar[Mapping[str, str]] = {}
    #: whether evaluation has `average` in place of the parameters
    keeps_averages: ClassVar[bool] = False
    #: the `update` for which `fused` has the native rule; a subclass with another `update` alone is not fused
    fused_replaces: ClassVar[Optional[Callable[..., None]]] = None

    def instead_of_this(self, *, hidden_matrix: bool) -> Optional[dict[str, Any]]:
        """Return the optimizer dict for a parameter that this rule is not for; None: it is for all.

        :param hidden_matrix: whether the parameter is a matrix of a hidden layer, see `hidden_matrices`
        """
        del hidden_matrix
        return None

    def slot_inits(self) -> dict[str, float]:
        """Return the slots with the shape of the parameter: slot name -> initial value of all entries."""
        return {}

    def slots_of(self, shape: tuple[int, ...]) -> dict[str, Slot]:
        """Return the slots of a parameter by name; those of `slot_inits`, unless they differ from it in shape."""
        return {name: Slot(shape, value) for name, value in self.slot_inits().items()}

    def numbers_kept(self, shape: tuple[int, ...]) -> int:
        """Return how many numbers the slots of a parameter have."""
        return sum(prod(slot.shape) for slot in self.slots_of(shape).values())

    def scalar_inits(self) -> dict[str, float]:
        """Return further state, one scalar for all parameters of this optimizer: name -> initial value."""
        return {}

    def hyper(self, rate: Any, iteration: Any, scalars: Mapping[str, Any]) -> dict[str, Any]:
        """Return values common to all parameters of one application, and the new values of all scalars, computed once.

        :param rate: float64 scalar, the learning rate
        :param iteration: float64 scalar, number of earlier applications of this optimizer; 0 in the first one
        :param scalars: the values of `scalar_inits` before it
        """
        del iteration, scalars
        return {"lr": rate}

    def update(self, grad: Any, var: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> None:
        """Emit the op which updates ``var`` by its dense ``grad``; the values of ``hyper`` have its dtype."""
        raise NotImplementedError

    def average(self, value: Any, slots: dict[str, Any]) -> Any:
        """Return the average of a parameter that evaluation has in its place, of a rule that `keeps_averages`.

        :param value: tensor, of the parameter
        :param slots: of this parameter
        """
        raise NotImplementedError

    def fused(self, hyper: dict[str, Any]) -> Optional[UpdateRule]:
        """Return the rule of the native op for the same update; None: there is none.

        :param hyper: of float32
        """
        del hyper
        return None

    def fused_for(self, shape: tuple[int, ...]) -> bool:
        """Return whether the rule of `fused` is one for a parameter of this shape."""
        return True

    def build(self, variables: dict[str, Any], scope: str) -> None:
        """Create the state.

        :param variables: parameter name -> variable, all parameters which this optimizer updates
        :param scope: prefix of the names of the shared state, e.g. ``optimizer_0``
        """
        self._iterations = tf.Variable(0, dtype="int64", trainable=False, name="iterations")
        self._scope = scope
        self._scalars = {
            key: tf.Variable(value, dtype="float64", trainable=False, name=key)
            for key, value in self.scalar_inits().items()
        }
        self._slots: dict[str, dict[str, Any]] = {
            param: {
                name: tf.Variable(_initial(slot, var.dtype), trainable=False, name=name)
                for name, slot in self.slots_of(tuple(var.shape)).items()
            }
            for param, var in variables.items()
        }
        self._shapes = {param: tuple(var.shape) for param, var in variables.items()}

    def state(self) -> dict[str, Any]:
        """Return all variables needed for an exact resume, by their names in a checkpoint."""
        result = {"%s/iterations" % self._scope: self._iterations}
        result.update({"%s/%s" % (self._scope, key): var for key, var in self._scalars.items()})
        for param, slots in self._slots.items():
            result.update({"%s/%s_%s" % (param, self.name, slot): var for slot, var in slots.items()})
        return result

    def averages(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return the averages that evaluation has in place of parameters, by name; none if the rule keeps none.

        :param variables: parameter name -> variable, at least those of this optimizer
        """
        if not self.keeps_averages:
            return {}
        return {param: self.average(variables[param].read_value(), slots) for param, slots in self._slots.items()}

    def state_of_tf1(self, stored: Mapping[str, NDArray[Any]], step: int) -> dict[str, NDArray[Any]]:
        """Return the state that TensorFlow 1's optimizer of this rule has stored, by our names; empty if it lacks any.

        :param stored: values of a checkpoint by name; that of a slot ends in ``<parameter>/<tf1_slots>``
        :param step: number of updates
        """
        result: dict[str, NDArray[Any]] = {"%s/iterations" % self._scope: np.asarray(step, "int64")}
        for param, slots in self._slots.items():
            for slot in slots:
                end = "/%s/%s" % (param, self.tf1_slots.get(slot))
                found = [name for name in stored if ("/" + name).endswith(end)]
                if not found:
                    return {}
                result["%s/%s_%s" % (param, self.name, slot)] = stored[min(found, key=len)]
        return result if any(self._slots.values()) else {}

    def reset(self) -> None:
        """Give the state its initial values."""
        self._iterations.assign(0)
        for key, value in self.scalar_inits().items():
            self._scalars[key].assign(value)
        for param, slots in self._slots.items():
            for name, slot in self.slots_of(self._shapes[param]).items():
                slots[name].assign(_initial(slot, slots[name].dtype))

    def apply(
        self, grads: Sequence[tuple[str, Any, Any]], learning_rate: Any, when: Any = True, factor: Any = None
    ) -> None:
        """Update all parameters once; called while a ``tf.function`` is traced.

        A native op asks by itself whether to: its graph is much smaller than that of a condition around it, through
        which each variable and each gradient is passed.

        :param grads: (parameter name, dense gradient, variable)
        :param learning_rate: scalar tensor, before ``learning_rate_multiplier``
        :param when: True, or a bool scalar: whether to update; else all variables keep their values
        :param factor: scalar by which all gradients are multiplied first, of their dtype; None: 1
        """
        rate = tf.cast(learning_rate, "float64") * self.learning_rate_multiplier
        before = {key: var.read_value() for key, var in self._scalars.items()}
        hyper = self.hyper(rate, tf.cast(self._iterations, "float64"), before)
        after = {key: hyper.pop(key) for key in before}
        by_dtype: dict[Any, dict[str, Any]] = {}
        for _, _, var in grads:
            if var.dtype not in by_dtype:
                by_dtype[var.dtype] = {key: tf.cast(value, var.dtype) for key, value in hyper.items()}
        done = self._apply_fused([entry for entry in grads if entry[2].dtype == tf.float32], by_dtype, when, factor)
        left = [entry for entry in grads if entry[0] not in done]
        if factor is not None:
            left = [(param, grad * factor, var) for param, grad, var in left]

        def one_by_one() -> Any:
            for param, grad, var in left:
                self.update(tf.cast(grad, var.dtype), var, self._slots[param], by_dtype[var.dtype])
            return tf.constant(True)

        if when is True:
            one_by_one()
        elif left:
            tf.cond(when, one_by_one, lambda: tf.constant(False))
        for key, value in after.items():
            self._scalars[key].assign(tf.where(when, value, before[key]))
        self._iterations.assign_add(tf.cast(when, "int64"))

    def _apply_fused(
        self, grads: Sequence[tuple[str, Any, Any]], by_dtype: dict[Any, dict[str, Any]], when: Any, factor: Any
    ) -> set[str]:
        """Emit one op for all parameters if a native one can update them; return their names, or no names."""
        grads = [entry for entry in grads if self.fused_for(tuple(entry[2].shape))]
        size = sum(var.shape.num_elements() for _, _, var in grads)
        if not grads or size < LEAST_SIZE or type(self).update is not type(self).fused_replaces:
            return set()
        rule = self.fused(by_dtype[tf.float32])
        ops = update_ops_for(rule, size) if rule is not None else None
        if ops is None or rule is None:
            return set()
        variables, slots = [var for _, _, var in grads], [list(self._slots[param].values()) for param, _, _ in grads]
        values = [tf.cast(grad, tf.float32) for _, grad, _ in grads]
        native_update(ops, rule, variables, slots, values, when, 1.0 if factor is None else factor)
        return {param for param, _, _ in grads}


def decay_rate(value: Any) -> Optional[str]:
    """Check that a number can be the decay of a running mean."""
    return None if 0 <= value < 1 else "must be from 0 to below 1"


def _initial(slot: Slot, dtype: Any) -> Any:
    return tf.fill(slot.shape, tf.cast(slot.initial, dtype))


def like(var: Any, *values: float) -> list[Any]:
    """Return Python numbers as scalars of the dtype of ``var``, for the fused kernels."""
    return [tf.constant(value, dtype=var.dtype) for value in values]


def adam_arguments(
    optimizer: Any, grad: Any, var: Any, slots: Mapping[str, Any], hyper: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what all kernels of Adam and its relatives take.

    :param optimizer: has ``beta1``, ``beta2`` and ``epsilon``; ``slots`` has m and v
    """
    beta1, beta2, epsilon = like(var, optimizer.beta1, optimizer.beta2, optimizer.epsilon)
    return {
        "var": var.handle,
        "m": slots["m"].handle,
        "v": slots["v"].handle,
        "beta1_power": hyper["beta1_power"],
        "lr": hyper["lr"],
        "beta1": beta1,
        "beta2": beta2,
        "epsilon": epsilon,
        "grad": grad,
        "use_locking": optimizer.use_locking,
    }
