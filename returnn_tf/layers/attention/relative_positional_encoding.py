"""`relative_positional_encoding`: a vector for the distance between every two frames."""

from __future__ import annotations

from typing import Any

from returnn_tf.config.options import option
from returnn_tf.graph.aux_values import Aux
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.option_types import Init
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.loop_axis import frames_of
from returnn_tf.ops.frames.positions import clipped_distances, sinusoids
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf

#: The vectors by clipped distance, [2 clipping + 1, n_out]; with them a layer needs no vector for every two frames.
TABLE: Aux[Any] = Aux("vectors by distance")


@register_layer("relative_positional_encoding")
class RelativePositionalEncodingLayer(ConcatInputLayer):
    """``y[t, s] = encoding_matrix[clip(s - t, -clipping, clipping) + clipping]``, for key_shift of `self_attention`.

    Only the length of the source matters. With ``fixed`` the rows are sinusoids of their index, and there is no
    parameter. In a loop, and without a time axis, t is the step and s goes over all steps up to it.

    Parameter: ``encoding_matrix`` [2 clipping + 1, n_out]. Shaw et al. 2018.
    Lengths: those of the source, for both axes. The output is [time, time, n_out], without batch axis.

    Example::

        network = {
            "distance": {"class": "relative_positional_encoding", "n_out": 3, "clipping": 2, "from": "data"},
            "output": {"class": "self_attention", "num_heads": 2, "total_key_dim": 6, "n_out": 4,
                       "key_shift": "distance", "from": "data"}}
    """

    clipping: int = option(16, help="maximum distance; larger ones are clipped")
    fixed: bool = option(False, help="use sinusoids instead of a parameter")
    forward_weights_init: Init = option("glorot_uniform", help="initialiser of encoding_matrix")

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: [queries, keys, features]; in a step [keys, features]."""
        if self.clipping < 1:
            raise ctx.error("clipping must be at least 1, got %d." % self.clipping)
        frames, axis = frames_of(ctx, self.input_template(ctx))
        out = ctx.out_feature()
        if not self.fixed:
            ctx.param("encoding_matrix", (2 * self.clipping + 1, out), self.forward_weights_init)
        self._queries = None if axis is None else frames.dims[axis]
        size = None if self._queries is None else self._queries.size
        self._keys = ctx.new_spatial(size, "keys")
        dims = (self._keys, out) if self._queries is None else (self._queries, self._keys, out)
        in_loop = self._queries is None or self._queries.is_loop
        return Data(dims, feature_axis=len(dims) - 1, time_axis=None if in_loop else 0)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit row lookup by distance."""
        if self._queries is None:
            step = ctx.lowering.loop_index
            queries, size = tf.expand_dims(step, 0), step + 1
            ctx.define_lens(self._keys, size, size)
        else:
            size = ctx.size(self._queries)
            queries = tf.range(size)
            if self._keys.size is None:
                ctx.define_lens(self._keys, ctx.lens(self._queries), size)
        rows = clipped_distances(queries, tf.range(size), self.clipping)
        if self._queries is None:
            rows = rows[0]
        n_out = ctx.output.dim
        assert n_out is not None
        table = sinusoids(tf.range(2 * self.clipping + 1), n_out) if self.fixed else ctx.param("encoding_matrix")
        ctx.set_aux(self.node, TABLE, table)
        return tf.gather(table, rows)
