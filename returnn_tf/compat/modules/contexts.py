"""``from returnn.tf.util.data import BatchInfo, ControlFlowContext``: where the tensors of a front end are computed.

A template of ours knows both by its place in the network, so that these are notes of the front end to itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

from returnn_tf.compat.imports.stand_ins import register_compat

register_compat(__name__, "returnn.tensor.control_flow_ctx")

__all__ = ["BatchInfo", "ControlFlowContext"]


class BatchInfo:
    """The sequences of a batch, or the hypotheses of a search for them.

    :param base: the batch that this one has the hypotheses of
    :param beam: these hypotheses
    :param dim: the number of sequences, if it is known
    """

    def __init__(self, *, base: Optional[BatchInfo] = None, beam: Any = None, dim: Any = None, **others: Any) -> None:
        del others
        self.base = base
        self.beam = beam
        self.dim = dim

    @classmethod
    def make_global_batch_info(cls, batch_dim: Any = None) -> BatchInfo:
        """Return the batch of the data.

        :param batch_dim: the number of sequences
        """
        return cls(dim=batch_dim)

    @classmethod
    def make_global_broadcast_batch_info(cls) -> BatchInfo:
        """Return a batch of one entry, which stands for all sequences."""
        return cls(dim=1)

    @staticmethod
    def get_common_batch_info(batches: Iterable[Optional[BatchInfo]]) -> Optional[BatchInfo]:
        """Return the batch that all of them can be broadcast to: the one with the most hypotheses; None without any."""
        found = [batch for batch in batches if batch is not None]
        return max(found, key=lambda batch: len(batch._bases())) if found else None

    def copy_extend_with_beam(self, beam: Any) -> BatchInfo:
        """Return the batch of hypotheses for the sequences of this one."""
        return self if beam is None or beam is self.beam else BatchInfo(base=self, beam=beam, dim=self.dim)

    def copy_remove_beam(self) -> BatchInfo:
        """Return the batch of the sequences."""
        return self.get_global_base()

    def _bases(self) -> list[BatchInfo]:
        found, batch = [self], self.base
        while batch is not None:
            found.append(batch)
            batch = batch.base
        return found

    def get_global_base(self) -> BatchInfo:
        """Return the batch of the data."""
        return self._bases()[-1]

    def get_global_batch_dim(self) -> Any:
        """Return the number of sequences, if it is known."""
        return self.get_global_base().dim

    def is_global_batch(self) -> bool:
        """Return whether the entries are sequences of the data."""
        return self.base is None and not self.is_broadcast()

    def is_broadcast(self) -> bool:
        """Return whether one entry stands for all sequences."""
        return isinstance(self.dim, int) and self.dim == 1

    @property
    def static_dim(self) -> Optional[int]:
        """Return the number of sequences if it is a known number, else None."""
        return self.dim if isinstance(self.dim, int) and self.dim > 0 else None

    def short_repr(self) -> str:
        """Return a short text."""
        return "global" if self.base is None else "global&%s" % (self.beam,)

    def __repr__(self) -> str:
        return "BatchInfo{%s}" % self.short_repr()


class ControlFlowContext:
    """The loop or the branch that layers are in.

    :param kind: one of `Types`
    :param outer_ctx: that of the network around
    :param identifier: what tells it from others
    """

    class Types:
        """The kinds."""

        Loop = "loop"
        Cond = "cond"
        CondTrue = "cond-true"
        CondFalse = "cond-false"

    def __init__(self, kind: str, outer_ctx: Optional[ControlFlowContext] = None, identifier: Any = None) -> None:
        self.kind = kind
        self.outer_ctx = outer_ctx
        self.identifier = identifier
        #: Of a loop: the dim of its steps.
        self.loop_spatial_dim: Any = None

    def is_loop(self) -> bool:
        """Return whether it is a loop."""
        return self.kind == self.Types.Loop

    def is_cond(self) -> bool:
        """Return whether it is a branch."""
        return self.kind != self.Types.Loop

    @classmethod
    def abs_ctx_stack(cls, ctx: Optional[ControlFlowContext]) -> list[ControlFlowContext]:
        """Return this context after those around it, the outermost first."""
        found: list[ControlFlowContext] = []
        while ctx is not None:
            found.insert(0, ctx)
            ctx = ctx.outer_ctx
        return found

    @classmethod
    def abs_ctx_stack_with_root(cls, ctx: Optional[ControlFlowContext]) -> list[Optional[ControlFlowContext]]:
        """Return `abs_ctx_stack`, with None for the main network in front."""
        return [None, *cls.abs_ctx_stack(ctx)]

    @classmethod
    def is_parent_or_same(cls, parent: Optional[ControlFlowContext], child: Optional[ControlFlowContext]) -> bool:
        """Return whether one context is another one, or around it."""
        return parent in cls.abs_ctx_stack_with_root(child)

    @classmethod
    def collect_parent_dims(cls, ctx: Optional[ControlFlowContext]) -> list[Any]:
        """Return the dims of the steps of all loops."""
        return [each.loop_spatial_dim for each in cls.abs_ctx_stack(ctx) if each.loop_spatial_dim is not None]

    def __repr__(self) -> str:
        return "/".join(each.kind for each in self.abs_ctx_stack(self))
