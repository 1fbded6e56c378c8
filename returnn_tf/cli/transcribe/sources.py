"""What gives the hypotheses: a layer with labels of a search, or one with posteriors of CTC, which are decoded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional, Protocol

from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.compiler.requested import Output
from returnn_tf.config import Config
from returnn_tf.config.errors import SearchError, did_you_mean
from returnn_tf.config.settings.decoding import DecodingSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.datasets.core.read_ahead import default_threads
from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.engine.data.label_names import LabelNames
from returnn_tf.engine.decoding.decoder import Decoder
from returnn_tf.engine.decoding.greedy import GreedyDecoder
from returnn_tf.engine.decoding.posteriors import log_posteriors
from returnn_tf.engine.decoding.transcripts import hypotheses_of
from returnn_tf.engine.passes.forwarder import Forwarder, ForwardResult
from returnn_tf.engine.search.decoder_of_config import decoder_of_config
from returnn_tf.engine.search.labels import Labels
from returnn_tf.engine.search.posteriors import is_posterior_layer
from returnn_tf.engine.search.searcher import Searcher, SearchResult
from returnn_tf.engine.search.times import input_frames
from returnn_tf.engine.search.transcriber import Transcriber
from returnn_tf.engine.search.transcript_graph import TranscriptGraph, TranscriptOptions, wanted_layers
from returnn_tf.engine.search.words_of_choice import WORDS
from returnn_tf.engine.transcripts.transcript import Hypothesis
from returnn_tf.graph.layer import Node
from returnn_tf.layers.losses.ctc import CtcLoss
from returnn_tf.logging.log import log
from returnn_tf.tasks.search import output_layers

#: Settings of the beam search of CTC that the best path does not know.
_OF_BEAM = (*WORDS, "decode_priors")
#: Those that are never without a value: a beam search is wanted where the config sets one.
_OF_BEAM_IF_SET = (
    "decode_topology", "decode_word_score", "decode_unknown_score", "decode_loop_score",
    "decode_forward_score", "decode_blank_scale",
    "decode_beam_size", "decode_beam_threshold", "decode_labels_per_frame",
)  # fmt: skip


class HypothesisSource(Protocol):
    """What gives the hypotheses: a layer of the network."""

    used_data_keys: list[str]
    #: Why the times of words are not known; "" if they are.
    without_times: str
    #: Whether there may be several hypotheses of a sequence.
    has_several: bool

    def tensors(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the needed entries of a feed, as tensors."""

    def run(self, feed: Mapping[str, Any]) -> Any:
        """Compute one batch."""

    def hypotheses(self, result: Any, frames: Sequence[int]) -> list[Sequence[Hypothesis]]:
        """Return the hypotheses of each sequence, best first, with times from the begin of the sequence.

        :param result: of `run`
        :param frames: of features of each sequence
        """


class SearchedLayer:
    """A layer with the labels that a search has found.

    :param net: planned for search, with the outputs `wanted_layers`
    :param path: of the layer
    :param names: of the labels
    :param frame_seconds: between the frames of the features; None: unknown
    """

    def __init__(self, net: Network, path: str, names: Sequence[str], frame_seconds: Optional[float]) -> None:
        graph = TranscriptGraph(net.plan, path, TranscriptOptions.of(TaskSettings(net.config)))
        self._path = path
        self._searcher = Searcher(net, [path], with_losses=False, needed=graph.needed, further=graph.emit)
        self._transcriber = Transcriber(graph, Labels(names or None), frame_seconds)
        self.used_data_keys = self._searcher.used_data_keys
        self.tensors = self._searcher.tensors
        self.has_several = graph.node.output.beam is not None
        self.without_times = why_without_times(graph, frame_seconds)

    def run(self, feed: Mapping[str, Any]) -> SearchResult:
        """Search one batch."""
        result = self._searcher.run(feed)
        if any(result.not_ended.values()):
            log.warn(
                "The search for %d of the sequences of a batch did not end within max_seq_len steps, so their texts "
                "are cut off. If the audio is longer than that of the training: --segment SECONDS"
                % max(result.not_ended.values())
            )
        impossible = [found for (found, *_) in result.hypotheses[self._path] if found.score == -math.inf]
        if impossible:
            log.warn(
                "All hypotheses of %d of the sequences of a batch have a score of -inf, so their texts mean nothing. "
                "Raise beam_size." % len(impossible)
            )
        return result

    def hypotheses(self, result: SearchResult, frames: Sequence[int]) -> list[Sequence[Hypothesis]]:
        """Return the hypotheses of each sequence."""
        found = self._transcriber.transcripts([""] * len(frames), result.further, frames)
        return [each.hypotheses for each in found]


def why_without_times(graph: TranscriptGraph, frame_seconds: Optional[float]) -> str:
    """Return why the times of the labels of a search are not known; "" if they are.

    :param frame_seconds: between frames of features; None: unknown
    """
    if graph.times is None:
        return "the network has neither CTC on these labels nor attention weights that tell them"
    return without_seconds(frame_seconds)


def without_seconds(frame_seconds: Optional[float]) -> str:
    """Return why times are not known if only the duration of a frame may be unknown; "" if they are."""
    return "" if frame_seconds else "it is not known how long a frame is. Set search_frame_seconds"


class DecodedLayer:
    """A layer with posteriors of CTC, which are decoded.

    :param net: planned for search
    :param node: the layer
    :param decoder: of its posteriors
    :param labels: their names
    :param frame_seconds: between the frames of the features; None: unknown
    """

    def __init__(
        self, net: Network, node: Node, decoder: Decoder, labels: DecodedLabels, frame_seconds: Optional[float]
    ) -> None:
        self._forwarder = Forwarder(net, node.path)
        self._decoder, self._labels, self._frame_seconds = decoder, labels, frame_seconds
        self._confidence = TranscriptOptions.of(TaskSettings(net.config)).confidence
        settings = DecodingSettings(net.config)
        self._threads, self._nbest = settings.decode_threads or default_threads(), settings.decode_nbest
        self.used_data_keys = self._forwarder.used_data_keys
        self.tensors, self.run = self._forwarder.tensors, self._forwarder.run
        self.has_several = True  # by decode_nbest
        self.without_times = without_seconds(frame_seconds)

    def hypotheses(self, result: ForwardResult, frames: Sequence[int]) -> list[Sequence[Hypothesis]]:
        """Return the hypotheses of each sequence.

        :raises DataError: the values are no posteriors
        """
        (lengths,) = result.lengths.values()
        values = [row[:count] for row, count in zip(result.value, lengths)]
        with ThreadPoolExecutor(self._threads) as pool:
            return list(pool.map(self._decoded, values, frames))

    def _decoded(self, values: NDArray[Any], frames: int) -> Sequence[Hypothesis]:
        log_probs = log_posteriors(values, "Layer %r" % self._forwarder.layer)
        seconds = None
        if self._frame_seconds is not None:
            seconds = self._frame_seconds * input_frames(frames, len(values)) * len(values)
        found = self._decoder.decode(log_probs)
        return hypotheses_of(found, self._labels, log_probs, seconds, confidence=self._confidence, nbest=self._nbest)


def source_of(net: Network, path: str, names: LabelNames, frame_seconds: Optional[float]) -> HypothesisSource:
    """Return what gives the hypotheses of a layer.

    :param net: planned for search, with the outputs that `chosen_layer` has returned
    :param path: of the layer
    :param names: of the labels in the plan of the network
    :param frame_seconds: between the frames of the features; None: unknown
    :raises ConfigError: settings of a decoder do not fit
    :raises DataError: a file of a decoder is missing or does not fit
    """
    (node,) = net.plan.find_nodes([path])
    labels = node.output.sparse_dim
    if labels is not None:
        return SearchedLayer(net, path, names.names(labels), frame_seconds)
    return DecodedLayer(net, node, *decoder_of_layer(net.config, names, node), frame_seconds)


def decoder_of_layer(config: Config, names: LabelNames, node: Node) -> tuple[Decoder, DecodedLabels]:
    """Return what decodes the posteriors of a layer, and their labels.

    It is the beam search of task decode if the config has something that the best path does not know, or several
    hypotheses are wanted.
    """
    settings = DecodingSettings(config)
    wanted = any(map(settings.value, _OF_BEAM)) or any(map(settings.is_set, _OF_BEAM_IF_SET))
    if wanted or settings.decode_nbest > 1:
        beam = decoder_of_config(config, names, node)
        return beam, beam.labels
    dim = node.output.feature_dim
    assert dim is not None and dim.size is not None
    blank = names.blank(dim) if settings.decode_blank is None else settings.decode_blank
    assert blank is not None, "%s has no blank" % node.path
    return GreedyDecoder(dim.size, blank), DecodedLabels(names.names(dim))


def chosen_layer(
    config: Config, plan: Plan, names: LabelNames, layer: Optional[str], where: str
) -> tuple[str, list[Output]]:
    """Return the path of the layer with the hypotheses, and the outputs that the network must be planned with.

    If the settings have something for the decoder of CTC, it is ``decode_layer`` or the only layer with the loss ctc;
    otherwise ``search_output_layer``, or the layer "output" if it has labels, go before these.

    :param layer: path of the layer instead
    :param where: begin of errors
    :raises ConfigError: there is no such layer, or it does not fit
    """
    layers = plan.by_path()
    settings = DecodingSettings(config)
    decodes = any(map(settings.value, WORDS))
    path = layer or ""
    if not path and not decodes:
        path = output_layers(config)[0] if TaskSettings(config).search_output_layer else ""
        if not path and "output" in layers and layers["output"].output.sparse:
            path = "output"
    path = path or settings.decode_layer
    if not path:
        found = list(dict.fromkeys(loss.owner.path for loss in plan.losses if isinstance(loss.loss, CtcLoss)))
        if len(found) != 1:
            many = (
                "several have the loss 'ctc': %s" % ", ".join(map(repr, found)) if found else "none has the loss 'ctc'"
            )
            raise SearchError(
                "%s: it is not clear which layer has the hypotheses: %s. Name it: --layer NAME" % (where, many)
            )
        (path,) = found
    if path not in layers:
        raise SearchError("%s: there is no layer %r. %s" % (where, path, did_you_mean(path, layers)))
    node = layers[path]
    if node.output.sparse:
        if decodes:
            raise SearchError(
                "%s: layer %r has labels, but a lexicon, a language model and hot words are for posteriors of "
                "CTC, and for searches by 'choice'. Name a layer with those: --layer NAME" % (where, path)
            )
        return path, [path, *wanted_layers(plan, path, TranscriptOptions.of(TaskSettings(config)))]
    if not _is_posterior(node, names, settings):
        raise SearchError(
            "%s: layer %r gives %s, which is neither labels nor posteriors of CTC (with a known blank). "
            "Name a layer of class 'decide' or 'ctc_greedy', or the one with the loss 'ctc': --layer NAME"
            % (where, path, node.output)
        )
    return path, [path]


def _is_posterior(node: Node, names: LabelNames, settings: DecodingSettings) -> bool:
    """Return whether a layer has a distribution for each frame: over labels and a blank, or over states of an HMM."""
    dim = node.output.feature_dim
    if dim is None or not is_posterior_layer(node.output):
        return False
    is_hmm = settings.decode_topology == "hmm"
    return is_hmm or settings.decode_blank is not None or names.blank(dim) is not None
