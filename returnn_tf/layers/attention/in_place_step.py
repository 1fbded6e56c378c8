"""`self_attention` in a step of a search by the native op, which neither copies nor reorders keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.loops.hypotheses import InPlace, empty_in_place
from returnn_tf.native.decoding.search import native_beam_attention, search_ops


def stays_in_place(ctx: EmitContext, layer: Any) -> bool:
    """Return whether the keys and values of a layer are an `InPlace` state in the loop that begins here.

    :param layer: the `SelfAttentionLayer`
    """
    return (
        ctx.lowering.in_place
        and (layer.key_shift is None or layer.key_shift.output.batch_axis is None)
        and not ctx.node.kept
        and not ctx.node.history_masks
        and [dim.is_batch for dim in ctx.output.dims] == [True, False]
        and ctx.float_dtype == "float32"
        and ctx.product_dtype is None
        and search_ops() is not None
    )


def first_in_place(ctx: EmitContext, heads: int, key: int, value: int, *, keys: bool) -> InPlace:
    """Return the state of a layer before the first step: that of the keys has the values too.

    :param key: size of the keys of a head; ``value`` likewise
    """
    if not keys:
        return InPlace((), ())
    return empty_in_place([heads * key, heads * value], ctx.size(ctx.output.dims[0]))


def attended_in_place(ctx: EmitContext, qkv: Any, layer: Any, names: Sequence[str]) -> Any:
    """Return the output of a step, and carry its keys and values on.

    :param qkv: [batch * beam, heads * (2 * key + value)]
    :param layer: the `SelfAttentionLayer`
    :param names: of the states of keys and values
    """
    (keys, values), (rows,) = ctx.loop_state(names[0])
    shift = None if layer.key_shift is None else ctx.value(layer.key_shift)
    y, keys, values, rows = native_beam_attention(
        search_ops(), qkv, keys, values, rows, heads=layer.num_heads, shift=shift
    )
    ctx.set_loop_state(names[0], InPlace((keys, values), (rows,)))
    ctx.set_loop_state(names[1], ctx.loop_state(names[1]))
    y.set_shape(ctx.output.static_shape)
    return y
