"""Losses of layers in the branches of `cond`: that of the branch which is computed counts, the other one is 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config import ConfigError
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.graph.loss import Loss, LossContext, LossNode
from returnn_tf.graph.lowering import Lowering
from returnn_tf.util.lazy_tf import tf

_PARTS = ("value", "error", "count")


class BranchLoss(Loss):
    """The loss of a layer that one branch has, or both have under the same name. `cond` emits its values.

    :param name: as reported
    :param branches: the loss in the true and in the false branch
    :raises ConfigError: both have one, but with options that make them different numbers in reports
    """

    needs_target = False

    def __init__(self, name: str, branches: Sequence[Optional[LossNode]]) -> None:
        super().__init__()
        given = [node for node in branches if node is not None]
        for what in ("scale", "use_normalized_loss"):
            values = {getattr(node if what == "scale" else node.loss, what) for node in given}
            if len(values) > 1:
                raise ConfigError(
                    "both branches have a loss %r, but %s differs. Give both the same, or the layers other names."
                    % (name, "its weight (loss_scale)" if what == "scale" else what)
                )
        self.name = name
        self.class_name = given[0].loss.class_name  # type: ignore[misc]
        self.branches = tuple(branches)
        self.use_normalized_loss = given[0].loss.use_normalized_loss
        #: What the losses need, for the plan.
        needs = [n for node in given for n in (node.target, node.seq_tags, *_nodes_of(node.loss))]
        self.needs = tuple(node for node in needs if isinstance(node, Node))

    @property
    def loss_scale(self) -> float:
        """Return the weight in the objective."""
        return next(node.scale for node in self.branches if node is not None)

    def seal(self, place: str) -> None:
        """Forbid all further changes."""
        for node in self.branches:
            if node is not None:
                node.loss.seal("The loss %r of layer %r" % (node.loss.class_name, node.name))
        super().seal(place)

    def emit_branch(self, lowering: Lowering, index: int, found: set[tuple[str, str]]) -> list[Any]:
        """Emit value, error and count of a branch; 0 for what it does not have.

        :param lowering: the values of the branch
        :param found: gets (name, part) of those that it has
        """
        node, float_dtype = self.branches[index], lowering.semantics.float_dtype
        if node is None:
            return [tf.zeros([], float_dtype)] * len(_PARTS)
        ctx = LossContext(node, EmitContext(node.owner, lowering))
        parts = {"count": node.loss.count(ctx), "value": node.loss.value(ctx), "error": node.loss.error(ctx)}
        found.update((self.name, part) for part, value in parts.items() if value is not None)
        return [tf.cast(0.0 if parts[part] is None else parts[part], float_dtype) for part in _PARTS]

    def set_values(self, ctx: EmitContext, values: Sequence[Any], found: set[tuple[str, str]]) -> None:
        """Keep what came out of the branches.

        :param ctx: of the `cond`
        """
        for part, value in zip(_PARTS, values):
            if (self.name, part) in found:
                ctx.set_sub_output(self._key(part), value)

    def _key(self, part: str) -> str:
        return "%s of the loss %s" % (part, self.name)

    def _get(self, ctx: LossContext, part: str) -> Optional[Any]:
        return ctx.lowering.sub_values.get((ctx.node, self._key(part)))

    def value(self, ctx: LossContext) -> Optional[Any]:
        """Return the loss of the branch that was computed."""
        return self._get(ctx, "value")

    def error(self, ctx: LossContext) -> Optional[Any]:
        """Return the error of the branch that was computed."""
        return self._get(ctx, "error")

    def count(self, ctx: LossContext) -> Any:
        """Return the number of frames in the branch that was computed; 0 if it has no such loss."""
        return self._get(ctx, "count")


def _nodes_of(loss: Loss) -> list[Any]:
    found: list[Any] = []
    for value in vars(loss).values():
        found += value if isinstance(value, (list, tuple)) else [value]
    return found


def branch_losses(owner: Node, results: Sequence[Node], losses: Sequence[Sequence[LossNode]]) -> list[LossNode]:
    """Return the losses of a `cond` as losses on it.

    :param owner: its node
    :param results: the layer of each branch
    :param losses: those of the layers in each branch
    :raises ConfigError: losses of both branches that have the same name don't fit
    """
    names: dict[str, list[Optional[LossNode]]] = {}
    for index, (result, of_branch) in enumerate(zip(results, losses)):
        for node in of_branch:
            name = owner.path + node.name[len(result.path) :]
            names.setdefault(name, [None] * len(results))[index] = node
    found = []
    for name, branches in names.items():
        loss = BranchLoss(name, branches)
        found.append(LossNode(name, loss, None, owner, loss.loss_scale))
    return found
