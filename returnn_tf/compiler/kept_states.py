"""The states that layers keep from batch to batch: their variables, and the start of a pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from returnn_tf.config.errors import DimDataError, DimError
from returnn_tf.graph.carried_state import CarriedState, KeptSpec
from returnn_tf.tensor import Dim
from returnn_tf.util.lazy_tf import tf

_PREFIX = "kept/"


class KeptStates(CarriedState):
    """The variables of all kept states of a network.

    They are no parameters: not trained. A checkpoint has them in the state beside the parameters, since within an epoch
    an exact resume needs them, and again among the parameters, where RETURNN has them.

    :param specs: by name
    """

    def __init__(self, specs: Mapping[str, KeptSpec]) -> None:
        self.specs = specs
        self.variables: dict[str, Any] = {}
        self._flags: dict[str, Any] = {}
        for name, spec in specs.items():
            if spec.fed:
                continue
            shape = tf.TensorShape(spec.shape)
            first = tf.zeros(spec.first_shape, spec.data.dtype)
            self.variables[name] = tf.Variable(first, shape=shape, trainable=False, name="kept")
        if specs:
            # fresh: nothing was kept in this pass; unset: nothing ever was; idle: the batch is not of this process
            starts = {"fresh": True, "unset": True, "idle": False}
            self._flags = {name: tf.Variable(value, trainable=False, name=name) for name, value in starts.items()}

    @property
    def params(self) -> dict[str, Any]:
        """Return the variables that are listed among the parameters."""
        return {name: self.variables[name] for name in self.param_specs}

    @property
    def param_specs(self) -> dict[str, KeptSpec]:
        """Return the states that are listed among the parameters."""
        return {name: self.specs[name] for name in self.variables if self.specs[name].is_param}

    def begin_pass(self) -> None:
        """Begin an epoch, or a pass over another dataset: states other than those of "no_init" become zero."""
        if self.specs:
            self._flags["fresh"].assign(True)

    @contextlib.contextmanager
    def another_pass(self) -> Iterator[None]:
        """Run a pass over another dataset in between: afterwards everything is as before."""
        before = self.values()
        self.begin_pass()
        try:
            yield
        finally:
            self.restore(before)

    # --- for checkpoints ---

    def values(self) -> dict[str, Any]:
        """Return all states, and whether they are valid, as arrays by name."""
        found = {name: var.numpy() for name, var in self.variables.items()}
        found.update({name: self._flags[name].numpy() for name in ("fresh", "unset") if self.specs})
        return {_PREFIX + name: value for name, value in found.items()}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Set what `values` returned; without them all states start over."""
        if not self.specs:
            return
        known = all(_PREFIX + name in values for name in (*self.variables, "fresh", "unset"))
        for name in ("fresh", "unset"):
            self._flags[name].assign(bool(values[_PREFIX + name]) if known else True)
        for name, var in self.variables.items():
            var.assign(values[_PREFIX + name] if known else tf.zeros(self.specs[name].first_shape, var.dtype))

    def restore_params(self, values: Mapping[str, Any]) -> None:
        """Set the states that are among the parameters of a checkpoint, and let all others start over.

        A pass over a dataset begins with them, as RETURNN has no other checkpoints. Of a history, all frames are valid.
        """
        self.restore({})
        sizes: dict[Dim, int] = {}
        for name, var in self.params.items():
            if name in values and var.shape.is_compatible_with(np.shape(values[name])):
                var.assign(np.asarray(values[name], var.dtype.as_numpy_dtype))
                sizes.update(zip(self.specs[name].data.dims, np.shape(values[name])))
                self._flags["unset"].assign(False)
        for name, var in self.variables.items():
            dims = self.specs[name].data.dims
            if var.dtype == tf.bool and all(dim in sizes for dim in dims):  # the mask of a history
                var.assign(np.ones([sizes[dim] for dim in dims], "bool"))

    # --- in a graph ---

    def read(self, spec: KeptSpec, first: Any) -> Any:
        """Emit a state before this batch: that in the variable, or the first one in a new pass.

        :raises ConfigError: another program is to feed it
        """
        if spec.fed:
            raise DimError(
                "Layer %r: initial_state 'placeholder' is for graphs that another program runs, which feeds the "
                "state: returnn-tf export --to meta. Here write 'zeros' or 'keep_over_epoch'." % spec.layer_path
            )
        var, flags = self.variables[spec.name], self._flags
        batch = spec.data.batch_axis

        def kept() -> Any:
            value = var.read_value()
            if batch is None:
                return value
            # One sequence before the first batch, and in a search every hypothesis of a sequence begins with its state.
            times = tf.shape(first)[batch] // tf.maximum(tf.shape(value)[batch], 1)
            return tf.repeat(value, times, axis=batch)

        restart = tf.logical_or(flags["idle"], flags["fresh"] if spec.resets else False)
        value = tf.stop_gradient(tf.cond(restart, lambda: first, kept))
        value.set_shape(spec.shape)
        return value

    def write(self, spec: KeptSpec, value: Any) -> None:
        """Emit that a state is kept in its variable."""
        self.variables[spec.name].assign(tf.stop_gradient(value))
        for name in ("fresh", "unset"):
            self._flags[name].assign(False)

    # --- before a step ---

    def set_idle(self, idle: bool) -> None:
        """Set whether the next batch is not one of this process, so that it must neither use nor change its states."""
        if self.specs and bool(self._flags["idle"].numpy()) != idle:
            self._flags["idle"].assign(idle)

    def check(self, num_seqs: int) -> None:
        """Check that a batch continues the sequences of the last one.

        :raises DataError: the number of sequences differs
        """
        if not self.specs or self._flags["unset"].numpy() or self._flags["idle"].numpy():
            return
        fresh = bool(self._flags["fresh"].numpy())
        for name, spec in self.specs.items():
            if spec.fed:
                continue
            axis = spec.data.batch_axis
            if axis is None or spec.data.dims[axis].expr is not None or (spec.resets and fresh):
                continue
            kept = int(tf.shape(self.variables[name])[axis])
            if kept != num_seqs:
                before = ", in a checkpoint those of the training" if fresh else ""
                raise DimDataError(
                    "Layer %r keeps its state from batch to batch, so every batch must continue the sequences of the "
                    "last one%s, but this one has %d and the last one had %d. Let all batches have the same number of "
                    "sequences, in the same order (max_seqs, chunking, a number of sequences that it divides), or set "
                    "its initial_state to 'zeros'." % (spec.layer_path, before, num_seqs, kept)
                )
