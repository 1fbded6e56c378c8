"""The values of a loss at each position of the sequences, before they are summed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from returnn_tf.compiler.lower import Lowered
from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import ConfigError, SettingError, did_you_mean
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.loss import LossContext, LossNode, batch_major, frame_axis

#: Fields of a position: name -> whether it is the error of the loss instead of its value.
KINDS = {"pos_score": False, "pos_error": True}

#: Name of the number of positions of each sequence, beside these.
LENGTHS = "num_positions"


class LossPositions:
    """Emits the value or the error of a loss for each position.

    :param loss: name of the loss, i.e. its layer
    :param kinds: which of `KINDS` are wanted
    :raises ConfigError: there is no such loss, or it has no positions
    """

    def __init__(self, net: Network, loss: str, kinds: Collection[str]) -> None:
        self._kinds = list(kinds)
        if not self._kinds:
            return
        known = {node.name: node for node in net.plan.losses}
        if loss not in known:
            raise unknown_loss(loss, known)
        self._node: LossNode = known[loss]
        self._template = self._node.loss.unreduced_template(self._node.owner.output, net.plan.semantics.float_dtype)
        if frame_axis(self._template) is None or self._template.batch_axis is None:
            raise self._error("has a single value per sequence, none at a position")

    def _error(self, text: str) -> ConfigError:
        kind = self._node.loss.class_name
        return SettingError(
            "output_per_seq_format: the loss %r of layer %r %s. Leave %s out."
            % (kind, self._node.name, text, " and ".join(self._kinds))
        )

    def emit(self, graph: Lowered) -> dict[str, Any]:
        """Return the wanted tensors [batch, time, ...] and the lengths [batch], by name; {} if none is wanted.

        :raises ConfigError: the loss has no error
        """
        if not self._kinds:
            return {}
        loss, owner = self._node.loss, self._node.owner
        ctx = LossContext(self._node, EmitContext(owner, graph.lowering))
        if any(KINDS[kind] for kind in self._kinds) and loss.error(ctx) is None:
            raise self._error("has no error")
        found = {kind: batch_major(loss.unreduced(ctx, error=KINDS[kind]), self._template)[0] for kind in self._kinds}
        return {**found, LENGTHS: ctx.lens(self._template)}


def unknown_loss(name: str, known: Collection[str]) -> ConfigError:
    """Return the error for a ``loss_name`` that no loss has."""
    return SettingError("loss_name: there is no loss %r. %s" % (name, did_you_mean(name, known)))
