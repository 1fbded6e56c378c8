"""Error counts of search results, for every loss ``edit_distance`` in the network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from returnn_tf.engine.search.labels import Labels
from returnn_tf.engine.search.report import Errors, align, table
from returnn_tf.engine.search.searcher import Hypothesis
from returnn_tf.layers.losses.decoded import EditDistanceLoss
from returnn_tf.network.network import Network


class Decided(NamedTuple):
    """A layer with one hypothesis per sequence, and its reference."""

    layer: str
    target: str  # data key
    label_map: Mapping[int, int]  # labels which are replaced on both sides


def decided_layers(net: Network) -> list[Decided]:
    """Return layers without beam that have the loss ``edit_distance`` against a data key.

    :param net: Network, planned for search
    """
    found = []
    for loss_node in net.plan.losses:
        loss, target, node = loss_node.loss, loss_node.target, loss_node.owner
        if not isinstance(loss, EditDistanceLoss) or loss.ctc_decode or node.output.beam is not None:
            continue
        if target is not None and target.extern_key is not None:
            found.append(Decided(node.path, target.extern_key, loss.label_map or {}))
    return found


class ErrorReport:
    """Label and word errors of one layer over a dataset.

    :param decided: the layer and its reference
    :param labels: of the layer
    """

    def __init__(self, decided: Decided, labels: Labels) -> None:
        self.layer = decided.layer
        self._target = decided.target
        self._labels = labels
        self._map = decided.label_map
        self.label_errors, self.word_errors = Errors(), Errors()
        self._tables: dict[int, str] = {}

    def add(self, batch: Any, hypotheses: Sequence[Sequence[Hypothesis]]) -> None:
        """Count the errors of one batch.

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
        """Return the counts, for `merge`."""
        return self.label_errors, self.word_errors, self._tables

    def merge(self, states: Iterable[Any]) -> None:
        """Replace the counts by the total of several processes.

        :param states: of all processes, including this one
        """
        self.label_errors, self.word_errors, self._tables = Errors(), Errors(), {}
        for label_errors, word_errors, tables in states:
            self.label_errors.join(label_errors)
            self.word_errors.join(word_errors)
            self._tables.update(tables)

    def lines(self) -> list[str]:
        """Return the error rates; word errors only if they differ from the label errors."""
        lines = ["%s: label errors %s" % (self.layer, self.label_errors.text())]
        if (self.word_errors.total, self.word_errors.reference) != (
            self.label_errors.total,
            self.label_errors.reference,
        ):
            lines.append("%s: word errors %s" % (self.layer, self.word_errors.text()))
        return lines

    def tables(self) -> list[str]:
        """Return the alignment of reference and hypothesis for each sequence with errors, in corpus order."""
        return [self._tables[index] for index in sorted(self._tables)]

    def _mapped(self, labels: Iterable[int]) -> list[int]:
        return [self._map.get(int(label), int(label)) for label in labels]
