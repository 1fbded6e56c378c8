"""Error counts of search results, for every loss ``edit_distance`` in the network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.engine.search.end_labels import end_labels, without_end
from returnn_tf.engine.search.labels import Labels
from returnn_tf.engine.search.lexicon_words import LexiconWords
from returnn_tf.engine.search.searcher import SearchedLabels
from returnn_tf.engine.transcripts.edit_distance import Errors, align, table
from returnn_tf.graph.layer import Node
from returnn_tf.layers.losses.decoded import EditDistanceLoss
from returnn_tf.logging.text import counted


class Decided(NamedTuple):
    """A layer with one hypothesis per sequence, and its reference."""

    loss: str  # its name
    layer: str
    target: Node  # a data key, or a layer
    label_map: Mapping[int, int]  # labels which are replaced on both sides
    ends: frozenset[int]  # labels which are left out at the end on both sides


def decided_layers(plan: Plan) -> list[Decided]:
    """Return the layers of a search without beam that have the loss ``edit_distance``."""
    found = []
    for loss_node in plan.losses:
        loss, target, node = loss_node.loss, loss_node.target, loss_node.owner
        if not isinstance(loss, EditDistanceLoss) or loss.ctc_decode or node.output.beam is not None:
            continue
        if target is not None:
            ends = end_labels(plan, node, target.output)
            found.append(Decided(loss_node.name, node.path, target, loss.label_map or {}, ends))
    return found


def ends_text(decided: Decided) -> str:
    """Return a note on the labels that do not count as errors; "" if all do."""
    if not decided.ends:
        return ""
    return "task search counts the errors of %r without the end label %s, also where a reference has it" % (
        decided.layer,
        " or ".join(map(str, sorted(decided.ends))),
    )


class ErrorReport:
    """Label and word errors of one layer over a dataset.

    :param decided: the layer and its reference
    :param labels: of the layer
    :param words: what makes words of its hypotheses; default: the labels
    :param references: words by sequence tag, of which some may be missing; default: those that the labels of the
        reference make up
    """

    def __init__(
        self,
        decided: Decided,
        labels: Labels,
        words: Optional[Labels] = None,
        references: Optional[Mapping[str, Sequence[str]]] = None,
    ) -> None:
        self.loss, self.layer = decided.loss, decided.layer
        self.target = decided.target
        self._labels, self._words, self._references = labels, words or labels, references
        self._known = 0  # words of references that the lexicon has
        self._map = decided.label_map
        self._ends = decided.ends
        self._left_out = 0  # references with an end label
        self.label_errors, self.word_errors = Errors(), Errors()
        self.last = Errors()  #: label errors of the last batch
        self._tables: dict[int, str] = {}

    @property
    def leaves_out(self) -> bool:
        """Return whether there are end labels, which the loss counts."""
        return bool(self._ends)

    def add(self, batch: Any, hypotheses: Sequence[Sequence[SearchedLabels]], references: Sequence[Any]) -> None:
        """Count the errors of one batch.

        :param hypotheses: of each sequence
        :param references: labels of each sequence
        """
        self.last = Errors()
        for row, (found, given) in enumerate(zip(hypotheses, references)):
            reference = self._mapped(without_end(given, self._ends))
            self._left_out += len(reference) < len(given)
            hypothesis = self._mapped(without_end(found[0].labels, self._ends))
            pairs = align([self._labels.text([i]) for i in reference], [self._labels.text([i]) for i in hypothesis])
            self._add_words(batch.seq_tags[row], reference, found[0].labels, hypothesis)
            self.last.add(pairs)
            if any(ref != hyp for ref, hyp in pairs):
                self._tables[batch.seq_indices[row]] = table(batch.seq_tags[row], pairs)
        self.label_errors.join(self.last)

    def _add_words(self, tag: str, reference: Sequence[int], found: Iterable[int], mapped: Sequence[int]) -> None:
        """Count the word errors of a sequence.

        :param found: labels of the hypothesis
        :param mapped: these labels, without the end, as they are compared
        """
        if self._references is not None and tag not in self._references:
            return
        wanted = self._labels.words(reference) if self._references is None else self._references[tag]
        said = self._words.words(found if isinstance(self._words, LexiconWords) else mapped)
        self.word_errors.add(align(wanted, said))
        if isinstance(self._words, LexiconWords):
            self._known += sum(map(self._words.knows, wanted))

    def state(self) -> Any:
        """Return the counts, for `merge`."""
        return self.label_errors, self.word_errors, self._tables, self._left_out, self._known

    def merge(self, states: Iterable[Any]) -> None:
        """Replace the counts by the total of the states of all processes, this one included."""
        self.label_errors, self.word_errors, self._tables, self._left_out = Errors(), Errors(), {}, 0
        self._known = 0
        for label_errors, word_errors, tables, left_out, known in states:
            self.label_errors.join(label_errors)
            self.word_errors.join(word_errors)
            self._tables.update(tables)
            self._left_out += left_out
            self._known += known

    @property
    def no_words(self) -> str:
        """Return why there are no word errors, although the search had a lexicon; "" if there are, or it had none."""
        has_words = self._references is not None or self._known or not self.word_errors.reference
        if has_words or not isinstance(self._words, LexiconWords):
            return ""
        return (
            "%s: the lexicon has no word that the references make up, so errors of labels count, not of words. "
            "decode_reference names a data key whose labels make up the words." % self.layer
        )

    def lines(self) -> list[str]:
        """Return the error rates; word errors as `counted` has them."""
        lines = ["%s: label errors %s" % (self.layer, self.label_errors.text())]
        what, errors = self.counted()
        return lines if errors is self.label_errors else [*lines, "%s: %s %s" % (self.layer, what, errors.text())]

    def counted(self) -> tuple[str, Errors]:
        """Return "word errors" and these, if there are words, which are not the labels themselves; else of labels.

        There are, with references of words, or a lexicon that has some of theirs.
        """
        words, labels = self.word_errors, self.label_errors
        if self._references is not None or isinstance(self._words, LexiconWords):
            return ("label errors", labels) if self.no_words else ("word errors", words)
        same = (words.total, words.reference) == (labels.total, labels.reference)
        return ("word errors", words) if self._labels.have_words and not same else ("label errors", labels)

    def remark(self) -> str:
        """Return a note on the label that the errors leave out; "" if no reference has it."""
        if not self._left_out:
            return ""
        names = ", ".join("%d (%s)" % (label, self._labels.text([label])) for label in sorted(self._ends))
        return "%s: the end label %s of %s does not count" % (
            self.layer,
            names,
            counted(self._left_out, "reference"),
        )

    def tables(self) -> list[str]:
        """Return the alignment of reference and hypothesis for each sequence with errors, in corpus order."""
        return [self._tables[index] for index in sorted(self._tables)]

    def _mapped(self, labels: Iterable[int]) -> list[int]:
        return [self._map.get(int(label), int(label)) for label in labels]
