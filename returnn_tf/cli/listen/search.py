"""Words of a search with ``choice`` that has a label or a blank for each frame, as of a transducer, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.listen.outputs import StreamedUtterance, StreamOutputs, Values
from returnn_tf.cli.transcribe.sources import why_without_times
from returnn_tf.compiler.lower import Lowered
from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import SearchError
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.engine.data.label_names import LabelNames
from returnn_tf.engine.search.end_labels import loop_of_search, without_end
from returnn_tf.engine.search.joined_hypotheses import JoinedHypotheses
from returnn_tf.engine.search.labels import Labels
from returnn_tf.engine.search.times import Times
from returnn_tf.engine.search.transcriber import Transcriber
from returnn_tf.engine.search.transcript_graph import TranscriptGraph, TranscriptOptions
from returnn_tf.engine.transcripts.transcript import Hypothesis
from returnn_tf.export.streaming import StreamingModel, sources_name
from returnn_tf.util.lazy_tf import tf

#: What the graph of a block has beside what transcripts are made of: the frames that the search has gone on by.
_STEPS = "frames of the search"
_PART = "part "


class StreamedSearch(StreamOutputs):
    """A layer with the labels of a search.

    :param net: planned for search, with the outputs `wanted_layers`
    :param path: of the layer with all hypotheses, or of a decision between them
    :param names: of the labels
    :param frame_seconds: between frames of features; None: unknown
    :raises ConfigError: the labels are not those of a search, or their times need all of the audio
    """

    def __init__(self, net: Network, path: str, names: LabelNames, frame_seconds: Optional[float]) -> None:
        graph = TranscriptGraph(net.plan, path, TranscriptOptions.of(TaskSettings(net.config)))
        loop = loop_of_search(net.plan, graph.node)
        if loop is None or graph.node.output.beam is None:
            raise SearchError(
                "listen: layer %r (class %r) has labels of neither CTC nor a search. Name a layer with posteriors of "
                "CTC, or one of class 'ctc_greedy' or 'decide': --layer NAME"
                % (path, net.plan.layers[path].layer.class_name)
            )
        ends_by_itself = loop.ending.end is not None  # then the network is refused for that
        if graph.times is not None and graph.times.kind is Times.ATTENTION and not ends_by_itself:
            raise SearchError(
                "listen: the times of labels are those of attention weights, %r, for which all of the audio has to be "
                "known. Set search_times to another layer" % graph.times.path
            )
        super().__init__([node.path for node in graph.needed])
        self._graph, self._loop_dim = graph, loop.loop_dim
        self.sources, self.ends = sources_name(graph.node), graph.ends
        labels = graph.node.output.sparse_dim
        assert labels is not None
        self.transcriber = Transcriber(graph, Labels(names.names(labels) or None), frame_seconds)
        self.without_times = why_without_times(graph, frame_seconds)
        if graph.times is not None and graph.times.kind is Times.PATH and graph.times.path == graph.node.path:
            self.without_pauses = "each frame has a label"

    def further(self, graph: Lowered) -> dict[str, Any]:
        """Emit what transcripts are made of."""
        return {**self._graph.emit(graph), _STEPS: graph.lowering.dims.get_size(self._loop_dim)}

    def frames(self, found: Values) -> int:
        """Return the frames that the search has gone on by."""
        return int(found[_STEPS])

    def begin(self) -> StreamedUtterance:
        """Begin an utterance."""
        return _Searched(self)

    @property
    def parts(self) -> list[str]:
        """Return the names of the parts of scores in the graph."""
        return [_PART + name for name in self._graph.options.parts]


class _Searched(StreamedUtterance):
    """An utterance by a search.

    :param source: the search
    """

    def __init__(self, source: StreamedSearch) -> None:
        self._source = source
        self._joined = JoinedHypotheses()
        self._scores: NDArray[Any] = np.zeros(1, np.float32)  # of the hypotheses so far
        self._said = 0  # labels of the best one

    def add(self, found: Values) -> None:
        arrays = {name: value.numpy() for name, value in found.items() if not name.startswith("state_")}
        self._scores = arrays["scores"][0]
        values = [dict(self._values(arrays, entry)) for entry in range(len(self._scores))]
        self._joined.add(values, arrays[self._source.sources][0].tolist())
        before, self._said = self._said, len(self._labels())
        grown = self._said > before
        self.spoken = self.spoken or grown
        self.silence = 0 if grown else self.silence + self._source.frames(found)

    def _values(self, arrays: Values, entry: int) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield what a hypothesis has for the frames of the block, without padding."""
        yield "labels", arrays["labels"][entry][: arrays["lens"][entry]]
        if "times" in arrays:
            row = entry if len(arrays["times"]) == len(arrays["labels"]) else 0
            yield "times", arrays["times"][row][: arrays["frames"][row]]
        if "sure" in arrays:
            yield "sure", arrays["sure"][entry]
        for name in self._source.parts:
            yield name, arrays[name][entry][: arrays["steps"][entry]]

    @property
    def _best(self) -> int:
        return int(np.argmax(self._scores))

    def _labels(self) -> NDArray[Any]:
        labels = self._joined.values(self._best).get("labels", np.zeros(0, np.int32))
        return np.asarray(without_end(labels, self._source.ends))

    def text(self) -> str:
        return " ".join(self._source.transcriber.labels.words(self._labels()))

    def hypotheses(self, frames: int) -> Sequence[Hypothesis]:
        every = [self._joined.values(entry) for entry in range(len(self._scores))]
        if not every[0]:
            return [Hypothesis((), ())]
        lens = np.array([len(each["labels"]) for each in every])
        padded = [np.pad(each["labels"], (0, int(lens.max()) - len(each["labels"]))) for each in every]
        found = {"labels": np.stack(padded), "lens": lens, "scores": self._scores[None]}
        for name in every[0]:
            if name != "labels":
                found[name] = np.stack([each[name] for each in every])
        for name, lengths in (("times", "frames"), *((part, "steps") for part in self._source.parts)):
            if name in found:
                found[lengths] = np.full(len(every), found[name].shape[1])
        (transcript,) = self._source.transcriber.transcripts([""], found, [frames])
        return transcript.hypotheses

    def states_after(self, model: StreamingModel, states: Values) -> Values:
        """Return the states of the best hypothesis: the search begins anew after it."""
        return model.begun_anew(states, tf.constant([self._best]))
