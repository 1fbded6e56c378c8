"""`decide`: the best hypothesis of a search; `decide_keep_beam`: all of them."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.config.errors import SearchError
from returnn_tf.config.options import option
from returnn_tf.graph.aux_values import Aux, first_axis
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer, Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.lowering import Lowering
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf

#: Of a decision: float [batch], the score of the chosen hypothesis.
DECIDED_SCORES: Aux[Any] = Aux("decided scores", batch_axis=first_axis)


def scores_of(lowering: Lowering, node: Node) -> Optional[Any]:
    """Return the scores of the hypotheses in the output of a layer, [batch, beam]; None if there was no search.

    A decision, and what follows from it, has one hypothesis per sequence.
    """
    if node.output.beam is not None:
        return lowering.search.beam_scores[node.output.beam.of]
    todo, seen = [node], {node}
    while todo:
        current = todo.pop(0)
        decided = lowering.values.aux.get(current, {}).get(DECIDED_SCORES)
        if decided is not None:
            return tf.expand_dims(decided, 1)
        if current.output.beam is None:
            fresh = [source for source in current.sources if source not in seen]
            todo += fresh
            seen.update(fresh)
    return None


def has_scores(node: Node) -> bool:
    """Return whether `scores_of` will find scores for a planned layer."""
    if node.output.beam is not None:
        return True
    todo, seen = [node], {node}
    while todo:
        current = todo.pop(0)
        if current.layer.decides:
            return True
        if current.output.beam is None:
            fresh = [source for source in current.sources if source not in seen]
            todo += fresh
            seen.update(fresh)
    return False


@dataclasses.dataclass(frozen=True, eq=False)
class DecidePlan(LayerPlan):
    """The plan of `DecideLayer`.

    :param time: the frames of all hypotheses, if there is a time axis
    """

    time: Optional[Dim]


@register_layer("decide")
class DecideLayer(Planned[DecidePlan]):
    """The best hypothesis of a search; without search a copy.

    Lengths: those of the best hypotheses; the time axis is cut to the longest one.

    Example::

        network = {"output": {"class": "decide", "from": "data"}}
    """

    ends_search = True
    length_normalization: bool = option(False, help="divide the scores by the lengths before comparing")

    @property
    def decides(self) -> bool:
        """Return whether there are hypotheses to decide between."""
        return self.source.output.beam is not None

    def template(self, ctx: PlanContext) -> DecidePlan:
        """Infer the output without hypotheses."""
        data = ctx.single_source()
        time = None
        if data.beam is None:
            return DecidePlan(data, time)
        if data.time_axis is not None and data.batch_axis is not None:
            time = data.dims[data.time_axis]
            data = data.with_dim(data.time_axis, ctx.new_spatial(None, "time"))
        return DecidePlan(data.replace(beam=None), time)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a gather of the best entry of each sequence."""
        source = self.source.output
        x = ctx.source()
        if source.beam is None or source.batch_axis is None:
            return x
        beam = source.beam.size
        if source.beam.of in ctx.lowering.search.sources:
            raise SearchError(
                "Layer %r decides on a hypothesis, but after a block of frames, another one may become the best. Name "
                "the layer with all hypotheses, %r." % (self.node.path, self.source.path)
            )
        scores = ctx.lowering.search.beam_scores[source.beam.of]
        lens = None
        if self.plan.time is not None:
            lens = ctx.lowering.dims.lens_in_beam(self.plan.time, beam)
            lens = lens if lens.shape.rank else tf.fill([tf.size(scores)], lens)
        if self.length_normalization and lens is not None:
            scores /= tf.maximum(tf.cast(tf.reshape(lens, [-1, beam]), scores.dtype), 1.0)
        entry = tf.argmax(scores, axis=1, output_type=tf.int32)
        ctx.set_aux(self.node, DECIDED_SCORES, tf.gather(scores, entry, batch_dims=1))
        best = entry + tf.range(tf.shape(scores)[0]) * beam
        y = tf.gather(x, best, axis=source.batch_axis)
        if lens is None or source.time_axis is None:
            return y
        lens = tf.gather(lens, best)
        size = tf.reduce_max(tf.concat([lens, [0]], axis=0))
        ctx.define_lens(ctx.output.dims[source.time_axis], lens, size)
        return tf.gather(y, tf.range(size), axis=source.time_axis)


@register_layer("decide_keep_beam")
class DecideKeepBeamLayer(Layer):
    """``y = x``, with all hypotheses of a search and their scores; `decide` keeps only the best one.

    Lengths: unchanged.

    Example::

        network = {"output": {"class": "decide_keep_beam", "from": "data"}}
    """

    keeps_features = True

    def template(self, ctx: PlanContext) -> Data:
        """Return the template of the source."""
        return ctx.single_source()

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the source."""
        ctx.forward_aux()
        return ctx.source()
