"""The states that layers keep from run to run in a meta graph: variables, or placeholders and results."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.export.meta import names
from returnn_tf.export.meta.names import named, placeholder
from returnn_tf.export.meta.variables import variable
from returnn_tf.graph.carried_state import CarriedState, KeptSpec
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.util.lazy_tf import tf


class States(CarriedState):
    """The states of a plan, made in the current graph.

    Decoders cut and join states along the first axis, the sequences, and take the first other axis of unknown size as
    the history of an attention, which here precedes the features. They know of no mask: a state of histories itself
    tells which of its frames are padding, by NaN, which only blocks of different lengths make.
    """

    def __init__(self, plan: Plan) -> None:
        self._search = plan.search
        self._specs = {name: spec for name, spec in plan.kept.items() if not _is_mask(spec)}
        #: Those in variables, by name.
        self.variables: dict[str, Any] = {}
        self._values: dict[str, Any] = {}
        self._placeholders: list[Any] = []
        #: int64 scalar to feed: 0 in the first run of an epoch; None if no state asks for it.
        self.epoch_step: Optional[Any] = None
        #: The assignments of the last states.
        self.updates: list[Any] = []
        self._last: dict[str, Any] = {}
        self._masks: dict[str, Any] = {}
        if any(spec.resets for spec in self._specs.values()):
            self.epoch_step = placeholder(names.EPOCH_STEP, tf.int64, [])
        for name, spec in self._specs.items():
            self._make(name, spec)

    def _make(self, name: str, spec: KeptSpec) -> None:
        order = _order(spec)
        shape = tuple(spec.shape[axis] for axis in order)
        if spec.fed:
            value = placeholder(names.op_name(name), spec.data.dtype, shape)
            self._placeholders.append(value)
        else:
            first = tuple(spec.first_shape[axis] for axis in order)
            made = variable(name, lambda: tf.zeros(first, spec.data.dtype), shape, spec.data.dtype)
            tf.compat.v1.add_to_collection(names.STATE_VARS, made)
            self.variables[name] = made
            value = made.read_value()
        self._values[name] = transpose(value, [order.index(axis) for axis in range(len(order))])

    def fed(self) -> dict[str, dict[str, Any]]:
        """Return the tensors to feed beside the inputs: name -> dtype and shape, None for sizes that vary."""
        tensors = [*self._placeholders, *([] if self.epoch_step is None else [self.epoch_step])]
        return {x.name: {"shape": x.shape.as_list(), "dtype": x.dtype.name} for x in tensors}

    # --- while layers are emitted ---

    def read(self, spec: KeptSpec, first: Any) -> Any:
        """Emit a state before this run; in the first one of an epoch the first state, if it resets."""
        if _is_mask(spec):
            history = self._history_of(spec)
            value = self._values[history.name]
            axis = _grows(history)
            assert axis is not None
            others = [i for i in range(history.data.rank) if i not in (history.data.batch_axis, axis)]
            value = tf.logical_not(tf.reduce_any(tf.math.is_nan(value), axis=others))
        else:
            value = self._values[spec.name]
            if _grows(spec) is not None:
                value = tf.where(tf.math.is_nan(value), tf.zeros([], value.dtype), value)
        batch = spec.data.batch_axis
        if batch is None:
            return value
        # One sequence before the first run; in a search every hypothesis of a sequence begins with its state. Otherwise
        # a state of other sequences than those of the run is kept, so that the layer fails.
        times = tf.shape(first)[batch] // tf.maximum(tf.shape(value)[batch], 1)
        if not self._search:
            times = tf.where(tf.equal(tf.shape(value)[batch], 1), times, 1)
        value = tf.repeat(value, times, axis=batch)
        if spec.resets and not spec.fed:
            value = select(tf.equal(self.epoch_step, 0), first, value)
        value.set_shape(spec.shape)
        return value

    def write(self, spec: KeptSpec, value: Any) -> None:
        """Take a state, for `finish`."""
        if _is_mask(spec):
            self._masks[spec.layer_path] = value
        else:
            self._last[spec.name] = value

    # --- after all layers ---

    def take_last(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the last states and masks of the layers emitted so far, and forget them."""
        taken, (self._last, self._masks) = (self._last, self._masks), ({}, {})
        return taken

    def select(self, flag: Any, others: tuple[dict[str, Any], dict[str, Any]]) -> None:
        """Replace the last states by others if the flag is set.

        :param others: see `take_last`
        """
        for mine, theirs in zip((self._last, self._masks), others):
            for name, value in mine.items():
                mine[name] = select(flag, theirs[name], value)

    def finish(self) -> None:
        """Emit the assignments, or the results ``last_state_...`` where the state is fed."""
        for name, value in self._last.items():
            spec = self._specs[name]
            mask = self._masks.get(spec.layer_path)
            axis = _grows(spec)
            if mask is not None and axis is not None:
                shape = [1] * spec.data.rank
                size = tf.shape(mask)
                assert spec.data.batch_axis is not None
                dims: list[Any] = list(shape)
                dims[spec.data.batch_axis], dims[axis] = size[0], size[1]
                value = tf.where(tf.reshape(mask, tf.stack(dims)), value, tf.constant(float("nan"), value.dtype))
            value = transpose(value, _order(spec))
            if spec.fed:
                folder, _, last = names.op_name(name).rpartition("initial_state_placeholder_")
                named(value, "%slast_state_%s" % (folder, last))
                continue
            var = self.variables[name]
            with tf.name_scope(names.op_name(name) + "/"), tf.control_dependencies([self._values[name]]):
                self.updates.append(var.assign(value, name="assign_last", read_value=False))

    def _history_of(self, mask: KeptSpec) -> KeptSpec:
        return next(s for s in self._specs.values() if s.layer_path == mask.layer_path and _grows(s) is not None)


def select(flag: Any, first: Any, second: Any) -> Any:
    """Return one of two tensors, whose dynamic sizes may differ."""
    return tf.cond(flag, lambda: tf.identity(first), lambda: tf.identity(second))


def _is_mask(spec: KeptSpec) -> bool:
    return spec.data.dtype == "bool"


def _grows(spec: KeptSpec) -> Optional[int]:
    """Return the axis of the history, which grows from run to run; None for a state of fixed size."""
    return next(
        (i for i, size in enumerate(spec.shape) if size is None and i != spec.data.batch_axis),
        None,
    )


def _order(spec: KeptSpec) -> list[int]:
    """Return the axes of a state in the order of its variable."""
    order = list(range(spec.data.rank))
    if spec.data.batch_axis is not None:
        order.insert(0, order.pop(spec.data.batch_axis))
    axis = _grows(spec)
    if axis is not None and spec.data.rank > 3:
        order.remove(axis)
        order.insert(len(order) - 1, axis)
    return order
