"""States that layers keep from call to call, in exported graphs.

Layers read and write them by the protocol of `returnn_tf.network.kept_states.KeptStates`: ``value(spec, sizes)`` and
``assign(spec, value)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from returnn_tf.graph.after_step.kept_state import KeptSpec
from returnn_tf.util.lazy_tf import tf


class ZeroStates:
    """All states are zero before each call, and nothing is kept after it."""

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
