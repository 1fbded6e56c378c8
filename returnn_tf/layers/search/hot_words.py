"""`hot_words`: scores of phrases that are expected, for the labels of a loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Callable, Optional, Union

from returnn_tf.config import DataError
from returnn_tf.config.option_types import Written
from returnn_tf.config.options import OptionValueError, finite, option
from returnn_tf.config.user_code import result_of_config
from returnn_tf.datasets.core.safe_files import path_of
from returnn_tf.datasets.vocabulary import Vocabulary
from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.datasets.vocabulary.hot_words import check_equal, hot_phrases, spelt
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.loop_labels import label_of_step, named_labels
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
        source, size = label_of_step(ctx)
        labels = named_labels(self.vocab, size, blank=self.blank, end_label=self.end_label)
        tables = self._tables(labels, size)
        state = source.replace(dtype="int32", sparse_dim=None, vocab=None)
        ctx.loop_state("state", state, lambda emit: tf.zeros(emit.shape(state), "int32"))
        data = source.replace(dtype=ctx.float_dtype, sparse_dim=None, vocab=None)
        return HotWordsPlan(data.with_axis(1, ctx.new_feature(size), feature=True), tables)

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
