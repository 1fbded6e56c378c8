"""The option ``key_shift`` of `self_attention`: vectors added to the keys, for every query others."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.attention.history import picked_before, shift_of_picked
from returnn_tf.layers.attention.relative_positional_encoding import TABLE
from returnn_tf.ops.frames.positions import by_distance
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


def check_shift(ctx: PlanContext, shift: Data, key: int, rows: Data, *, in_step: bool) -> None:
    """Check for [time, time, key] or [batch, time, time, key]; in a step without the first time axis.

    :param shift: template of the vectors
    :param key: size of the keys of a head
    :param rows: template of the frames without features
    """
    rank = shift.rank - (0 if shift.batch_axis is None else 1)
    if rank != (2 if in_step else 3) or shift.dims[-1].size != key:
        raise ctx.error(
            "key_shift is %s, but it must be [%s, key=%d], like a relative_positional_encoding with n_out %d."
            % (shift, "time" if in_step else "time, time", key, key)
        )
    if shift.batch_axis not in (None, 0) or (shift.batch_axis == 0 and rows.rank != rank - 1):
        raise ctx.error("key_shift is %s; its batch axis must be the first, with no axes but those of time." % shift)


def shift_table(ctx: EmitContext, shift_layer: Node, queries: Dim) -> Optional[Any]:
    """Return the vectors by clipped distance, [2 clipping + 1, key]; None if they are not given so.

    :param shift_layer: gives the vectors
    :param queries: the dim of the frames that attend
    """
    return ctx.aux(shift_layer, TABLE) if shift_layer.output.dims[0] is queries else None


def shift_energy(ctx: EmitContext, shift_layer: Node, q: Any, keys: Any, table: Optional[Any], *, in_step: bool) -> Any:
    """Compute the energies of the key shift, [..., head, queries, keys].

    :param shift_layer: gives the vectors
    :param q: [..., queries, head, key]
    :param keys: their number
    :param table: see `shift_table`
    """
    if table is not None:
        layer: Any = shift_layer.layer
        return by_distance(tf.einsum("...thd,cd->...htc", q, table), keys, layer.clipping)
    before = picked_before(ctx) if in_step else None
    if before is not None:
        return shift_of_picked(ctx, shift_layer, q, before, keys)
    shift = ctx.value(shift_layer)
    if in_step:
        shift = tf.expand_dims(shift, -3)[..., :keys, :]
    if shift_layer.output.batch_axis is None:
        return tf.einsum("...thd,tsd->...hts", q, shift)
    return tf.einsum("bthd,btsd->bhts", q, shift)
