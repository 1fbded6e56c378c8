"""Words of posteriors of CTC, block by block: by the best path, or by the search of ``returnn-tf decode``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.listen.outputs import StreamedUtterance, StreamOutputs, Values, first_row
from returnn_tf.cli.transcribe.sources import decoder_of_layer, without_seconds
from returnn_tf.compiler.network import Network
from returnn_tf.config.settings.decoding import DecodingSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.engine.data.label_names import LabelNames
from returnn_tf.engine.decoding.decoder import Decoder
from returnn_tf.engine.decoding.greedy import GreedyDecoder
from returnn_tf.engine.decoding.posteriors import log_posteriors
from returnn_tf.engine.decoding.transcripts import hypotheses_of
from returnn_tf.engine.search.times import input_frames
from returnn_tf.engine.search.transcript_graph import TranscriptOptions
from returnn_tf.engine.transcripts.transcript import Hypothesis
from returnn_tf.export.tensor_info import graph_name
from returnn_tf.graph.layer import Node
from returnn_tf.layers.search.ctc_greedy import CtcGreedyLayer


class StreamedPosteriors(StreamOutputs):
    """A layer with posteriors of CTC.

    :param net: the network
    :param path: of the layer, or of a ``ctc_greedy`` above it
    :param names: of the labels
    :param frame_seconds: between frames of features; None: unknown
    :raises ConfigError: the settings of the decoder do not fit
    :raises DataError: a file of the decoder is missing or does not fit
    """

    def __init__(self, net: Network, path: str, names: LabelNames, frame_seconds: Optional[float]) -> None:
        (chosen,) = net.plan.find_nodes([path])
        node = posteriors_of(chosen)
        super().__init__([node.path])
        self.decoder, self.labels = _decoder(net, chosen, names)
        self.frame_seconds = frame_seconds
        self.confidence = TranscriptOptions.of(TaskSettings(net.config)).confidence
        self.nbest = DecodingSettings(net.config).decode_nbest
        self._is_logits = isinstance(chosen.layer, CtcGreedyLayer) and chosen.layer.input_type == "logits"
        self._name, data = graph_name(node.path), node.output
        assert data.feature_axis is not None and data.time_axis is not None
        self._labels_last = data.feature_axis < data.time_axis  # batch-major, so that the batch axis does not matter
        self._lens = "%s_size%d" % (self._name, 1 if self._labels_last else 0)
        self._where = "Layer %r" % node.path
        self.without_times = without_seconds(frame_seconds)
        self.without_pauses = "" if self.decoder.blank is not None else "the labels have no blank"

    def frames(self, found: Values) -> int:
        """Return the frames of the posteriors of a block."""
        return int(first_row(found[self._lens]))

    def begin(self) -> StreamedUtterance:
        """Begin an utterance."""
        return _Decoded(self)

    def log_probs(self, found: Values) -> NDArray[np.float32]:
        """Return the logs of the posteriors of a block, [frames, labels].

        :raises DataError: the values are no posteriors
        """
        values = first_row(found[self._name])
        values = (values.T if self._labels_last else values)[: self.frames(found)]
        if self._is_logits:
            values = values - np.logaddexp.reduce(values, axis=1, keepdims=True)
        return log_posteriors(values, self._where)


def posteriors_of(chosen: Node) -> Node:
    """Return the layer with the posteriors that a ``ctc_greedy`` is computed from, or the layer itself."""
    return chosen.layer.source if isinstance(chosen.layer, CtcGreedyLayer) else chosen


def _decoder(net: Network, node: Node, names: LabelNames) -> tuple[Decoder, DecodedLabels]:
    if not isinstance(node.layer, CtcGreedyLayer):
        return decoder_of_layer(net.config, names, node)
    dim, labels = node.layer.source.output.feature_dim, node.output.sparse_dim
    assert dim is not None and dim.size is not None and labels is not None
    return GreedyDecoder(dim.size, node.layer.plan.blank), DecodedLabels(names.names(labels))


class _Decoded(StreamedUtterance):
    """An utterance by posteriors.

    :param source: of the posteriors
    """

    def __init__(self, source: StreamedPosteriors) -> None:
        self._source = source
        self._decoding = source.decoder.begin()
        self._log_probs: list[NDArray[np.float32]] = []

    def add(self, found: Values) -> None:
        log_probs = self._source.log_probs(found)
        self._log_probs.append(log_probs)
        self._decoding.advance(log_probs)
        labels = np.flatnonzero(log_probs.argmax(axis=1) != self._source.decoder.blank)
        self.silence = len(log_probs) - 1 - int(labels[-1]) if len(labels) else self.silence + len(log_probs)
        self.spoken = self.spoken or len(labels) > 0

    def text(self) -> str:
        labels, words = self._decoding.best()
        if words is None:
            own = self._source.labels
            words = [word for word, _, _ in own.spelling.spans([own.name(label) for label in labels])]
        return " ".join(words)

    def hypotheses(self, frames: int) -> Sequence[Hypothesis]:
        source = self._source
        empty = np.zeros((0, source.decoder.num_labels), np.float32)
        log_probs = np.concatenate(self._log_probs) if self._log_probs else empty
        step, count = source.frame_seconds, len(log_probs)
        seconds = None if step is None else step * input_frames(frames, count) * count
        found = self._decoding.results()
        return hypotheses_of(found, source.labels, log_probs, seconds, confidence=source.confidence, nbest=source.nbest)
