"""Layers that inspect the hypotheses of a search: scores, back pointers, the beam as an axis."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.aux_values import Aux, first_axis
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf

#: Of a choice: int32 [batch * beam], the previous entry that each hypothesis continues.
SOURCE_BEAMS: Aux[Any] = Aux("source beams", batch_axis=first_axis)


@register_layer("choice_get_beam_scores")
class BeamScoresLayer(Layer):
    """The scores of the hypotheses, one float each: in a loop those of the step, outside those of the result.

    Lengths: unchanged.

    Example::

        network = {
            "loop": {"class": "rec", "from": [], "target": "classes", "unit": {
                "prob": {"class": "softmax", "target": "classes", "from": "emb"},
                "emb": {"class": "linear", "activation": None, "n_out": 4, "from": "prev:output"},
                "output": {"class": "choice", "target": "classes", "beam_size": 3, "initial_output": 0,
                    "from": "prob"}}},
            "output": {"class": "choice_get_beam_scores", "from": "loop"}}
    """

    is_about_search = True

    @classmethod
    def only_in_step(cls) -> bool:
        """Return True: in a loop the value belongs to one step."""
        return True

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: [batch]."""
        source = ctx.single_source()
        batch = next((d for d in source.dims if d.is_batch), None)
        if batch is None:
            raise ctx.error("the source %s has no batch axis, so no hypotheses." % source)
        return Data((batch,), ctx.float_dtype)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit zero without search."""
        hyps = ctx.lowering.hypotheses
        if hyps is not None:
            return tf.reshape(hyps.scores, [-1])
        beam = self.source.output.beam
        if beam is None:
            return tf.zeros([ctx.size(ctx.output.dims[0])], ctx.output.dtype)
        return tf.reshape(ctx.lowering.beam_scores[beam.of], [-1])


@register_layer("choice_get_src_beams")
class SourceBeamsLayer(Layer):
    """The back pointers of a choice: the entry of the previous beam that each hypothesis continues, int32; in a loop.

    Lengths: unchanged.

    Example::

        network = {
            "loop": {"class": "rec", "from": [], "target": "classes", "unit": {
                "emb": {"class": "linear", "activation": None, "n_out": 4, "from": "prev:output"},
                "prob": {"class": "softmax", "target": "classes", "from": "emb"},
                "source": {"class": "choice_get_src_beams", "from": "output", "is_output_layer": True},
                "output": {"class": "choice", "target": "classes", "beam_size": 3, "initial_output": 0,
                    "from": "prob"}}},
            "output": {"class": "copy", "from": "loop/source"}}
    """

    is_about_search = True

    @classmethod
    def only_in_step(cls) -> bool:
        """Return True: in a loop the value belongs to one step."""
        return True

    def template(self, ctx: PlanContext) -> Data:
        """Return the template of the choice, without labels."""
        source = ctx.single_source()
        return source.replace(dtype="int32", sparse_dim=None, vocab=None)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit zero without search."""
        beams = ctx.aux(self.source, SOURCE_BEAMS)
        return tf.zeros_like(ctx.source(), tf.int32) if beams is None else beams


@dataclasses.dataclass(frozen=True, eq=False)
class SplitBatchBeamPlan(LayerPlan):
    """What `SplitBatchBeamLayer` found.

    :param beam: number of hypotheses
    :param time: the frames of all hypotheses, if there is a time axis and more than one hypothesis
    """

    beam: int
    time: Optional[Dim]


@register_layer("split_batch_beam")
class SplitBatchBeamLayer(Planned[SplitBatchBeamPlan]):
    """The hypotheses of a search as an axis of their own: [batch * beam, ...] -> [batch, beam, ...].

    Lengths: those of the best hypothesis of each sequence. Without search the beam has size 1.

    Example::

        network = {"output": {"class": "split_batch_beam", "from": "data"}}
    """

    ends_search = True
    beam_dim: Optional[Dim] = option(None, help="the dim of the beam axis")

    def template(self, ctx: PlanContext) -> SplitBatchBeamPlan:
        """Infer the output: a static axis after the batch axis."""
        data = ctx.single_source()
        axis = data.batch_axis
        if axis is None:
            raise ctx.error("the source %s has no batch axis." % data)
        size = 1 if data.beam is None else data.beam.size
        beam = ctx.bind(self.beam_dim, ctx.new_spatial(size, "beam"))
        axis_of_time, time = data.time_axis, None
        if size > 1 and axis_of_time is not None:
            time = data.dims[axis_of_time]
            data = data.with_dim(axis_of_time, ctx.new_spatial(None, "time"))
        is_feature = data.feature_axis is None and data.sparse_dim is None
        return SplitBatchBeamPlan(data.replace(beam=None).with_axis(axis + 1, beam, feature=is_feature), size, time)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a reshape."""
        source, x = self.source.output, ctx.source()
        axis = source.batch_axis
        assert axis is not None
        shape = tf.shape(x)
        x = tf.reshape(x, tf.concat([shape[:axis], [-1, self.plan.beam], shape[axis + 1 :]], axis=0))
        if self.plan.time is not None:
            lens = ctx.lowering.lens_in_beam(self.plan.time, self.plan.beam)
            lens = lens[:: self.plan.beam] if lens.shape.rank else lens
            time = ctx.output.time_axis
            assert time is not None
            ctx.define_lens(ctx.output.dims[time], lens, shape[source.time_axis])
        return x
