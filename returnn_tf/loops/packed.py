"""Parameters as matrices: rounded ones, those that are packed before a search, and those of steps in training.

TensorFlow packs the matrix in each call, for each of its threads, which takes much of the time of a product with the
few rows of a search.
"""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.params.reuse import LayerAsParam
from returnn_tf.loops.over_steps import OVER_STEPS, StepMatrix, rows_over_steps
from returnn_tf.native.decoding.search import PackedMatrix, pack, search_ops
from returnn_tf.ops.product import Matrix
from returnn_tf.util.lazy_tf import tf

#: Smaller matrices stay in the cache in any order.
_LEAST_SIZE = 2**14


def pack_factors(ctx: EmitContext) -> None:
    """Pack the matrices of a layer; for a loop that searches, before its first step."""
    for name, transposed in ctx.node.layer.factors().items():
        provider = ctx.node.params[name]
        if isinstance(provider, LayerAsParam) or (provider, transposed) in ctx.lowering.search.packed:
            continue
        if ctx.has_rounded_matrix(name):
            continue
        packed = packed_for_search(ctx, ctx.param(name), transposed=transposed)
        if packed is not None:
            ctx.lowering.search.packed[provider, transposed] = packed


def packed_for_search(ctx: EmitContext, w: Any, *, transposed: bool = False) -> Optional[PackedMatrix]:
    """Pack a matrix before the first step of a search; None if there is none, or nothing to gain.

    :param w: [depth, width], or [width, depth] if ``transposed``; what is no tensor gives None
    """
    if not ctx.lowering.search.in_place or ctx.product_dtype is not None or not tf.is_tensor(w):
        return None
    is_large = w.dtype == tf.float32 and w.shape.rank == 2 and (w.shape.num_elements() or 0) >= _LEAST_SIZE
    ops = search_ops() if is_large else None
    return None if ops is None else pack(ops, w, transposed=transposed)


def matrix(ctx: EmitContext, name: str, *, transposed: bool = False) -> Matrix:
    """Return a parameter of a layer as a matrix: rounded if it is stored so, or as it was prepared before the loop.

    :param name: of the parameter
    :param transposed: whether it is [out, in]
    """
    rounded = ctx.rounded_matrix(name)
    if rounded is not None:
        return Matrix(None, transposed, rounded)
    over_steps = ctx.aux(ctx.node, OVER_STEPS)
    if over_steps is not None:
        return Matrix(ctx.param(name), transposed, StepMatrix(over_steps, ctx.lowering.loop.index))
    return Matrix(ctx.param(name), transposed, ctx.lowering.search.packed.get((ctx.node.params[name], transposed)))


def share_factors(ctx: EmitContext) -> None:
    """Have the gradient of the matrix of a layer computed after a loop in training; call it before the loop."""
    factors = ctx.node.layer.factors()
    if len(factors) == 1:
        ((name, transposed),) = factors.items()
        provider = ctx.node.params[name]
        if not isinstance(provider, LayerAsParam) or provider.node in ctx.lowering.values.outputs:
            over_steps = rows_over_steps(ctx, ctx.node.output, ctx.param(name), transposed=transposed)
            if over_steps is not None:
                ctx.set_aux(ctx.node, OVER_STEPS, over_steps)
