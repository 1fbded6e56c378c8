"""`relative_positional_encoding`: a vector for the distance between every two frames."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.config import ConfigError
from returnn_tf.config.options import LayerOrNumber, option
from returnn_tf.graph.aux_values import Aux
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axis, Init
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.loop_axis import frames_of, means_steps
from returnn_tf.ops.frames.positions import clipped_distances, sinusoids
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.data import default_time_axis
from returnn_tf.util.lazy_tf import tf

#: The vectors by clipped distance, [2 clipping + 1, n_out]; with them a layer needs no vector for every two frames.
TABLE: Aux[Any] = Aux("vectors by distance")


@dataclasses.dataclass(frozen=True, eq=False)
class RelativePositionalEncodingPlan(LayerPlan):
    """The plan of `RelativePositionalEncodingLayer`.

    :param queries: the dim of the queries; None: a step of a loop
    :param made_keys: whether the dim of the keys is a new one
    :param keys: the dim of the keys
    """

    queries: Optional[Dim]
    made_keys: bool
    keys: Dim


@register_layer("relative_positional_encoding")
class RelativePositionalEncodingLayer(ConcatInputLayer, Planned[RelativePositionalEncodingPlan]):
    """``y[t, s] = encoding_matrix[clip(s - t, -clipping, clipping) + clipping]``, for key_shift of `self_attention`.

    Only the length of the source matters. With ``fixed`` the rows are sinusoids of their index, and there is no
    parameter. In a loop, and without a time axis, t is the step and s goes over all steps up to it. The axes of t and s
    may be given, also as dims that the source lacks; with ``query_offset`` the position of t is ``t + query_offset``.

    Parameter: ``encoding_matrix`` [2 clipping + 1, n_out]. Shaw et al. 2018.
    Lengths: those of the source or of the given dims. The output is [queries, keys, n_out], without batch axis.

    Example::

        network = {
            "distance": {"class": "relative_positional_encoding", "n_out": 3, "clipping": 2, "from": "data"},
            "output": {"class": "self_attention", "num_heads": 2, "total_key_dim": 6, "n_out": 4,
                       "key_shift": "distance", "from": "data"}}
    """

    takes_ints = True
    reads_only_lengths = True
    clipping: int = option(16, help="maximum distance; larger ones are clipped")
    fixed: bool = option(False, help="use sinusoids instead of a parameter")
    forward_weights_init: Init = option("glorot_uniform", help="initialiser of encoding_matrix")
    query_spatial_dim: Optional[Axis] = option(None, help="axis of t (default: the time axis, in a loop the step)")
    key_value_spatial_dim: Optional[Axis] = option(None, help="axis of s (default: as many frames as t has)")
    query_offset: Optional[LayerOrNumber] = option(
        None, help="position of the first t: a number, or a layer with one", refs=True
    )

    def template(self, ctx: PlanContext) -> RelativePositionalEncodingPlan:
        """Infer the output: [queries, keys, features]; in a step [keys, features]."""
        if self.clipping < 1:
            raise ctx.error("clipping must be at least 1, got %d." % self.clipping)
        data = self.input_template(ctx)
        out = ctx.out_feature()
        if not self.fixed:
            ctx.param("encoding_matrix", (2 * self.clipping + 1, out), self.forward_weights_init)
        self._check_offset(ctx)
        queries = self._query_dim(ctx, data)
        size = None if queries is None else queries.size
        keys = self._key_dim(ctx, data)
        made_keys = keys is None
        keys = ctx.new_spatial(size, "keys") if keys is None else keys
        if keys is None and isinstance(self.key_value_spatial_dim, Dim):
            keys = ctx.bind(self.key_value_spatial_dim, keys)
        dims = (keys, out) if queries is None else (queries, keys, out)
        in_loop = queries is None or queries.is_loop
        return RelativePositionalEncodingPlan(
            Data(dims, ctx.float_dtype, len(dims) - 1, None if in_loop else default_time_axis(dims[:-1])),
            queries,
            made_keys,
            keys,
        )

    def _query_dim(self, ctx: PlanContext, data: Data) -> Optional[Dim]:
        """Return the dim of the queries; None for a step of a loop."""
        if self.query_spatial_dim is not None and not means_steps(ctx, data, self.query_spatial_dim):
            return self._dim_of(ctx, data, self.query_spatial_dim)
        frames, axis = frames_of(ctx, data)
        return None if axis is None else frames.dims[axis]

    def _key_dim(self, ctx: PlanContext, data: Data) -> Optional[Dim]:
        """Return the given dim of the keys; None if it has to be as long as that of the queries."""
        given = self.key_value_spatial_dim
        try:
            return None if given is None else self._dim_of(ctx, data, given)
        except ConfigError:
            if isinstance(given, Dim):
                return None
            raise

    def _dim_of(self, ctx: PlanContext, data: Data, desc: Any) -> Dim:
        """Return the dim of an axis of the source, or the dim itself if the source lacks it."""
        if isinstance(desc, Dim) and not ctx.has_axis(data, desc):
            ctx.depend_on_dim(desc)
            return desc
        return data.dims[ctx.axis(data, desc)]

    def _check_offset(self, ctx: PlanContext) -> None:
        offset = self.query_offset
        if isinstance(offset, Node):
            if not offset.output.unknown and (offset.output.rank or offset.output.dtype not in ("int32", "int64")):
                raise ctx.error("query_offset: the layer %r must give one int, not %s." % (offset.path, offset.output))
        elif offset is not None and not isinstance(offset, int):
            raise ctx.error("query_offset must be an int or a layer, got %r." % (offset,))

    def emit(self, ctx: EmitContext) -> Any:
        """Emit row lookup by distance."""
        if self.plan.queries is None:
            step = ctx.lowering.loop.index
            queries, size = tf.expand_dims(step, 0), step + 1
            lens = size
        else:
            size, lens = ctx.size(self.plan.queries), ctx.lens(self.plan.queries)
            queries = tf.range(size)
        if self.plan.made_keys and self.plan.keys.size is None:
            ctx.define_lens(self.plan.keys, lens, size)
        if self.query_offset is not None:
            offset = ctx.value(self.query_offset) if isinstance(self.query_offset, Node) else self.query_offset
            queries += tf.cast(offset, tf.int32)
        rows = clipped_distances(queries, tf.range(ctx.size(self.plan.keys)), self.clipping)
        if self.plan.queries is None:
            rows = rows[0]
        n_out = ctx.output.dim
        assert n_out is not None
        if self.fixed:
            table = sinusoids(tf.range(2 * self.clipping + 1), n_out, ctx.float_dtype)
        else:
            table = ctx.param("encoding_matrix")
        if self.plan.made_keys and self.query_offset is None:
            ctx.set_aux(self.node, TABLE, table)
        return tf.gather(table, rows)
