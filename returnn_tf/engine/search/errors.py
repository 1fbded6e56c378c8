"""Errors of what a search decided on, wherever the network has a loss ``edit_distance`` on it."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Sequence

from returnn_tf.engine.search.labels import Labels
from returnn_tf.engine.search.report import Errors, align, table
from returnn_tf.engine.search.searcher import Hypothesis
from returnn_tf.layers.losses.decoded import EditDistanceLoss


class Decided(NamedTuple):
    """A layer with one hypothesis for each sequence, and what it is compared to."""

    layer: str
    target: str  # data key
    label_map: Mapping[int, int]  # labels which are replaced on both sides


def decided_layers(net: Any) -> List[Decided]:
    """The layers with the loss ``edit_distance`` against a data key whose output holds no beam any more.

    :param net: Network, planned for search
    """
    found = []
    for node in net.plan.nodes:
        for loss_node in node.losses:
            loss, target = loss_node.loss, loss_node.target
            if not isinstance(loss, EditDistanceLoss) or loss.ctc_decode or node.output.beam is not None:
                continue
            if target is not None and target.extern_key is not None:
                found.append(Decided(node.path, target.extern_key, loss.label_map or {}))
    return found


class ErrorReport:
    """Label and word errors of one layer over a dataset."""

    def __init__(self, decided: Decided, labels: Labels) -> None:
        """
        :param decided: which layer, and the references
        :param labels: of the layer
        """
        self.layer = decided.layer
        self._target = decided.target
        self._labels = labels
        self._map = decided.label_map
        self.label_errors, self.word_errors = Errors(), Errors()
        self._tables: Dict[int, str] = {}

    def add(self, batch: Any, hypotheses: Sequence[Sequence[Hypothesis]]) -> None:
        """Counts one batch.

        :param batch: Batch, with the references
        :param hypotheses: of each sequence
        """
        lens = batch.feed["%s/size0" % self._target]
        for row, found in enumerate(hypotheses):
            reference = self._mapped(batch.feed[self._target][row][: lens[row]])
            hypothesis = self._mapped(found[0].labels)
            words = align(self._labels.words(reference), self._labels.words(hypothesis))
            pairs = align([self._labels.text([i]) for i in reference], [self._labels.text([i]) for i in hypothesis])
            self.word_errors.add(words)
            self.label_errors.add(pairs)
            if any(ref != hyp for ref, hyp in pairs):
                self._tables[batch.seq_indices[row]] = table(batch.seq_tags[row], pairs)

    def state(self) -> Any:
        """What was counted, for :meth:`merge`."""
        return self.label_errors, self.word_errors, self._tables

    def merge(self, states: Iterable[Any]) -> None:
        """Counts what several processes counted instead of what this one did.

        :param states: of all processes, this one too
        """
        self.label_errors, self.word_errors, self._tables = Errors(), Errors(), {}
        for label_errors, word_errors, tables in states:
            self.label_errors.join(label_errors)
            self.word_errors.join(word_errors)
            self._tables.update(tables)

    def lines(self) -> List[str]:
        """The rates; the word errors only where words are not the labels."""
        lines = ["%s: label errors %s" % (self.layer, self.label_errors.text())]
        if (self.word_errors.total, self.word_errors.reference) != (
            self.label_errors.total,
            self.label_errors.reference,
        ):
            lines.append("%s: word errors %s" % (self.layer, self.word_errors.text()))
        return lines

    def tables(self) -> List[str]:
        """Reference and hypothesis of each sequence with errors, aligned, in the order of the corpus."""
        return [self._tables[index] for index in sorted(self._tables)]

    def _mapped(self, labels: Iterable[int]) -> List[int]:
        return [self._map.get(int(label), int(label)) for label in labels]
