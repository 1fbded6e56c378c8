"""Search with a network: the hypotheses of some layers for whole datasets, and the losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.lower import Lowered
from returnn_tf.compiler.network import Network
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config.errors import SearchError, did_you_mean
from returnn_tf.engine.passes.split_step import added_results, announce, halves, why_whole
from returnn_tf.engine.support.step_result import Packer, StepResult
from returnn_tf.graph.layer import Node
from returnn_tf.layers.search.decide import scores_of
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.util.lazy_tf import tf


class SearchedLabels(NamedTuple):
    """Label indices [labels], or other values [frames, ...], and their log score if they are the result of a search."""

    labels: NDArray[Any]
    score: Optional[np.float32] = None


class SearchResult(NamedTuple):
    """Result of the search for a batch."""

    hypotheses: dict[str, list[list[SearchedLabels]]]  # layer -> sequence -> best first
    losses: Optional[StepResult]  # None without losses
    not_ended: dict[str, int]  # loop -> sequences whose best hypothesis was cut off by max_seq_len
    references: dict[str, list[NDArray[Any]]] = {}  # layer -> labels of each sequence
    sinks: dict[str, Any] = {}  # path -> tensors that the layer passes on after the step
    further: dict[str, NDArray[Any]] = {}  # what the function ``further`` of the searcher emitted


class Searcher:
    """Traced function from a batch to the hypotheses of layers, and optionally the losses.

    :param net: Network, planned for search
    :param layers: paths
    :param with_losses: also compute the losses, which need targets
    :param references: layers whose labels the hypotheses are compared with
    :param needed: layers whose values ``further`` takes
    :param further: emits tensors from the graph of a batch, by name
    :param scales: options of layers, by path and name, that are inputs of the graph, see `LoweringOptions`
    :raises ConfigError: there is no such layer, or its output is not a sequence of labels
    """

    def __init__(
        self,
        net: Network,
        layers: Sequence[str],
        *,
        with_losses: bool = True,
        references: Sequence[Node] = (),
        needed: Sequence[Node] = (),
        further: Optional[Callable[[Lowered], dict[str, Any]]] = None,
        scales: Mapping[tuple[str, str], float] = MappingProxyType({}),
    ) -> None:
        assert net.search, "the network is not planned for search"
        self.net = net
        self.nodes: dict[str, Node] = {name: searched_node(net.plan, name) for name in layers}
        self.with_losses = with_losses and bool(net.plan.losses)
        self._references = list(dict.fromkeys(references))
        self._further = further
        outputs = [*self.nodes.values(), *self._references, *needed, *net.sink_nodes()]
        self._computed = list(dict.fromkeys(outputs))
        self.used_data_keys: list[str] = net.data_keys(self._computed, with_losses=self.with_losses)
        self._packer = Packer()
        #: The values of ``scales``, which may be changed between runs.
        self.scales = dict(scales)
        specs = [tf.TensorSpec([], tf.float32)] * len(self.scales)
        self._function = net.feed_function(self._emit, self.used_data_keys, specs=specs)

    def tensors(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the needed entries of a feed, as tensors."""
        return self._function.tensors(feed)

    def trace(self) -> None:
        """Trace the graph, which else the first batch does."""
        self._function.trace()

    def run(self, feed: Mapping[str, Any]) -> SearchResult:
        """Search one batch, in two halves if it does not fit into memory.

        :param feed: feed key -> array or tensor, batch axis first
        """
        tensors = self._function.tensors(feed)
        try:
            return self._run(tensors)
        except tf.errors.ResourceExhaustedError:
            why = why_whole(self.net, tensors, "" if self._further is None else "values of the whole batch are needed")
            announce("Search", self.net, tensors, why)
            if why:
                raise
            return self._joined(*[self._run(half) for half in halves(self.net, tensors)])

    def _joined(self, one: SearchResult, other: SearchResult) -> SearchResult:
        losses = None
        if one.losses is not None and other.losses is not None:
            losses = added_results(self.net, one.losses, other.losses)
        return SearchResult(
            {name: found + other.hypotheses[name] for name, found in one.hypotheses.items()},
            losses,
            {path: count + other.not_ended[path] for path, count in one.not_ended.items()},
            {name: labels + other.references[name] for name, labels in one.references.items()},
        )

    def _run(self, tensors: Mapping[str, Any]) -> SearchResult:
        found, given, packed, not_ended, sinks, further = self._function(
            tensors, *(tf.constant(value, tf.float32) for value in self.scales.values())
        )
        hypotheses = {
            name: _split(labels.numpy(), lens.numpy(), None if scores is None else scores.numpy())
            for name, (labels, lens, scores) in found.items()
        }
        references = {
            name: [row[:size] for row, size in zip(labels.numpy(), lens.numpy())]
            for name, (labels, lens, _) in given.items()
        }
        losses = self._packer.unpack(packed.numpy()) if self.with_losses else None
        cut_off = {path: int(count) for path, count in not_ended.items()}
        arrays = {name: value.numpy() for name, value in further.items()}
        return SearchResult(hypotheses, losses, cut_off, references, sinks, arrays)

    def _emit(self, feed: dict[str, Any], *scales: Any) -> Any:
        graph = self.net.lower(
            feed,
            train=False,
            outputs=self._computed,
            with_losses=self.with_losses,
            scales=dict(zip(self.scales, scales)),
        )
        found = {name: hypotheses_of(graph, node) for name, node in self.nodes.items()}
        given = {node.path: hypotheses_of(graph, node) for node in self._references}
        packed = self._packer.pack(graph, {"total_loss": graph.total_loss})
        further = {} if self._further is None else self._further(graph)
        graph.run_updates()
        return found, given, packed, dict(graph.lowering.search.not_ended), graph.sinks, further


def hypotheses_of(graph: Lowered, node: Node) -> tuple[Any, Any, Any]:
    """Return labels [batch * beam, labels], their lengths [batch * beam], and scores [batch, beam] or None.

    Without a beam, the scores are those of the decision, [batch, 1].
    """
    output = node.output
    batch = output.batch_axis
    assert batch is not None
    first = [batch, *output.dynamic_axes]
    labels = transpose(graph.lowering.values.outputs[node], first + [a for a in range(output.rank) if a not in first])
    rows = tf.shape(labels)[:1]
    lens = graph.lens_by_axis(output)
    if output.rank == 1:
        labels, count = tf.expand_dims(labels, 1), tf.ones(rows, tf.int32)
    elif lens:
        (count,) = lens.values()
    else:
        count = tf.shape(labels)[1]
    return labels, tf.broadcast_to(count, rows), scores_of(graph.lowering, node)


def searched_node(plan: Plan, name: str) -> Node:
    """Return the layer named by ``search_output_layer``.

    :param plan: planned for search
    :raises ConfigError: it does not exist, or its output is neither labels [batch] or [batch, time] nor other values
        [batch, time, ...] with lengths of at most one axis
    """
    layers = {node.path: node for node in plan.nodes if node.extern_key is None}
    if name not in layers:
        raise SearchError(
            "search_output_layer: layer %r is not part of the network when it searches. Nothing needs it, unless it "
            "has is_output_layer=True. %s" % (name, did_you_mean(name, layers))
        )
    node = layers[name]
    output = node.output
    if output.batch_axis is None or (output.sparse and output.rank > 2) or len(output.dynamic_axes) > 1:
        raise SearchError(
            "search_output_layer: layer %r gives %s, which is neither a sequence of labels nor an array for each "
            "sequence. Name the 'choice' or 'rec' layer which searches, or the 'decide' layer after it."
            % (name, output)
        )
    return node


def _split(labels: NDArray[Any], lens: NDArray[Any], scores: Optional[NDArray[Any]]) -> list[list[SearchedLabels]]:
    """Return the hypotheses of each sequence, best first; of equal scores the earlier one first."""
    if scores is None:
        return [[SearchedLabels(row[:size])] for row, size in zip(labels, lens)]
    beam = scores.shape[1]
    result = []
    for seq, seq_scores in enumerate(scores):
        order = np.argsort(-seq_scores, kind="stable")
        rows = [(seq * beam + entry, seq_scores[entry]) for entry in order]
        result.append([SearchedLabels(labels[row][: lens[row]], score) for row, score in rows])
    return result
