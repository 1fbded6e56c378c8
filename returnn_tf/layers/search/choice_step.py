"""One step of a search at a choice, from the scores of all continuations to the hypotheses, and its result as nodes."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.config.errors import SearchError
from returnn_tf.config.options import option
from returnn_tf.graph.aux_values import Aux, first_axis
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.graph.user_views import user_views
from returnn_tf.layers.search.choice_scores import (
    Candidates,
    all_candidates,
    best_candidates,
    best_log_probs,
    chooses_positions,
    log_probs_of,
    valid_labels,
)
from returnn_tf.layers.search.choice_truth import true_label, with_truth, without_truth
from returnn_tf.loops.hypotheses import Hypotheses, normalized
from returnn_tf.ops.sequence.beam import best_of_each, choose
from returnn_tf.ops.sequence.hypothesis_scores import combined, grown
from returnn_tf.ops.sequence.recombine import extended_history, merge_equal
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


class ChoiceStep:
    """One step of a search.

    :param layer: the `ChoiceLayer`, with its options
    """

    def __init__(self, ctx: EmitContext, layer: Any) -> None:
        self._ctx = ctx
        self._layer = layer
        hyps: Hypotheses = ctx.lowering.search.hypotheses
        self._hyps = hyps
        #: Hypotheses per sequence before this choice, and which of them have ended, bool [batch, beam].
        self._beam = hyps.beam
        self._ended = tf.reshape(hyps.ended, [-1, hyps.beam])

    def run(self) -> list[Any]:
        """Return the labels of the surviving hypotheses, [batch * beam] for each source.

        :raises ConfigError: sequences come in blocks, but an option needs the steps of all of the sequence
        """
        ctx, hyps = self._ctx, self._hyps
        if hyps.step.shape.rank:
            self._check_stream()
        beam, first = hyps.beam, hyps.choices == 0
        found = self._candidates()
        scores = unmasked = self._combined(found.scores, self._base_scores())
        valid = valid_labels(ctx, self._layer.sources[0])
        if valid is not None:  # padded positions
            valid = tf.reshape(valid, [-1, beam, tf.shape(valid)[1]])
            scores = unmasked = tf.where(valid, scores, tf.constant(float("-inf"), scores.dtype))
        copies = tf.logical_and(tf.equal(hyps.step, 0), tf.range(beam) > 0)
        if first:
            # Before the first choice all hypotheses are copies of one.
            scores = tf.where(tf.expand_dims(copies, -1), tf.constant(float("-inf"), scores.dtype), scores)
        truth = true_label(ctx, self._layer.plan.truths[0], beam) if self._layer.cheating else None
        if self._layer.cheating == "exclusive":
            scores = without_truth(scores, truth, hyps)
        best, source, candidate = self._chosen(scores, found)
        if first:
            empty = tf.logical_and(tf.equal(hyps.step, 0), tf.math.is_inf(best))
            source, candidate = tf.where(empty, 0, source), tf.where(empty, 0, candidate)
        if valid is not None:  # there may be fewer positions than hypotheses
            candidate = tf.where(tf.math.is_inf(best), 0, candidate)
        if self._layer.cheating:
            best, source, candidate = with_truth(unmasked, truth, hyps, (best, source, candidate))
        labels = found.labels(source, candidate)
        self._set_states(source, labels)
        hyps.choose(best, source)
        hyps.normalize = hyps.normalize or self._layer.length_normalization
        hyps.exponent = self._layer.length_normalization_exponent
        ctx.set_aux(self._layer.node, SOURCE_BEAMS, tf.reshape(source, [-1]))
        return [tf.reshape(x, [-1]) for x in labels]

    def _check_stream(self) -> None:
        for name in ("cheating", "custom_score_combine", "random_sample_scale"):
            if getattr(self._layer, name):
                raise SearchError(
                    "Layer %r: with the option %r, a search can't go on from block to block of frames."
                    % (self._ctx.node.path, name)
                )

    def _candidates(self) -> Candidates:
        layer, ctx = self._layer, self._ctx
        ended_labels: list[Any] = [None] * len(layer.sources)
        if layer.independent_of_batch:
            states = [ctx.loop_state("label_%d" % i) for i in range(len(layer.sources))]
            ended_labels = [tf.reshape(state, [-1, self._beam]) for state in states]
        if self._needs_all_labels():
            log_probs = log_probs_of(ctx, layer.sources[0], layer.input_type)
            return all_candidates(log_probs, self._ended, ended_labels[0])
        sizes = layer.plan.source_beams if len(layer.sources) > 1 else [self._pool()]
        best = [best_log_probs(ctx, node, layer.input_type, size) for node, size in zip(layer.sources, sizes)]
        return best_candidates(best, self._ended, ended_labels)

    def _needs_all_labels(self) -> bool:
        """Return whether others than the best labels of a hypothesis may be chosen, or are seen by the user's code."""
        layer = self._layer
        changes = layer.custom_score_combine is not None or layer.random_sample_scale or layer.prob_scale <= 0
        return len(layer.sources) == 1 and bool(changes or layer.cheating or chooses_positions(layer.sources[0]))

    def _pool(self) -> int:
        """Return the number of continuations that are chosen before recombination."""
        merges = self._layer.recombine and self._layer.recombine_by is None
        size: int = self._layer.beam_size * (2 if merges else 1)
        return size

    def _base_scores(self) -> Any:
        """Return the scores so far, [batch, beam]."""
        base, first = self._hyps.scores, self._hyps.choices == 0
        if self._layer.length_normalization and first and not self._layer.independent_of_batch:
            step = tf.cast(self._hyps.step, base.dtype)
            base = grown(tf, base, self._ended, step, self._layer.length_normalization_exponent)
        if self._layer.recombine_by is not None:
            identity = tf.reshape(self._ctx.value(self._layer.recombine_by), [-1, self._beam])
            merged = merge_equal(base, identity, self._layer.recombine or "max")
            base = tf.where(tf.equal(self._hyps.step, 0), base, merged)  # before the first step all are copies of one
        return base

    def _chosen(self, scores: Any, found: Candidates) -> tuple[Any, Any, Any]:
        """Return scores, source beams and candidates of the surviving hypotheses, each [batch, beam]."""
        if self._layer.recombine and self._layer.recombine_by is None:
            pool, source, candidate = self._ranked(scores, self._pool())
            labels = found.labels(source, candidate)[0]
            merged = merge_equal(pool, self._histories(source, labels), self._layer.recombine)
            _, index = tf.math.top_k(self._ranks(merged, source), k=self._layer.beam_size)
            best, source, candidate = (tf.gather(x, index, batch_dims=1) for x in (merged, source, candidate))
            return best, source, candidate
        return self._ranked(scores, self._layer.beam_size)

    def _ranked(self, scores: Any, count: int) -> tuple[Any, Any, Any]:
        """Return scores, source beams and candidates of the ``count`` best.

        :param scores: [batch, beam, candidates]
        """
        source = tf.range(self._beam)[None, :, None]
        ranks = self._ranks(scores, source)
        best, source, candidate = self._pick(ranks, count)
        if ranks is not scores:
            of_source = tf.gather(scores, source, batch_dims=1)
            best = tf.where(tf.math.is_inf(best), best, tf.gather(of_source, candidate, batch_dims=2))
        return best, source, candidate

    def _pick(self, ranks: Any, count: int) -> tuple[Any, Any, Any]:
        """Return scores, source beams and candidates of the ``count`` best; with keep_beams the best of each one."""
        if not self._layer.keep_beams:
            return choose(ranks, count)
        if self._hyps.choices:
            return best_of_each(ranks, count)
        # Before the first choice there is a single hypothesis, whose copies have the score -inf.
        start = tf.equal(self._hyps.step, 0)
        if start.shape.rank:  # sequences of a stream that begin at different times
            both = zip(choose(ranks, count), best_of_each(ranks, count))
            best, source, candidate = (tf.where(start, one, other) for one, other in both)
            return best, source, candidate
        picked: tuple[Any, Any, Any] = tf.cond(start, lambda: choose(ranks, count), lambda: best_of_each(ranks, count))
        return picked

    def _ranks(self, scores: Any, source: Any) -> Any:
        """Return the values that hypotheses are ranked by.

        :param source: the hypothesis that each score continues, of the rank of ``scores``
        """
        if not (self._layer.independent_of_batch and self._layer.length_normalization):
            return scores
        counts = tf.reshape(self._hyps.counts, [-1, self._beam]) + tf.cast(tf.logical_not(self._ended), tf.int32)
        source = tf.broadcast_to(source, tf.concat([tf.shape(counts)[:1], tf.shape(source)[1:]], axis=0))
        return normalized(scores, tf.gather(counts, source, batch_dims=1), self._layer.length_normalization_exponent)

    def _histories(self, source: Any, label: Any) -> Any:
        """Return a hash of the labels so far of hypotheses continued by a label, int64 [batch, entries]."""
        before = tf.gather(tf.reshape(self._ctx.loop_state("history"), [-1, self._beam]), source, batch_dims=1)
        ended = tf.gather(self._ended, source, batch_dims=1)
        if self._layer.recombine_blank is not None:
            ended = tf.logical_or(ended, tf.equal(label, self._layer.recombine_blank))
        return tf.where(ended, before, extended_history(before, label))

    def _set_states(self, source: Any, labels: list[Any]) -> None:
        """Set the states carried to the next step, for the new hypotheses."""
        if self._layer.independent_of_batch:
            for i, label in enumerate(labels):
                self._ctx.set_loop_state("label_%d" % i, tf.reshape(label, [-1]))
        if self._layer.recombine and self._layer.recombine_by is None:
            self._ctx.set_loop_state("history", tf.reshape(self._histories(source, labels[0]), [-1]))

    def _combined(self, scores_in: Any, base: Any) -> Any:
        scores_base = tf.expand_dims(base, 2)
        if self._layer.custom_score_combine is not None:
            scores = self._layer.custom_score_combine(
                layer=self._view(),
                scores_in=scores_in,
                scores_base=scores_base,
                t=self._hyps.step,
                end_flags=self._ended,
                batch_dim=tf.shape(scores_in)[0],
                scores_beam_in=self._beam,
                base_beam_in=self._beam,
            )
            scores = self._checked(scores, scores_in)
        else:
            scales = {"prob_scale": self._layer.prob_scale, "base_scale": self._layer.base_beam_score_scale}
            scores = combined(scores_in, scores_base, **scales)
        if self._layer.random_sample_scale:
            uniform = tf.random.stateless_uniform(
                tf.shape(scores), self._ctx.seed("sample"), minval=1e-20, dtype=scores.dtype
            )
            scores += self._layer.random_sample_scale * -tf.math.log(-tf.math.log(uniform))
        return scores

    def _view(self) -> Any:
        """Return the view of the choice for the user's function."""
        given = self._layer.explicit_search_sources
        nodes = given if isinstance(given, (list, tuple)) else [] if given is None else [given]
        of_option = [user_views().layer(self._ctx, node) for node in nodes]
        return user_views().layer(self._ctx, self._layer.node, explicit_search_sources=of_option)

    def _checked(self, scores: Any, scores_in: Any) -> Any:
        """Check that the user's function returned a score for each label of each hypothesis, and return it."""
        what = "Layer %r: custom_score_combine must return scores of the shape and dtype of scores_in, [batch, beam, "
        what = (what + "labels] %s") % (self._ctx.node.path, scores_in.dtype.name)
        if (
            not tf.is_tensor(scores)
            or scores.dtype != scores_in.dtype
            or not scores.shape.is_compatible_with(scores_in.shape)
        ):
            found = "%s %s" % (scores.dtype.name, scores.shape) if tf.is_tensor(scores) else repr(scores)
            raise SearchError("%s, but it returned %s." % (what, found))
        same = tf.debugging.assert_equal(tf.shape(scores), tf.shape(scores_in), message=what + ".")
        with tf.control_dependencies([same]):
            return tf.identity(scores)


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
            raise SearchError("the source %s has no batch axis, so no hypotheses." % source)
        return Data((batch,), ctx.float_dtype)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit zero without search."""
        hyps = ctx.lowering.search.hypotheses
        if hyps is not None:
            return tf.reshape(hyps.scores, [-1])
        beam = self.source.output.beam
        if beam is None:
            return tf.zeros([ctx.size(ctx.output.dims[0])], ctx.output.dtype)
        return tf.reshape(ctx.lowering.search.beam_scores[beam.of], [-1])


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
    """The plan of `SplitBatchBeamLayer`.

    :param beam: number of hypotheses
    :param time: the frames of all hypotheses, if there is a time axis and more than one hypothesis
    """

    beam: int
    time: Optional[Dim]


@register_layer("split_batch_beam")
class SplitBatchBeamLayer(Planned[SplitBatchBeamPlan]):
    """The hypotheses of a search as a separate axis: [batch * beam, ...] -> [batch, beam, ...].

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
            raise SearchError("the source %s has no batch axis." % data)
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
            lens = ctx.lowering.dims.lens_in_beam(self.plan.time, self.plan.beam)
            lens = lens[:: self.plan.beam] if lens.shape.rank else lens
            time = ctx.output.time_axis
            assert time is not None
            ctx.define_lens(ctx.output.dims[time], lens, shape[source.time_axis])
        return x
