"""States that go in and out of an exported graph: whoever runs it holds them from call to call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.config import ConfigError
from returnn_tf.graph.carried_state import CarriedState, KeptSpec
from returnn_tf.util.lazy_tf import tf


class FedStates(CarriedState):
    """States are inputs and outputs of the graph, one emission each.

    Zeros (false, empty where an axis grows) stand for the state before the first frame of a sequence, whatever that is:
    where it is not zero, its difference from the state is what goes in and out.

    :param given: tensors by name of the state; None: only find out which states there are
    """

    resumes = True

    def __init__(self, given: Optional[Mapping[str, Any]] = None) -> None:
        self._given = given
        self._firsts: dict[str, Any] = {}
        #: The states that the graph has read, by name.
        self.specs: dict[str, KeptSpec] = {}
        #: The tensors to feed next, by name.
        self.next: dict[str, Any] = {}

    def read(self, spec: KeptSpec, first: Any) -> Any:
        """Return the state as fed.

        :raises ConfigError: another state has this name
        """
        if self.specs.setdefault(spec.name, spec) is not spec:
            raise ConfigError("Export with state: two states are called %r. Rename a layer." % spec.name)
        self._firsts[spec.name] = first = tf.convert_to_tensor(first)
        if self._given is None:
            return first
        fed = self._given[spec.name]
        if _is_zero(first):
            return fed
        return tf.not_equal(fed, first) if first.dtype.is_bool else fed + first

    def write(self, spec: KeptSpec, value: Any) -> None:
        """Make a state an output."""
        first = self._firsts.get(spec.name)
        if first is not None and not _is_zero(first):
            value = tf.not_equal(value, first) if first.dtype.is_bool else value - first
        self.next[spec.name] = value


def _is_zero(value: Any) -> bool:
    """Return whether a tensor is known to be zero (false) while the graph is made."""
    while value.op.type in ("BroadcastTo", "Identity", "Reshape", "Tile", "Cast", "ZerosLike", "Fill"):
        if value.op.type == "ZerosLike":
            return True
        value = value.op.inputs[1 if value.op.type == "Fill" else 0]
    constant = tf.get_static_value(value)
    return constant is not None and not constant.any()
