"""Words of a lexicon in what a search found, if a layer in its loop has followed the lexicon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.engine.search.end_labels import loop_of_search
from returnn_tf.engine.search.labels import Labels, Spans
from returnn_tf.graph.layer import Node, ReadsWords


class LexiconWords(Labels):
    """Converts labels to the words that the search has scored, whatever their names tell.

    :param labels: their names
    :param read: see `Layer.word_reader`
    """

    def __init__(self, labels: Labels, read: ReadsWords) -> None:
        super().__init__(labels.names, labels.separator)
        self._read = read
        self._known = frozenset(read.words)

    def knows(self, word: str) -> bool:
        """Return whether the lexicon has a word."""
        return word in self._known

    @property
    def have_words(self) -> bool:
        """Return True."""
        return True

    def text(self, indices: Iterable[int]) -> str:
        """Return the words, separated by blanks."""
        return " ".join(self.words(indices))

    def spans(self, indices: Iterable[int]) -> Spans:
        """Return the words of the lexicon, see `Labels.spans`."""
        return self._read([int(index) for index in indices])


def with_words_of_search(
    labels: Labels, plan: Plan, node: Node, scales: Mapping[tuple[str, str], float] = MappingProxyType({})
) -> Labels:
    """Return the labels of a layer, which make up words of a lexicon where the search for them had one.

    :param plan: planned for search
    :param node: with hypotheses, or the best one
    :param scales: what the search had in place of options, by layer path and name
    """
    loop = loop_of_search(plan, node)
    if loop is None:
        return labels
    for path, found in plan.layers.items():
        if path.startswith(loop.path + "/"):
            read = found.layer.word_reader({name: value for (of, name), value in scales.items() if of == path})
            if read is not None:
                return LexiconWords(labels, read)
    return labels
