"""`choice`: the labels of a step, by search or from the target; `decide`: the best hypothesis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, Mapping, Optional

from returnn_tf.config import did_you_mean
from returnn_tf.layers.base import Layer
from returnn_tf.layers.node import Node
from returnn_tf.layers.options import option
from returnn_tf.layers.rec.beams import SOURCE_BEAMS_NOTE
from returnn_tf.layers.rec.search import Hypotheses
from returnn_tf.layers.registry import register_layer
from returnn_tf.ops.activations import safe_log
from returnn_tf.ops.beam import choose, ended_scores
from returnn_tf.ops.shape import move_axis
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf

if TYPE_CHECKING:
    from returnn_tf.layers.emit_context import EmitContext
    from returnn_tf.layers.plan_context import PlanContext

_INPUT_TYPES = ("prob", "log_prob", "logits", "regression")


@register_layer("choice")
class ChoiceLayer(Layer):
    """The label of each step. In training it is the target; in search the best ``beam_size`` hypotheses are kept.

    Search: ``score = prob_scale * log p(label) + base_beam_score_scale * score of the hypothesis``, the best of all
    hypotheses and labels, best first. A hypothesis that has ended goes on with label 0 and an unchanged score; with
    length_normalization that is multiplied by ``((t + 1) / t) ** length_normalization_exponent`` in step t, and at the
    end of the loop all scores are divided by the number of steps of the longest one.

    Lengths: one label per step of the loop.

    Example::

        network = {
            "loop": {"class": "rec", "from": [], "target": "classes", "unit": {
                "emb": {"class": "linear", "activation": None, "n_out": 4, "from": "prev:output"},
                "prob": {"class": "softmax", "target": "classes", "loss": "ce", "from": "emb"},
                "output": {"class": "choice", "target": "classes", "beam_size": 3, "initial_output": 0,
                    "from": "prob"}}},
            "output": {"class": "linear", "activation": None, "n_out": 2, "from": "loop"}}
    """

    beam_size: int = option(help="hypotheses to keep for each sequence")
    keep_beams: bool = option(False, help="every hypothesis is continued by beam_size / (their number) labels")
    search: Optional[bool] = option(None, help="False: follow the target in search too")
    input_type: str = option("prob", help="what the source is: prob, log_prob, logits or regression")
    prob_scale: float = option(1.0, help="factor of the log probability of a label")
    base_beam_score_scale: float = option(1.0, help="factor of the score so far")
    random_sample_scale: float = option(0.0, help="factor of Gumbel noise on the scores")
    length_normalization: bool = option(True, help="normalise the scores by the number of steps")
    length_normalization_exponent: float = option(1.0, help="exponent while a hypothesis waits for the others")
    custom_score_combine: Any = option(None, help="function (scores_in, scores_base, t, end_flags, ...) -> scores")
    source_beam_sizes: Any = option(None, help="with several sources: labels to keep of each")
    scheduled_sampling: Any = option(False, help="must be False")
    cheating: Any = option(False, help="True: the target is always a hypothesis; 'exclusive': only once")
    explicit_search_source: Any = option(None, help="the choice before this one, where no source leads to it")
    explicit_search_sources: Any = option(None, help="the choices before this one, where no source leads to them")
    num_beams: Any = option(None, help="obsolete")

    @classmethod
    def follows_target(cls, options: Mapping[str, Any], search: bool) -> bool:
        """In training the sources are ignored."""
        return bool(options.get("target")) and (not search or options.get("search") is False)

    @classmethod
    def only_in_step(cls) -> bool:
        """A search goes step by step."""
        return True

    @classmethod
    def references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """The choices before this one."""
        for name in ("explicit_search_source", "explicit_search_sources"):
            given = options.get(name)
            if given:
                yield from [given] if isinstance(given, str) else given

    def template(self, ctx: "PlanContext") -> Data:
        """Labels, one per sequence in a step."""
        if self.input_type not in _INPUT_TYPES:
            raise ctx.error(
                "unknown input_type %r. %s" % (self.input_type, did_you_mean(self.input_type, _INPUT_TYPES))
            )
        if self.beam_size < 1:
            raise ctx.error("beam_size must be at least 1, got %d." % self.beam_size)
        if self.cheating and not self.target:
            raise ctx.error("cheating needs the option 'target', whose labels stay in the beam.")
        for name in ("scheduled_sampling", "source_beam_sizes"):
            if getattr(self, name):
                raise ctx.error("the option %r is not supported yet. Leave it out." % name)
        if ctx.loop_dim is None and not ctx.in_step:
            raise ctx.error("chooses labels in a loop: put it into the unit of a 'rec' layer.")
        if type(self).follows_target({"target": self.target, "search": self.search}, ctx.search):
            return self._target_template(ctx)
        return self._search_template(ctx)

    @property
    def searches(self) -> bool:
        """Whether this layer chooses among hypotheses, once it is planned."""
        return self._target is None and self.input_type != "regression"

    def _target_template(self, ctx: "PlanContext") -> Data:
        assert ctx.loop_dim is not None
        node: Node = ctx.depend(ctx.builder.target_node(ctx.node, self.target))
        data = node.output
        if data.time_axis is None:
            raise ctx.error("the target %r %s has no time axis." % (self.target, data))
        self._target: Optional[Node] = node
        return data.with_dim(data.time_axis, ctx.loop_dim).replace(time_axis=None, vocab=None)

    def _search_template(self, ctx: "PlanContext") -> Data:
        self._target = None
        self._truth_node: Optional[Node] = None
        if self.cheating:
            self._truth_node = ctx.depend(ctx.builder.target_node(ctx.node, self.target))
        if len(self.sources) != 1:
            raise ctx.error("search with %d sources is not supported yet; give one." % len(self.sources))
        source = self.sources[0].output
        if self.input_type == "regression":
            return source
        dim = ctx.need_feature(source)
        labels = ctx.builder.target_data(ctx.node, self.target).sparse_dim if self.target else None
        if labels is None or labels.size != dim.size:
            labels = ctx.new_feature(ctx.need_static(dim, "the number of labels"), "%s:labels" % ctx.node.path)
        data = source.without_axes([source.feature_axis] if source.feature_axis is not None else [])
        if data.rank != 1:
            raise ctx.error("the source must be [batch, labels] in a step, it is %s." % source)
        return data.replace(dtype="int32", sparse_dim=labels, vocab=None)

    def emit(self, ctx: "EmitContext") -> Any:
        """The target, or one step of the search."""
        if self._target is not None:
            return ctx.value(self._target)
        if self.input_type == "regression":
            return ctx.source()
        hyps: Hypotheses = ctx.lowering.hypotheses
        beam, first = hyps.beam, hyps.choices == 0
        log_probs = self._log_probs(ctx)
        log_probs = tf.reshape(log_probs, [-1, beam, log_probs.shape[-1]])
        ended = tf.reshape(hyps.ended, [-1, beam])
        base = hyps.scores
        step = tf.cast(hyps.step, tf.float32)
        if self.length_normalization and first:
            factor = ((step + 1.0) / tf.maximum(step, 1.0)) ** self.length_normalization_exponent
            base = tf.where(tf.logical_and(ended, step > 0), base * factor, base)
        hyps.normalize = hyps.normalize or self.length_normalization
        scores = self._combined(ctx, ended_scores(log_probs, ended), tf.expand_dims(base, 2), hyps)
        unmasked = scores
        if first:
            # Before the first choice all hypotheses are copies of one.
            copies = tf.logical_and(tf.equal(hyps.step, 0), tf.range(beam) > 0)
            scores = tf.where(copies[None, :, None], float("-inf"), scores)
        if self.cheating == "exclusive":
            truth = tf.one_hot(self._truth(ctx, beam), tf.shape(scores)[2], on_value=True, off_value=False)
            last = tf.where(tf.equal(hyps.step, 0) if first else False, 0, beam - 1)
            taken = tf.logical_and(truth[:, None], tf.equal(tf.range(beam), last)[None, :, None])
            scores = tf.where(taken, float("-inf"), scores)
        best, source, labels = self._choose(scores, beam)
        if first:
            empty = tf.logical_and(tf.equal(hyps.step, 0), tf.math.is_inf(best))
            source, labels = tf.where(empty, 0, source), tf.where(empty, 0, labels)
        if self.cheating:
            best, source, labels = self._with_truth(ctx, hyps, unmasked, best, source, labels)
        hyps.choose(best, source)
        ctx.note(self.node, SOURCE_BEAMS_NOTE, tf.reshape(source, [-1]))
        return tf.reshape(labels, [-1])

    def _truth(self, ctx: "EmitContext", beam: int) -> Any:
        """[batch] the label of the target in this step; 0 after its end."""
        assert self._truth_node is not None
        data = self._truth_node.output
        x = move_axis(ctx.value(self._truth_node), data.rank, data.time_axis or 0, data.rank - 1)
        step = ctx.lowering.loop_index
        size = tf.shape(x)[-1]
        label = tf.gather(x, tf.minimum(step, size - 1), axis=-1)[::beam]
        lens = ctx.lowering.get_lens(data.dims[data.time_axis or 0])
        lens = lens[::beam] if lens.shape.rank else lens
        return tf.where(step < lens, label, 0)

    def _with_truth(
        self, ctx: "EmitContext", hyps: Hypotheses, scores: Any, best: Any, source: Any, labels: Any
    ) -> Any:
        """The last hypothesis replaced by the true label, as continuation of the last one before."""
        truth = tf.cast(self._truth(ctx, hyps.beam), tf.int32)
        last = tf.where(tf.equal(hyps.step, 0) if hyps.choices == 0 else False, 0, hyps.beam - 1)
        score = tf.gather(scores[:, last], truth, batch_dims=1)

        def replaced(values: Any, value: Any) -> Any:
            return tf.concat([values[:, :-1], tf.cast(value, values.dtype)[:, None]], axis=1)

        return replaced(best, score), replaced(source, tf.fill(tf.shape(truth), last)), replaced(labels, truth)

    def _choose(self, scores: Any, beam: int) -> Any:
        if not self.keep_beams:
            return choose(scores, self.beam_size)
        each = max(1, self.beam_size // beam)
        best, labels = tf.math.top_k(scores, k=each)
        source = tf.broadcast_to(tf.range(beam)[None, :, None], tf.shape(labels))
        flat = [tf.reshape(x, [-1, beam * each]) for x in (best, source, labels)]
        order = tf.argsort(flat[0], direction="DESCENDING", stable=True)[:, : self.beam_size]
        return tuple(tf.gather(x, order, batch_dims=1) for x in flat)

    def _combined(self, ctx: "EmitContext", scores_in: Any, scores_base: Any, hyps: Hypotheses) -> Any:
        if self.custom_score_combine is not None:
            ended = tf.reshape(hyps.ended, [-1, hyps.beam])
            scores = self.custom_score_combine(
                layer=self, scores_in=scores_in, scores_base=scores_base, t=hyps.step, end_flags=ended,
                batch_dim=tf.shape(scores_in)[0], scores_beam_in=hyps.beam, base_beam_in=hyps.beam,
            )  # fmt: skip
        else:
            scores = self.prob_scale * scores_in + self.base_beam_score_scale * scores_base
        if self.random_sample_scale:
            uniform = tf.random.stateless_uniform(tf.shape(scores), ctx.seed("sample"), minval=1e-20)
            scores += self.random_sample_scale * -tf.math.log(-tf.math.log(uniform))
        return scores

    def _log_probs(self, ctx: "EmitContext") -> Any:
        """[batch * beam, labels]; of a softmax layer by its values before the softmax."""
        x = ctx.source()
        if self.input_type == "log_prob":
            return x
        if self.input_type == "logits":
            return tf.nn.log_softmax(x)
        noted = ctx.noted(self.source, "pre_activation")
        if noted is not None and noted[1] == "softmax":
            return tf.nn.log_softmax(noted[0])
        return safe_log(x)


@register_layer("decide")
class DecideLayer(Layer):
    """The best hypothesis of a search; without search a copy.

    Lengths: those of the best hypotheses; the time axis is cut to the longest one.

    Example::

        network = {"output": {"class": "decide", "from": "data"}}
    """

    ends_search = True
    length_normalization: bool = option(False, help="divide the scores by the lengths before comparing")

    def template(self, ctx: "PlanContext") -> Data:
        """Without hypotheses."""
        data = ctx.single_source()
        self._time: Optional[Any] = None
        if data.beam is None:
            return data
        if data.time_axis is not None and data.batch_axis is not None:
            self._time = data.dims[data.time_axis]
            data = data.with_dim(data.time_axis, ctx.new_spatial(None, "time"))
        return data.replace(beam=None)

    def emit(self, ctx: "EmitContext") -> Any:
        """Gather of the best entry of each sequence."""
        source = self.source.output
        x = ctx.source()
        if source.beam is None or source.batch_axis is None:
            return x
        beam = source.beam.size
        scores = ctx.lowering.beam_scores[source.beam.of]
        lens = None
        if self._time is not None:
            lens = ctx.lowering.lens_in_beam(self._time, beam)
            lens = lens if lens.shape.rank else tf.fill([tf.size(scores)], lens)
        if self.length_normalization and lens is not None:
            scores /= tf.maximum(tf.cast(tf.reshape(lens, [-1, beam]), tf.float32), 1.0)
        best = tf.argmax(scores, axis=1, output_type=tf.int32) + tf.range(tf.shape(scores)[0]) * beam
        y = tf.gather(x, best, axis=source.batch_axis)
        if lens is None or source.time_axis is None:
            return y
        lens = tf.gather(lens, best)
        size = tf.reduce_max(tf.concat([lens, [0]], axis=0))
        ctx.define_lens(ctx.output.dims[source.time_axis], lens, size)
        return tf.gather(y, tf.range(size), axis=source.time_axis)
