"""Parameters as matrices: rounded ones, and in the steps of a search those that are packed once, before the loop.

TensorFlow packs the matrix in each call, for each of its threads, which takes much of the time of a product with the
few rows of a search.
"""

from __future__ import annotations

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.params.reuse import LayerAsParam
from returnn_tf.native.decoding.search import pack, search_ops
from returnn_tf.ops.product import Matrix
from returnn_tf.util.lazy_tf import tf

#: Smaller matrices stay in the cache in any order.
_LEAST_SIZE = 2**14


def pack_factors(ctx: EmitContext) -> None:
    """Pack the matrices of a layer; for a loop that searches, before its first step."""
    if not ctx.lowering.search.in_place or ctx.product_dtype is not None:
        return
    for name, transposed in ctx.node.layer.factors().items():
        provider = ctx.node.params[name]
        if isinstance(provider, LayerAsParam) or (provider, transposed) in ctx.lowering.search.packed:
            continue
        if ctx.has_rounded_matrix(name):
            continue
        w = ctx.param(name)
        if w.dtype == tf.float32 and w.shape.rank == 2 and (w.shape.num_elements() or 0) >= _LEAST_SIZE:
            ops = search_ops()
            if ops is not None:
                ctx.lowering.search.packed[provider, transposed] = pack(ops, w, transposed=transposed)


def matrix(ctx: EmitContext, name: str, *, transposed: bool = False) -> Matrix:
    """Return a parameter of a layer as a matrix, rounded if it is stored so, packed if it was packed before the loop.

    :param name: of the parameter
    :param transposed: whether it is [out, in]
    """
    rounded = ctx.rounded_matrix(name)
    if rounded is not None:
        return Matrix(None, transposed, rounded)
    return Matrix(ctx.param(name), transposed, ctx.lowering.search.packed.get((ctx.node.params[name], transposed)))
