"""`word_scores`: a lexicon and an n-gram model, for the labels of a loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Optional, Union

from returnn_tf.config import DataError
from returnn_tf.config.errors import CtcDataError, CtcError, NativeError
from returnn_tf.config.option_types import Written
from returnn_tf.config.options import OptionValueError, at_least, finite, option
from returnn_tf.datasets.core.safe_files import path_of
from returnn_tf.datasets.vocabulary import Vocabulary
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Code
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.loop_labels import label_of_step, named_labels
from returnn_tf.native.decoding.ctc_search import ctc_ops
from returnn_tf.native.decoding.word_scores import SCALES, ScoredTokens, WordScores
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.portable import in_portable_ops
from returnn_tf.ops.sequence.lexicon import WordLexicon, kept_lexicon
from returnn_tf.ops.sequence.ngram_file import PlannedNGram, plan_ngram
from returnn_tf.ops.sequence.word_reader import WordReader
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class WordScoresPlan(LayerPlan):
    """The plan of `WordScoresLayer`.

    :param scores: without the model
    """

    scores: WordScores
    lexicon: Optional[WordLexicon]
    model: Optional[PlannedNGram]


@register_layer("word_scores")
class WordScoresLayer(Planned[WordScoresPlan]):
    """What each label that may follow adds to the score of a hypothesis: a lexicon, and an n-gram model.

    The source is "prev:output", the label that was chosen before; the first one it sees, the initial output of the
    choice, does not count. Add the output to the log scores that the choice takes. Without a lexicon, the model is one
    of labels.

    With a lexicon, labels that continue no word get -inf, and a word of the model is scored with its last label. Before
    that, the hypothesis has the best unigram of the words that it may become, so that the beam compares hypotheses at
    different places of a word. A sequence ends where a word does: by end_label, or, in a loop over the frames of a
    source, by the last frame. There the model's score of the end of a sentence is added. A sequence that max_seq_len
    cuts off may end within a word.

    In a transducer, blank leaves the state and the score as they are, so no masked_computation is needed; in one, the
    last frame is not seen. It runs on the CPU, in C++ that is compiled on first use; there is no other form, so exports
    without native ops can't have it. No gradient.

    Parameters: none. Lengths: one value per step of the loop.

    Example::

        import os, tempfile

        path = os.path.join(tempfile.mkdtemp(), "words.txt")
        with open(path, "w") as file:
            print("ab", "ba", sep=chr(10), file=file)
        vocab = {"class": "CharacterTargets", "labels": ["a", "b", " "], "unknown_label": None}
        network = {"output": {"class": "rec", "from": "data", "unit": {
            "words": {"class": "word_scores", "from": "prev:label", "lexicon": path, "vocab": vocab},
            "am": {"class": "linear", "activation": "log_softmax", "n_out": 3, "from": "data:source"},
            "scores": {"class": "combine", "kind": "add", "from": ["am", "words"]},
            "label": {"class": "choice", "input_type": "log_prob", "target": "classes", "beam_size": 2,
                "initial_output": 0, "independent_of_batch": True, "from": "scores"},
            "output": {"class": "copy", "from": "scores"}}}}
    """

    has_memory = True

    lexicon: Code = option(
        None,
        help="file with a word in each line, and behind it the names of its labels; without them it is spelt as texts; "
        "or a function that returns the path",
    )
    lm: Code = option(
        None,
        help="n-gram model: ARPA, also .gz, or a binary file of KenLM with probing hash tables; or a function that "
        "returns the path",
    )
    lm_level: Optional[str] = option(
        None,
        help="what the model has as words: word or label; by default words if there is a lexicon",
        choices=["word", "label"],
        needs="lm",
    )
    lm_scale: float = option(0.5, help="factor of the log probabilities of lm", check=finite, needs="lm")
    word_score: float = option(0.0, help="added for each word, without a lexicon for each label", check=finite)
    unknown_score: float = option(
        0.0, help="added for each word, of a model of labels for each label, that lm lacks", check=finite, needs="lm"
    )
    vocab: Annotated[Any, Written(Union[dict[str, Any], Vocabulary], "dict")] = option(
        help="the vocabulary that splits text into the labels of the source, as datasets take it"
    )
    blank: Optional[int] = option(None, help="a label that changes nothing, as the blank of transducers")
    end_label: Optional[int] = option(None, help="the label that ends a sequence")
    separator: str = option(
        "",
        help="label that may stand between words, as a silence; by default the space, if labels are characters",
        needs="lexicon",
    )
    readings: int = option(
        8,
        help="ways to divide the labels of a hypothesis into words that are kept, as homophones make several",
        check=at_least(1),
        needs="lexicon",
    )

    def template(self, ctx: PlanContext) -> WordScoresPlan:
        """Infer the output [batch, labels]."""
        source, size = label_of_step(ctx)
        if self.lexicon is None and self.lm is None and not self.word_score:
            raise ctx.error("has nothing to score labels by: give a lexicon, an n-gram model (lm), or a word_score.")
        if self.blank is not None and self.blank == self.end_label:
            raise OptionValueError("blank and end_label are both %d. Remove one of them." % self.blank)
        labels = named_labels(self.vocab, size, self.separator, blank=self.blank, end_label=self.end_label)
        try:
            lexicon = None
            if self.lexicon is not None:
                lexicon = kept_lexicon(path_of(self.lexicon, where="lexicon"), labels)
            model = None
            if self.lm is not None:
                model = plan_ngram(path_of(self.lm, where="lm"), self.lm_level, labels, size, lexicon)
        except (CtcError, DataError) as exc:
            raise OptionValueError(str(exc)) from exc
        scores = WordScores(
            size,
            self.blank,
            self.end_label,
            None if lexicon is None else labels.separator,
            1 if lexicon is None else self.readings,
            self.lm_scale,
            self.word_score,
            self.unknown_score,
            None if lexicon is None else lexicon.spellings(),
        )
        state = source.replace(dtype="int32", sparse_dim=None, vocab=None)
        state_size = scores.state_size(1 if model is None else model.order)
        state = state.with_axis(1, ctx.new_spatial(state_size, "state"))
        ctx.loop_state("state", state, lambda emit: tf.zeros(emit.shape(state), "int32"))
        data = source.replace(dtype=ctx.float_dtype, sparse_dim=None, vocab=None)
        return WordScoresPlan(data.with_axis(1, ctx.new_feature(size), feature=True), scores, lexicon, model)

    @property
    def needs_last_step(self) -> bool:
        """Return whether sequences end by the last frame."""
        return self.end_label is None

    def word_reader(self, scales: Mapping[str, float] = MappingProxyType({})) -> Optional[WordReader]:
        """Return what divides labels into the words of the lexicon; None without one."""
        changed: dict[str, Any] = dict(scales)
        lexicon, scores = self.plan.lexicon, dataclasses.replace(self.plan.scores, **changed)
        return None if lexicon is None else WordReader(lexicon, scores, self.plan.model)

    def _model(self, path: str) -> Optional[ScoredTokens]:
        """Return the model as the op takes it.

        :param path: of the layer, for errors
        :raises ConfigError: there is no compiler, or the graph is to have no native ops
        :raises DataError: the file is damaged, or of other words
        """
        if in_portable_ops():
            raise NativeError(
                "Layer %r (class 'word_scores') is computed by a native op, which has no form in plain TensorFlow, so "
                "a graph without native ops can't have it. Export to a target with such ops, without portable." % path
            )
        try:
            ctc_ops()
            return None if self.plan.model is None else self.plan.model.for_ops()
        except NativeOpError as exc:
            raise NativeError(
                "Layer %r (class 'word_scores') is computed by a program in C++, which can't be compiled here: %s. "
                "Install a compiler, e.g. g++, or remove the layer." % (path, exc)
            ) from exc
        except DataError as exc:
            raise CtcDataError("Layer %r (class 'word_scores'): %s" % (path, exc)) from exc

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the op.

        :raises ConfigError, DataError: see `_model`
        """
        labels, before, scores = tf.cast(ctx.source(), tf.int32), ctx.loop_state("state"), self.plan.scores
        loop = ctx.lowering.loop
        left = 2 if loop.lens is None or not self.needs_last_step else loop.lens - loop.index  # steps, from this one on
        left = tf.broadcast_to(left, tf.shape(labels))
        is_last = tf.equal(left, 1)
        if loop.is_last_block is not None:
            is_last = tf.logical_and(is_last, loop.is_last_block)
        model, scales = self._model(ctx.node.path), ctx.scales(*SCALES)
        after, added = scores.step(model, labels, is_last, before, **scales)
        ctx.set_loop_state("state", after)
        added = tf.where(left[:, None] > 0, added, 0.0)  # what follows the end of a shorter sequence is no label of it
        return tf.cast(added, ctx.float_dtype)
