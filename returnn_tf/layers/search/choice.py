"""`choice`: the labels of a step, by search, by samples, or from the target."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional, Union

from returnn_tf.config.errors import SearchError, TargetError
from returnn_tf.config.options import LayerRef, LayerRefs, OptionValueError, option, probability
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.graph.same_labels import SameLabels, same_labels
from returnn_tf.layers.search.choice_scores import log_probs_of, valid_labels
from returnn_tf.layers.search.choice_step import ChoiceStep
from returnn_tf.layers.search.choice_truth import true_label
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True)
class SamplingOptions:
    """The options of ``scheduled_sampling``."""

    enable: bool = option(True, help="draw labels in training")
    gold_mixin_prob: Optional[float] = option(0.0, help="probability of taking the target instead", check=probability)


def gold_probability(given: Any) -> float:
    """Return the option ``scheduled_sampling`` as the probability of the target.

    :raises OptionValueError: neither a bool, a probability nor a dict, or not from 0 to 1
    """
    if isinstance(given, Mapping):
        opts = SamplingOptions(**given)
        gold = opts.gold_mixin_prob or 0.0 if opts.enable else 1.0
    elif isinstance(given, (bool, int, float)):
        gold = 1.0 - float(given)
    else:
        gold = -1.0
    if not 0.0 <= gold <= 1.0:
        raise OptionValueError(
            "scheduled_sampling must be True, a probability, or {'gold_mixin_prob': probability}, not %r." % (given,),
            topic="search",
        )
    return gold


_INPUT_TYPES = ("prob", "log_prob", "logits", "regression")
_RECOMBINE = (None, "max", "sum")


@dataclasses.dataclass(frozen=True, eq=False)
class ChoicePlan(LayerPlan):
    """The plan of `ChoiceLayer`.

    :param followed: the targets, if it gives their labels
    :param in_step: whether these are the labels of one step, where the loop determines its end step by step
    :param truths: the targets, if a search or the samples also see them
    :param source_beams: number of labels to keep of each source
    """

    followed: Sequence[Node] = ()
    in_step: bool = False
    truths: Sequence[Node] = ()
    source_beams: Sequence[int] = ()


@register_layer("choice")
class ChoiceLayer(Planned[ChoicePlan]):
    """The label of each step: in training the target; in search the labels of the best ``beam_size`` hypotheses.

    Search: ``score = prob_scale * log p(label) + base_beam_score_scale * score of the hypothesis``, the best of all
    hypotheses and labels, best first. An ended hypothesis continues with label 0 and an unchanged score; with
    length_normalization the score is multiplied by ``((t + 1) / t) ** length_normalization_exponent`` in step t, and at
    the end of the loop all scores are divided by the number of steps of the longest one. So the scores depend on the
    other sequences in the batch. With ``independent_of_batch`` they do not: hypotheses are compared by
    ``score / steps ** length_normalization_exponent`` with their own numbers of steps, which also gives the final
    scores, an ended hypothesis continues with its last label, and where the number of steps is known no padded frame
    is scored. (``max_seq_len`` remains one limit for the batch.)

    With ``early_stop`` a sequence is done when its best hypothesis has ended and no other could beat it in the steps
    that are left, given log probabilities, which are never positive. The best hypothesis by these scores is the same as
    without; the others may be unfinished.

    Several sources: of each the best ``source_beam_sizes`` labels are kept, and all combinations of them compete by the
    sum of their scores. The labels of source i are the part ``<layer>/out_<i>``; the layer itself has those of the
    first.

    The labels may be positions: frames of an axis that is the feature axis of the source. They end with the length of
    each sequence; positions behind it are never chosen.

    Recombination (``recombine``): of equivalent hypotheses the best one survives, with its own score ("max") or with
    the sum of the probabilities ("sum"). Hypotheses are equivalent if the layer ``recombine_by`` outputs the same
    number for them (an output of earlier steps, e.g. "prev:hash"; merged at the start of a step), or without it if
    their labels so far are the same, ignoring the label ``recombine_blank`` (the ``2 * beam_size`` best continuations
    are merged in the step in which they become equal). Only the survivors of hypotheses with the same future are
    compared, so recombination is exact where the scores depend only on the labels without blanks.

    Scheduled sampling (Bengio et al. 2015): in training, labels are drawn from the source instead of the target; with
    ``gold_mixin_prob`` the target is kept with this probability. Gradients do not flow through the labels.

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

    beam_size: int = option(help="number of hypotheses to keep per sequence")
    add_to_beam_scores: bool = option(
        True,
        help="add the scores of the labels to those of the hypotheses",
        unsupported="hypotheses are always ranked by all their labels; prob_scale 0 leaves this one out",
    )
    keep_beams: bool = option(False, help="continue every hypothesis by beam_size / (number of hypotheses) labels")
    search: Optional[bool] = option(None, help="False: follow the target in search too; True: search in training too")
    input_type: str = option("prob", choices=_INPUT_TYPES, help="kind of the source values")
    prob_scale: float = option(1.0, help="weight of the log probability of a label")
    base_beam_score_scale: float = option(1.0, help="weight of the score so far")
    random_sample_scale: float = option(0.0, help="scale of Gumbel noise on the scores")
    length_normalization: bool = option(True, help="normalise the scores by the number of steps")
    length_normalization_exponent: float = option(1.0, help="exponent while a hypothesis waits for the others")
    independent_of_batch: bool = option(False, help="search every sequence as if it were alone, see above")
    early_stop: bool = option(
        False, help="end the search of a sequence when nothing can beat its best ended hypothesis, see above"
    )
    custom_score_combine: Optional[Callable[..., Any]] = option(
        None, help="function (scores_in, scores_base, t, end_flags, ...) -> scores"
    )
    source_beam_sizes: Union[None, int, list[int]] = option(
        None, help="with several sources: number of labels to keep of each (default: beam_size)"
    )
    scheduled_sampling: Union[bool, float, dict[str, Any]] = option(
        False, help="True, the probability to draw a label, or a dict", group=SamplingOptions
    )
    cheating: Union[bool, str, None] = option(
        False,
        choices=(False, True, "exclusive", None),
        help="True: the target is always among the hypotheses; 'exclusive': only once",
    )
    recombine: Optional[str] = option(
        None, choices=_RECOMBINE, help="merge equivalent hypotheses: how to combine their scores"
    )
    recombine_by: Optional[LayerRef] = option(
        None, help="layer whose number identifies equivalent hypotheses", refs=True
    )
    recombine_blank: Optional[int] = option(None, help="label to ignore when hypotheses are compared")
    explicit_search_source: Optional[LayerRef] = option(
        None, help="the previous choice, if no source leads to it", refs=True
    )
    explicit_search_sources: Optional[LayerRefs] = option(
        None, help="the previous choices, if no source leads to them", refs=True
    )
    score_dependent: bool = option(
        True, help="in a single step for a decoder: whether it gets the scores, else it only gives the label"
    )
    num_beams: Optional[int] = option(None, help="obsolete", inert="beam_size applies")

    has_memory = True
    beam_size_option = "beam_size"

    @property
    def sums_log_probs(self) -> bool:
        """Return whether the score of a hypothesis is the sum of the log probabilities that its source has for it."""
        changes = self.custom_score_combine is not None or self.random_sample_scale or self.recombine or self.cheating
        scales = (self.prob_scale, self.base_beam_score_scale)
        return len(self.sources) == 1 and self.input_type != "regression" and scales == (1.0, 1.0) and not changes

    chooses_labels = True

    @classmethod
    def follows_target(cls, options: Mapping[str, Any], search: bool) -> bool:
        """Return whether it follows the target: in training the sources are ignored."""
        given = options.get("search")
        searches = search if given is None else bool(given)
        return bool(options.get("target")) and not searches and (search or not options.get("scheduled_sampling"))

    @classmethod
    def varies_by_step(cls, options: Mapping[str, Any]) -> bool:
        """Return False: followed targets are known for all steps, and a search keeps it in the loop anyway."""
        return False

    # --- plan ---

    def template(self, ctx: PlanContext) -> ChoicePlan:
        """Infer the output: labels, one per sequence in a step."""
        self._check_options(ctx)
        given = {
            "target": self.target,
            "search": self.search,
            "scheduled_sampling": self.scheduled_sampling,
        }
        if type(self).follows_target(given, ctx.search):
            return self._planned_targets(ctx)
        if not self.sources:
            raise OptionValueError(
                "has no source with scores to search. Name the layer with the probabilities of the labels in "
                "'from', and the reference for training in 'target'.",
                topic="search",
            )
        truths: list[Node] = []
        if self.cheating or self.samples:
            if not self.cheating or len(self.sources) == 1:
                truths = [ctx.depend(ctx.planner.target_node(ctx.node, t)) for t in self.target_names]
            else:
                raise SearchError("cheating needs a single source, but there are %d." % len(self.sources))
        return self._planned_search(ctx, truths)

    def _check_options(self, ctx: PlanContext) -> None:
        if self.beam_size < 1:
            raise OptionValueError("beam_size must be at least 1, got %d." % self.beam_size, topic="search")
        if self.cheating and not self.target:
            raise OptionValueError("cheating needs the option 'target', whose labels stay in the beam.", topic="search")
        if not self.target and self.search is False:
            raise OptionValueError(
                "with search=False it follows the target, but there is none. Give the option 'target'.", topic="search"
            )
        if self.early_stop and not self._scores_only_fall():
            raise OptionValueError(
                "early_stop is for scores that only fall: not with prob_scale below 0, another base_beam_score_scale "
                "than 1, custom_score_combine, random_sample_scale, cheating or recombine.",
                topic="search",
            )
        if self.recombine is None and (self.recombine_by is not None or self.recombine_blank is not None):
            raise OptionValueError(
                "recombine_by and recombine_blank need the option 'recombine': 'max' or 'sum'.", topic="search"
            )
        if self.recombine and self.recombine_by is None and (self.keep_beams or len(self.sources) > 1):
            raise OptionValueError(
                "recombine without recombine_by is for a single source and without keep_beams.", topic="search"
            )
        gold_probability(self.scheduled_sampling)
        if ctx.loop_dim is None and not ctx.in_step:
            raise SearchError("chooses labels in a loop: put it into the unit of a 'rec' layer.")

    def _scores_only_fall(self) -> bool:
        weights = self.prob_scale >= 0 and self.base_beam_score_scale == 1
        return weights and not (
            self.custom_score_combine or self.random_sample_scale or self.cheating or self.recombine
        )

    def mixes_sequences(self) -> bool:
        """Return whether the hypotheses of a sequence depend on when the search of the others ends."""
        return super().mixes_sequences() or (self.searches and not self.independent_of_batch)

    @property
    def searches(self) -> bool:
        """Return whether this layer chooses among hypotheses, once it is planned."""
        return not self._followed and not self.samples and self.input_type != "regression"

    @property
    def samples(self) -> bool:
        """Return whether it draws labels in training."""
        return bool(self.scheduled_sampling and self.target) and not self.search and not self.node.in_search

    @property
    def _followed(self) -> Sequence[Node]:
        return self.plan.followed if isinstance(self.node.found, ChoicePlan) else ()

    @property
    def followed_dims(self) -> list[Dim]:
        """Return the time axes of the targets that it follows, once it is planned."""
        return [node.output.dims[node.output.time_axis or 0] for node in self._followed]

    def _planned_targets(self, ctx: PlanContext) -> ChoicePlan:
        templates, followed = [], []
        for target in self.target_names:
            node = ctx.depend(ctx.planner.target_node(ctx.node, target))
            data, time = node.output, node.output.time_axis
            if time is None:
                raise SearchError("the target %r %s has no time axis." % (target, data))
            if not data.sparse and self.input_type != "regression":
                text = "chooses labels, but the target %r has none: %s. Name a data key or layer with labels."
                raise TargetError(text % (target, data))
            followed.append(node)
            data = data.without_axes([time]) if ctx.loop_dim is None else data.with_dim(time, ctx.loop_dim)
            templates.append(data.replace(time_axis=None, vocab=None))
        self._declare_parts(ctx, templates)
        return ChoicePlan(templates[0], followed=followed, in_step=ctx.loop_dim is None)

    def _declare_parts(self, ctx: PlanContext, templates: list[Data]) -> None:
        if len(templates) > 1 or len(self.sources) > 1:
            for i, data in enumerate(templates):
                ctx.sub_output("out_%d" % i, data)

    def _planned_search(self, ctx: PlanContext, truths: list[Node]) -> ChoicePlan:
        if self.input_type == "regression":
            return ChoicePlan(ctx.single_source(), truths=truths)
        targets = self.target_names
        if len(targets) not in (0, len(self.sources)):
            raise SearchError(
                "there are %d sources but %d targets; the i-th source has the scores of the labels of the i-th "
                "target." % (len(self.sources), len(targets))
            )
        padded: list[Optional[str]] = [*targets] or [None] * len(self.sources)
        templates = [self._labels_of(ctx, source.output, target) for source, target in zip(self.sources, padded)]
        self._declare_parts(ctx, templates)
        source_beams = self._source_beams(ctx)
        data = templates[0]
        if self.independent_of_batch and not self.samples:
            for i, part in enumerate(templates):
                ctx.loop_state("label_%d" % i, part, lambda emit, d=part: tf.zeros(tf.stack(emit.shape(d)), "int32"))
        if self.recombine and self.recombine_by is None and not self.samples:
            state = data.replace(dtype="int64", sparse_dim=None, feature_axis=None)
            ctx.loop_state("history", state, lambda emit: tf.zeros(tf.stack(emit.shape(state)), "int64"))
        return ChoicePlan(data, truths=truths, source_beams=source_beams)

    def _labels_of(self, ctx: PlanContext, source: Data, target: Optional[str]) -> Data:
        dim = ctx.need_feature(source)
        labels: Optional[Dim] = dim
        if dim.size is not None:
            labels = ctx.planner.target_data(ctx.node, target).sparse_dim if target else None
            if labels is None or labels.size != dim.size:
                labels = ctx.new_feature(dim.size, "%s:labels" % ctx.node.path)
        elif len(self.sources) > 1:
            raise SearchError(
                "a choice of positions, whose number is dynamic, has a single source, but not %s." % source
            )
        if self.n_out is not None and self.n_out != dim.size:
            size = dim if dim.size is None else dim.size
            raise SearchError("n_out is %d, but the source %s has scores for %s labels." % (self.n_out, source, size))
        data = source.without_axes([source.feature_axis] if source.feature_axis is not None else [])
        if data.rank != 1:
            raise SearchError("the source must be [batch, labels] in a step, but it is %s." % source)
        return data.replace(dtype="int32", sparse_dim=labels, vocab=None)

    def _source_beams(self, ctx: PlanContext) -> list[int]:
        """Return the number of labels to keep of each source."""
        sizes = self.source_beam_sizes
        count = len(self.sources)
        if sizes is None:
            sizes = [self.beam_size] * count
        elif isinstance(sizes, int):
            sizes = [sizes] * count
        if len(sizes) != count or not all(isinstance(size, int) and size > 0 for size in sizes):
            raise SearchError(
                "source_beam_sizes must be %d positive numbers, one for each source, not %r."
                % (count, self.source_beam_sizes)
            )
        return list(sizes)

    def same_labels(self) -> Iterator[SameLabels]:
        """Return that the scores are those of its labels."""
        if self.sources:
            yield from same_labels(self.source.output, self.node.output, self.recombine_blank)

    # --- emit ---

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the target, samples, or one step of the search."""
        if self._followed:
            labels = [self._followed_labels(ctx, node) for node in self._followed]
        elif self.input_type == "regression":
            return ctx.source()
        elif self.samples:
            labels = self._sampled(ctx)
        else:
            labels = ChoiceStep(ctx, self).run()
        for name in ctx.node.sub_outputs:
            ctx.set_sub_output(name, labels[int(name[len("out_") :])])
        return labels[0]

    def _followed_labels(self, ctx: EmitContext, node: Node) -> Any:
        """Return the target of all steps, or of the current one."""
        return tf.cast(true_label(ctx, node, 1), node.output.dtype) if self.plan.in_step else ctx.value(node)

    def _sampled(self, ctx: EmitContext) -> list[Any]:
        """Return labels drawn in training, [batch] for each source."""
        truths = [true_label(ctx, node, 1) for node in self.plan.truths]
        if not ctx.train:
            return truths
        gold = gold_probability(self.scheduled_sampling)
        keep = tf.random.stateless_uniform(tf.shape(truths[0]), ctx.seed("gold")) < gold
        labels = []
        for i, (source, truth) in enumerate(zip(self.sources, truths)):
            log_probs = log_probs_of(ctx, source, self.input_type)
            valid = valid_labels(ctx, source)
            log_probs = log_probs if valid is None else tf.where(valid, log_probs, float("-inf"))
            drawn = tf.random.stateless_categorical(log_probs, 1, ctx.seed("sample %d" % i), dtype=tf.int32)[:, 0]
            labels.append(tf.where(keep, truth, drawn))
        return labels
