"""The product of all frames with one matrix, for queries, keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.loop_axis import with_frames
from returnn_tf.loops.packed import product_with_packed
from returnn_tf.native.product import product_of_frames
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.ops.mixed_precision import full, reduced
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


def projected(ctx: EmitContext, layer: ConcatInputLayer, frames: Data, perm: Sequence[int], param: str) -> Any:
    """Return the product with a parameter [in, out], for all frames that are not padding if the source has packed ones.

    :param frames: template of the input, in a loop with the axis of the steps
    :param perm: the order of its axes, with the features last
    :param param: its name
    """
    packing = None
    if frames is layer.input and list(perm) == [0, 1, 2] and not layer.dropout and len(layer.sources) == 1:
        packing = ctx.lowering.packing_of(layer.source)
    if packing is not None:
        packed = ctx.lowering.packed_value(layer.source, packing)
        return packing.unpack(_product(ctx, packed, ctx.param(param)))
    x = transpose(with_frames(ctx, layer.emit_input(ctx), layer.input, frames), perm)
    y = product_with_packed(ctx, param, x)
    if y is not None:
        return y
    low = ctx.product_dtype
    return full(_product(ctx, reduced(x, low), reduced(ctx.param(param), low)), low)


def _product(ctx: EmitContext, x: Any, weights: Any) -> Any:
    y = product_of_frames(x, weights) if ctx.train else None
    return tf.tensordot(x, weights, [[-1], [0]]) if y is None else y
