"""Search in a dataset from Python: hypotheses as text, beside the references, if any."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.compiler.requested import Output, with_outputs
from returnn_tf.config.errors import SearchError
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.datasets import Dataset
from returnn_tf.engine.passes.dataset_pass import DatasetPass, steps_over_sequences
from returnn_tf.engine.search.end_labels import end_labels, without_end
from returnn_tf.engine.search.labels import Labels, labels_of
from returnn_tf.engine.search.lexicon_words import with_words_of_search
from returnn_tf.engine.search.searcher import Searcher, SearchResult
from returnn_tf.engine.search.transcriber import Transcriber
from returnn_tf.engine.search.transcript_graph import TranscriptGraph, TranscriptOptions, wanted_layers
from returnn_tf.engine.transcripts.edit_distance import Errors, align
from returnn_tf.engine.transcripts.transcript import Transcript
from returnn_tf.util.html import paragraph, shortened, table

_MOST_ROWS = 50


@dataclass(frozen=True)
class Recognized:
    """The result of the search for one sequence.

    :param tag: name of the sequence
    :param text: the best hypothesis; the words of the lexicon, if the search had one
    :param labels: its label indices [labels]
    :param score: its log score; None without a beam
    :param n_best: (score, text) of all hypotheses, best first; only the best one without a beam
    :param reference: text of the target, without the label that ends the search; None if the dataset has none
    :param transcript: words and labels with times and confidence, and the parts of the scores; if they were asked for
    """

    tag: str
    text: str
    labels: NDArray[Any]
    score: Optional[float]
    n_best: list[tuple[Optional[float], str]]
    reference: Optional[str]
    transcript: Optional[Transcript] = None
    _pairs: Sequence[tuple[Optional[str], Optional[str]]] = ()

    @property
    def errors(self) -> Errors:
        """Return the label errors; nothing is counted without a reference."""
        found = Errors()
        found.add(self._pairs)
        return found


class SearchResults(Sequence[Recognized]):
    """The results for several sequences: a list, which notebooks show as a table."""

    def __init__(self, found: Sequence[Recognized]) -> None:
        self._found = list(found)

    def __getitem__(self, index: Any) -> Any:
        return SearchResults(self._found[index]) if isinstance(index, slice) else self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    @property
    def errors(self) -> Errors:
        """Return the label errors of all sequences with a reference."""
        total = Errors()
        for each in self._found:
            total.join(each.errors)
        return total

    def worst(self, count: int = 10) -> SearchResults:
        """Return the sequences with the most errors."""
        return SearchResults(sorted(self._found, key=lambda each: -each.errors.total)[:count])

    def _summary(self) -> str:
        rate = ", label errors %s" % self.errors.text() if self.errors.reference else ""
        return "%d sequences%s" % (len(self._found), rate)

    def __repr__(self) -> str:
        return "<SearchResults %s>" % self._summary()

    def _repr_html_(self) -> str:
        rows = []
        for each in self._found[:_MOST_ROWS]:
            score = "" if each.score is None else "%.3f" % each.score
            errors = str(each.errors.total) if each.reference is not None else ""
            rows.append((each.tag, shortened(each.reference or ""), shortened(each.text), errors, score))
        more = paragraph("The first %d." % _MOST_ROWS) if len(self._found) > _MOST_ROWS else ""
        header = ("sequence", "reference", "hypothesis", "errors", "log score")
        return paragraph(self._summary()) + table(header, rows, numbers=[3, 4]) + more


def search(
    net: Network,
    data: Union[Dataset, Mapping[str, Any]],
    layer: str = "output",
    *,
    epoch: int = 1,
    batch_size: int = 5000,
    max_seqs: int = 100,
    num_seqs: Optional[int] = None,
    transcripts: bool = False,
) -> SearchResults:
    """Search in a dataset.

    :param net: planned for search: ``Network.from_config(config, search=True)``, with the parameters of a training
    :param data: a dataset, or the dict of one
    :param layer: path of the layer with the hypotheses, as in ``search_output_layer``
    :param epoch: of the dataset, for its order
    :param batch_size: frames of a batch
    :param max_seqs: sequences of a batch
    :param num_seqs: number of sequences, from the first; default: all
    :param transcripts: also words with times and confidence, by the settings ``search_times``, ``search_confidence``
        and ``search_score_layers`` of the network's config, for which the network is planned once more
    :raises ConfigError: the network does not search, or has no such layer; with transcripts, if it has no labels
    """
    if not net.search:
        raise SearchError(
            "The network is not planned for search: Network.from_config(config, search=True), then "
            "set_param_values(trained.get_param_values()) or load_checkpoint."
        )
    dataset = Dataset.from_config(data)
    graph = None
    if transcripts:
        options = TranscriptOptions.of(TaskSettings(net.config))
        net = _with_outputs(net, wanted_layers(net.plan, layer, options))
        graph = TranscriptGraph(net.plan, layer, options)
    needed, further = ([], None) if graph is None else (graph.needed, graph.emit)
    searcher = Searcher(net, [layer], with_losses=False, needed=needed, further=further)
    node = searcher.nodes[layer]
    target = next(iter(node.layer.target_names or ()), NetworkSettings(net.config).target)
    labels = labels_of(node.output, dataset, net.extern_data, target)
    reference = _reference_key(target, dataset, net)
    if labels.names is None and reference is not None and node.output.sparse:
        labels = labels_of(net.extern_data[reference], dataset, net.extern_data, reference)  # an end has no name
    words = with_words_of_search(labels, net.plan, node)
    keys = list(dict.fromkeys([*searcher.used_data_keys, *([] if reference is None else [reference])]))
    ends = frozenset() if reference is None else end_labels(net.plan, node, net.extern_data[reference])
    transcriber = None if graph is None else Transcriber.of(graph, net, dataset, target)
    found: list[Recognized] = []
    one_pass: DatasetPass[SearchResult] = DatasetPass(
        "search", searcher.tensors, lambda tensors, batch: searcher.run(tensors)
    )
    over = steps_over_sequences(one_pass, dataset, epoch, keys, batch_size=batch_size, max_seqs=max_seqs)
    with contextlib.closing(over) as steps:
        for step in steps:
            of_batch: Sequence[Optional[Transcript]] = [None] * len(step.batch.seq_tags)
            if transcriber is not None:
                frames = transcriber.frames_of_batch(step.batch.feed)
                of_batch = transcriber.transcripts(step.batch.seq_tags, step.result.further, frames)
            found += _of_batch(step.batch, step.result.hypotheses[layer], (labels, words), reference, ends, of_batch)
            if num_seqs is not None and len(found) >= num_seqs:
                break
    return SearchResults(found if num_seqs is None else found[:num_seqs])


def _with_outputs(net: Network, outputs: Sequence[Output]) -> Network:
    """Return a network with further outputs and the same parameters."""
    if not outputs:
        return net
    config = with_outputs(net.config, outputs)
    planned = Network(plan_from_config(config, search=True), config, seed=net.seed)
    planned.set_param_values(net.get_param_values())
    return planned


def _reference_key(target: Optional[str], dataset: Dataset, net: Network) -> Optional[str]:
    """Return the data key with the references: the target of the layer, else the first labels of the dataset."""
    for key in [*([target] if target is not None else []), *dataset.target_list]:
        data = net.extern_data.get(key)
        if key in dataset.data_keys and data is not None and data.sparse and data.rank == 2:
            return key
    return None


def _of_batch(
    batch: Any,
    found: Any,
    how: tuple[Labels, Labels],
    reference: Optional[str],
    ends: frozenset[int],
    transcripts: Sequence[Optional[Transcript]],
) -> Iterator[Recognized]:
    """Yield the results for a batch.

    :param how: to write labels, and the words that hypotheses have
    """
    labels, words = how
    for row, hypotheses in enumerate(found):
        best = hypotheses[0]
        text, pairs = None, []
        if reference is not None:
            wanted = without_end(batch.feed[reference][row][: batch.feed[reference + "/size0"][row]], ends)
            text = labels.text(wanted) if words is labels else " ".join(labels.words(wanted))
            said = without_end(best.labels, ends)
            pairs = align([labels.text([i]) for i in wanted], [labels.text([i]) for i in said])
        n_best = [(None if each.score is None else float(each.score), words.text(each.labels)) for each in hypotheses]
        tag, transcript = batch.seq_tags[row], transcripts[row]
        yield Recognized(tag, n_best[0][1], best.labels, n_best[0][0], n_best, text, transcript, pairs)
