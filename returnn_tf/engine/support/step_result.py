"""Result of a step, packed so that a single copy from device to host suffices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Optional

from returnn_tf.compiler.lower import Lowered
from returnn_tf.util.lazy_tf import tf

_KINDS = ("losses", "errors", "counts")
_FLAGS = ("finite", "spike", "updated", "own", "own_finite")
_FLAG_SUMS = "flag_sums"


@dataclass
class StepResult:
    """Numbers of one batch, summed over it unless noted otherwise."""

    total_loss: float  # the objective before the update
    losses: dict[str, float] = field(default_factory=dict)  # by loss name, unscaled sums
    errors: dict[str, float] = field(default_factory=dict)  # by loss name, sums
    counts: dict[str, float] = field(default_factory=dict)  # by loss name: frames or sequences to divide by
    grad_norm: Optional[float] = None  # L2 norm of the raw gradient; None without training
    learning_rate: Optional[float] = None  # what the optimizer got, before its multiplier
    step: Optional[int] = None  # global step of this update, from 0
    finite: bool = True  # False: loss or gradient was NaN or Inf and this step changed no parameter
    spike: bool = False  # the loss was far above those of earlier steps, see ``loss_spike``
    updated: bool = True  # False: this step changed no parameter
    own: bool = True  # False: this rank had no batch and computed with weight zero
    own_finite: bool = True  # whether loss and gradient of this rank were finite
    communication: float = 0.0  # seconds in which this rank waited for others or sent data
    sinks: dict[str, Any] = field(default_factory=dict)  # path -> tensors that the layer passes on after the step
    positions: dict[str, Any] = field(default_factory=dict)  # see `LossPositions`
    flag_sums: list[float] = field(default_factory=list)  # over all ranks, see `returnn_tf.engine.distributed.control`


class Packer:
    """Packs named scalars of a traced function into one float64 vector and unpacks it outside."""

    def __init__(self) -> None:
        self._layout: list[tuple[str, str]] = []

    def pack(self, graph: Lowered, scalars: dict[str, Any]) -> Any:
        """Return the vector; called while tracing.

        :param scalars: further scalar tensors by name of a `StepResult` field
        """
        named: dict[tuple[str, str], Any] = {("", name): value for name, value in scalars.items()}
        for kind, values in zip(_KINDS, (graph.losses, graph.errors, graph.counts)):
            named.update({(kind, name): value for name, value in values.items()})
        self._layout = list(named)
        return tf.stack([tf.cast(value, "float64") for value in named.values()])

    def unpack(self, vector: Any, sinks: Mapping[str, Any] = MappingProxyType({})) -> StepResult:
        """Return the result for the values of the vector, float64 [n]."""
        fields: dict[str, Any] = {**{kind: {} for kind in _KINDS}, "sinks": dict(sinks)}
        for (kind, name), value in zip(self._layout, vector.tolist()):
            if kind:
                fields[kind][name] = value
            elif name.startswith(_FLAG_SUMS):
                fields.setdefault(_FLAG_SUMS, []).append(value)
            else:
                fields[name] = value
        if "step" in fields:
            fields["step"] = int(fields["step"])
        for flag in _FLAGS:
            if flag in fields:
                fields[flag] = bool(fields[flag])
        return StepResult(**fields)
