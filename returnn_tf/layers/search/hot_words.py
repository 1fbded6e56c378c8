"""`hot_words`: scores of phrases that are expected, for the labels of a loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Callable, Optional, Union

from returnn_tf.config import ConfigError, DataError
from returnn_tf.config.option_types import Written
from returnn_tf.config.options import OptionValueError, finite, option
from returnn_tf.config.user_code import result_of_config
from returnn_tf.datasets.core.safe_files import path_of
from returnn_tf.datasets.vocabulary import Vocabulary, make_vocabulary
from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.datasets.vocabulary.hot_words import check_equal, hot_phrases, spelt
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.ops.sequence.phrases import BORDER, PhraseTables, next_states, phrase_tables, rewards
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class HotWordsPlan(LayerPlan):
    """The plan of `HotWordsLayer`.

    :param tables: of the phrases as labels
    """

    tables: PhraseTables


@register_layer("hot_words")
class HotWordsLayer(Planned[HotWordsPlan]):
    """What each label that may follow adds to the score of a hypothesis: the weights of words and phrases in it.

    The source is "prev:output", the label that was chosen before; the first one it sees, the initial output of the
    choice, counts as a border of words. Add the output to the log scores that the choice takes.

    A phrase gets its weight wherever it is, as whole words. While it is not complete, it has the share of its labels,
    which the label that leaves it takes away. Pieces of words (BPE, SentencePiece), characters and words are spelt by
    the vocabulary. The phrases are constants of the graph, also of exported ones.

    In a transducer, blank leaves the state and the score as they are, so no masked_computation is needed; in one, the
    mask has to be true in the first step. No gradient.

    Parameters: none. Lengths: one value per step of the loop.

    Example::

        vocab = {"class": "Vocabulary", "labels": ["old", "new", "york"], "unknown_label": None}
        network = {"output": {"class": "rec", "from": "data", "unit": {
            "hot": {"class": "hot_words", "from": "prev:label", "phrases": {"new york": 3.0}, "vocab": vocab},
            "am": {"class": "linear", "activation": "log_softmax", "n_out": 3, "from": "data:source"},
            "scores": {"class": "combine", "kind": "add", "from": ["am", "hot"]},
            "label": {"class": "choice", "input_type": "log_prob", "target": "classes", "beam_size": 2,
                "initial_output": 0, "independent_of_batch": True, "from": "scores"},
            "output": {"class": "copy", "from": "scores"}}}}
    """

    has_memory = True

    phrases: Annotated[
        Any,
        Written(
            Union[str, list[str], dict[str, float], Callable[..., Any]], "str | list[str] | dict[str, float] | function"
        ),
    ] = option(
        help="words and phrases: a file with one in each line, and behind a tab its weight; a list, a dict with "
        "weights, or a function that returns one of these"
    )
    weight: float = option(4.0, help="added to the log score for each phrase without a weight", check=finite)
    vocab: Annotated[Any, Written(Union[dict[str, Any], Vocabulary], "dict")] = option(
        help="the vocabulary that splits text into the labels of the source, as datasets take it"
    )
    blank: Optional[int] = option(None, help="a label that changes nothing, as the blank of transducers")
    end_label: Optional[int] = option(
        None, help="the label that ends a sequence, and so its last word; a space of characters is not needed before it"
    )

    def template(self, ctx: PlanContext) -> HotWordsPlan:
        """Infer the output [batch, labels]."""
        source = ctx.single_source()
        if not ctx.in_step:
            raise ctx.error("scores the labels of a loop step by step: put it into the unit of a 'rec' layer.")
        if source.sparse_dim is None or source.rank != 1 or source.batch_axis is None:
            raise ctx.error("the source must be one label per sequence, but it is %s." % source)
        size = ctx.need_static(source.sparse_dim, "the number of labels")
        tables = self._tables(self._labels(size), size)
        state = source.replace(dtype="int32", sparse_dim=None, vocab=None)
        ctx.loop_state("state", state, lambda emit: tf.zeros(emit.shape(state), "int32"))
        data = source.replace(dtype=ctx.float_dtype, sparse_dim=None, vocab=None)
        return HotWordsPlan(data.with_axis(1, ctx.new_feature(size), feature=True), tables)

    def _labels(self, size: int) -> DecodedLabels:
        """Return what spells words.

        :param size: number of labels of the source
        :raises ConfigError: the vocabulary is wrong, or not one of these labels
        """
        try:
            vocabulary = make_vocabulary(self.vocab, owner="vocab")
        except (ConfigError, DataError) as exc:
            raise OptionValueError(str(exc)) from exc
        if vocabulary.is_random:
            raise OptionValueError("vocab: it splits words at random. Remove what makes it do so.")
        specials = {name: getattr(self, name) for name in ("blank", "end_label")}
        for name, label in specials.items():
            if label is not None and not 0 <= label < size:
                raise OptionValueError("%s is %d, but the source has the labels 0 to %d." % (name, label, size - 1))
        known = vocabulary.num_labels
        others = sorted(set(range(known, size)) - set(specials.values()))
        if known > size or others:
            raise OptionValueError(
                "vocab has %d labels, but the source has %d. Give the vocabulary of these labels%s."
                % (known, size, "; of further ones, blank and end_label" if others else "")
            )
        return DecodedLabels(vocabulary.labels, vocabulary)

    def _tables(self, labels: DecodedLabels, size: int) -> PhraseTables:
        """Return the phrases as labels.

        :raises ConfigError: a phrase is none, can't be spelt, or has two weights
        """
        found, weights = [], []
        try:
            phrases = hot_phrases(self._given(), self.weight, "phrases")
            spellings = [spelt(phrase, labels) for phrase in phrases]
            check_equal(phrases, spellings)
            for phrase, spelling in zip(phrases, spellings):
                found.append(spelling)
                weights.append(phrase.weight)
                if self.end_label is not None and spelling[-1] == labels.space and len(spelling) > 1:
                    found.append((*spelling[:-1], self.end_label))
                    weights.append(phrase.weight)
        except DataError as exc:
            raise OptionValueError(str(exc)) from exc
        begins, ends = labels.borders(size)
        if self.end_label is not None:
            begins[self.end_label] = ends[self.end_label] = 1
        return phrase_tables(found, weights, begins, ends, self.blank)

    def _given(self) -> Union[str, Mapping[str, Any], Sequence[str]]:
        given = result_of_config("phrases", self.phrases) if callable(self.phrases) else self.phrases
        return given if isinstance(given, (list, tuple, Mapping)) else path_of(given, where="phrases")

    def emit(self, ctx: EmitContext) -> Any:
        """Emit gathers from the tables of the automaton."""
        tables, before = self.plan.tables, ctx.loop_state("state")  # 0 at the beginning, else the automaton's plus 1
        after = next_states(tables, tf.maximum(before - 1, BORDER), tf.cast(ctx.source(), tf.int32))
        state = tf.where(before == 0, BORDER, after)
        ctx.set_loop_state("state", state + 1)
        return tf.cast(rewards(tables, state), ctx.float_dtype)
