"""States that layers keep from call to call, in exported graphs.

Layers read and write them by the protocol of `returnn_tf.compiler.kept_states.KeptStates`: ``value(spec, sizes)`` and
``assign(spec, value)``. Where ``continues`` is true, every recurrence over frames goes on from call to call, by
``before(spec, first)`` and ``after(spec, last)``, see `EmitContext.state_before`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from returnn_tf.config import ConfigError
from returnn_tf.graph.after_step.kept_state import KeptSpec
from returnn_tf.util.lazy_tf import tf


class ZeroStates:
    """All states are zero before each call, and nothing is kept after it."""

    continues = False

    def value(self, spec: KeptSpec, sizes: Sequence[Any]) -> Any:
        """Emit zeros.

        :param sizes: of the axes; an axis that grows begins with 0
        """
        batch = spec.data.batch_axis
        start = [
            size if static is not None or axis == batch else 0
            for axis, (size, static) in enumerate(zip(sizes, spec.variable_shape))
        ]
        value = tf.zeros(start, spec.data.dtype)
        value.set_shape(spec.variable_shape)
        return value

    def assign(self, spec: KeptSpec, value: Any) -> None:
        """Keep nothing."""


class FedStates(ZeroStates):
    """States are inputs and outputs of the graph, one emission each.

    Zeros (false, empty where an axis grows) stand for the state before the first frame of a sequence, whatever that is:
    where it is not zero, its difference from the state is what goes in and out.

    :param given: tensors by name of the state; None: only find out which states there are
    """

    continues = True

    def __init__(self, given: Optional[Mapping[str, Any]] = None) -> None:
        self._given = given
        self._firsts: dict[str, Any] = {}
        #: The states that the graph has read, by name.
        self.specs: dict[str, KeptSpec] = {}
        #: The tensors to feed next, by name.
        self.next: dict[str, Any] = {}

    def value(self, spec: KeptSpec, sizes: Sequence[Any]) -> Any:
        """Return the state as fed, see `ZeroStates.value`."""
        self.specs[spec.name] = spec
        return super().value(spec, sizes) if self._given is None else self._given[spec.name]

    def assign(self, spec: KeptSpec, value: Any) -> None:
        """Make the value an output."""
        self.next[spec.name] = value

    def before(self, spec: KeptSpec, first: Any) -> Any:
        """Return the state before the first frame of this call.

        :param first: that before the first frame of a sequence
        """
        if spec.name in self.specs:
            raise ConfigError("Export with state: two states are called %r. Rename a layer." % spec.name)
        self.specs[spec.name] = spec
        self._firsts[spec.name] = first = tf.convert_to_tensor(first)
        if self._given is None:
            return first
        fed = self._given[spec.name]
        if _is_zero(first):
            return fed
        return tf.not_equal(fed, first) if first.dtype.is_bool else fed + first

    def after(self, spec: KeptSpec, last: Any) -> None:
        """Make a state an output, see `before`."""
        first = self._firsts[spec.name]
        if not _is_zero(first):
            last = tf.not_equal(last, first) if first.dtype.is_bool else last - first
        self.next[spec.name] = last


def _is_zero(value: Any) -> bool:
    """Return whether a tensor is known to be zero (false) while the graph is made."""
    while value.op.type in ("BroadcastTo", "Identity", "Reshape", "Tile", "Cast", "ZerosLike", "Fill"):
        if value.op.type == "ZerosLike":
            return True
        value = value.op.inputs[1 if value.op.type == "Fill" else 0]
    constant = tf.get_static_value(value)
    return constant is not None and not constant.any()
