"""The history of a layer in a loop: it grows by a frame per step, and can skip steps that a mask excludes.

Under masks (see `masked_computation`) the array still grows in every step, so that its shape does not depend on values;
the selected frames of each sequence come first, and their number is a separate state.
"""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.config.errors import DimError
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.layers.attention.relative_positional_encoding import TABLE, RelativePositionalEncodingLayer
from returnn_tf.ops.frames.shape import to_layout
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf

_COUNT = "picked"


def mask_history(node: Node, mask: Node) -> None:
    """Restrict the history of a planned layer to steps in which the mask is true.

    :raises ConfigError: the mask differs by sequence, but the history does not
    """
    if node.kept:
        raise DimError(
            "layer %r keeps its history from batch to batch, which is not possible for the steps that a mask selects. "
            "Remove its initial_state." % node.path
        )
    batch = _batch(node)
    if batch is None and any(dim.is_batch for dim in mask.output.dims):
        raise DimError(
            "layer %r has the same history in all sequences, but the mask %r differs by sequence. Give it a source "
            "with a batch axis." % (node.path, mask.path)
        )
    node.history_masks.append(mask)
    node.depend(mask)
    data = Data(() if batch is None else (batch,), "int32")
    node.loop_states[_COUNT] = data, lambda emit: tf.zeros(_stacked(emit.shape(data)), "int32")


def picked_before(ctx: EmitContext) -> Optional[Any]:
    """Return the number of frames in the history before this step, int32 [batch] or scalar; None: one per step."""
    return ctx.loop_state(_COUNT) if ctx.node.history_masks else None


def count_step(ctx: EmitContext) -> None:
    """Count the frame of this step; to be called once per step."""
    data = ctx.node.loop_states[_COUNT][0] if ctx.node.history_masks else None
    if data is not None:
        picked = [to_layout(ctx.value(mask), mask.output, data) for mask in ctx.node.history_masks]
        ctx.set_loop_state(_COUNT, ctx.loop_state(_COUNT) + tf.cast(tf.reduce_all(tf.stack(picked), axis=0), "int32"))


def extended(ctx: EmitContext, key: str, x: Any, axis: int) -> Any:
    """Append the frame of this step to the history, and carry it to the next step.

    :param key: of the state
    :param x: without the axis of the history; a batch axis is the first
    :param axis: the axis of the history
    """
    old = ctx.loop_state(key)
    x = tf.expand_dims(x, axis)
    count = picked_before(ctx)
    if count is None:
        new = tf.concat([old, x], axis=axis)
    else:
        rank = old.shape.rank
        grown = tf.pad(old, [[0, 1 if i == axis % rank else 0] for i in range(rank)])
        place = tf.equal(tf.range(tf.shape(grown)[axis]), tf.expand_dims(count, -1))  # [batch, history]
        size = tf.shape(place)
        shape = [size[-1] if i == axis % rank else size[0] if i == 0 else 1 for i in range(rank)]
        # An unselected frame is overwritten by the next one, and no length counts it.
        new = tf.where(tf.reshape(place, tf.stack(shape)), x, grown)
    ctx.set_loop_state(key, new)
    return new


def history_mask(ctx: EmitContext, size: Any) -> Optional[Any]:
    """Return the mask of the valid frames of the history in this step, bool [batch, size] or [size]; None: all."""
    count = picked_before(ctx)
    return None if count is None else tf.sequence_mask(count + 1, size)


def shift_of_picked(ctx: EmitContext, shift_layer: Node, q: Any, before: Any, keys: Any) -> Any:
    """Compute the energies of the key shift in a masked step, by distances between selected frames.

    :param shift_layer: a `relative_positional_encoding`
    :param q: [batch, ..., 1, head, key]
    :param before: number of picked frames before this step, int32 [batch] or scalar
    """
    table = ctx.aux(shift_layer, TABLE)
    if table is None:
        raise DimError("key_shift must be a relative_positional_encoding if a mask picks the steps.")
    assert isinstance(shift_layer.layer, RelativePositionalEncodingLayer)
    clipping = shift_layer.layer.clipping
    distance = tf.clip_by_value(tf.range(keys) - tf.expand_dims(before, -1), -clipping, clipping) + clipping
    shift = tf.gather(table, distance)  # [batch, keys, key]
    if shift.shape.rank == 2:
        return tf.einsum("...thd,sd->...hts", q, shift)
    for _ in range(q.shape.rank - 4):  # axes between batch and queries
        shift = tf.expand_dims(shift, 1)
    return tf.einsum("...thd,...sd->...hts", q, shift)


def _batch(node: Node) -> Optional[Dim]:
    return next((dim for data, _ in node.loop_states.values() for dim in data.dims if dim.is_batch), None)


def _stacked(sizes: list[Any]) -> Any:
    return tf.stack(sizes) if sizes else []
