"""A trained network that recognises features of audio: by its search, or by decoding posteriors of CTC."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Protocol

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.derived import derived
from returnn_tf.config.errors import CommandError, FileError, SearchError, did_you_mean
from returnn_tf.config.options import option
from returnn_tf.config.settings.decoding import DecodingSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.datasets.audio import AudioFeatures
from returnn_tf.datasets.audio.frame_seconds import seconds_of_frame
from returnn_tf.datasets.config import batch_options_from_config, dataset_from_config, nested_options
from returnn_tf.datasets.core.batches.batch_options import derived_keys
from returnn_tf.datasets.core.read_ahead import default_threads
from returnn_tf.datasets.synthetic.static import StaticDataset
from returnn_tf.engine.data.data_source import evaluation_names
from returnn_tf.engine.data.fit import check_fits
from returnn_tf.engine.data.label_names import LabelNames
from returnn_tf.engine.decoding.decoder import Decoder
from returnn_tf.engine.decoding.greedy import GreedyDecoder
from returnn_tf.engine.decoding.labels import DecodedLabels
from returnn_tf.engine.decoding.posteriors import log_posteriors
from returnn_tf.engine.decoding.transcripts import hypotheses_of
from returnn_tf.engine.passes.dataset_pass import DatasetPass, Step, steps_over_sequences
from returnn_tf.engine.passes.forwarder import Forwarder, ForwardResult
from returnn_tf.engine.search.decoder_of_config import decoder_of_config
from returnn_tf.engine.search.labels import Labels
from returnn_tf.engine.search.posteriors import is_posterior_layer
from returnn_tf.engine.search.searcher import Searcher, SearchResult
from returnn_tf.engine.search.times import input_frames
from returnn_tf.engine.search.transcriber import Transcriber
from returnn_tf.engine.search.transcript_graph import ENTROPY, TranscriptGraph, wanted_layers
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.engine.transcripts.transcript import Hypothesis
from returnn_tf.graph.layer import Node
from returnn_tf.layers.losses.ctc import CtcLoss
from returnn_tf.logging.log import log
from returnn_tf.tasks.search import output_layers, search_plan, transcript_options
from returnn_tf.tasks.setting_checks import check_all_settings

_NAME = "transcribe"
_NO_LIMIT = 1 << 40
#: Settings of the beam search of CTC that the best path does not know; the first ones are for words of a task.
_OF_DECODER = ("decode_lexicon", "decode_lm", "decode_hot_words")
_OF_BEAM = (*_OF_DECODER, "decode_priors")
#: Options of datasets with a function that changes the data of the dataset inside.
_CHANGES = ("map_seq", "map_seq_stream")


@dataclass(frozen=True)
class AudioOfConfig:
    """The dataset of a config that computes features of audio.

    :param dataset: its name in the config
    :param features: computes them
    :param window: option of the dataset that joins neighbouring frames
    :param frame_seconds: between frames; None: unknown
    """

    dataset: str
    features: AudioFeatures
    window: int
    frame_seconds: Optional[float]

    @classmethod
    def find(cls, config: Config, name: Optional[str]) -> AudioOfConfig:
        """Return the first of the datasets to search, to evaluate and to train on that has the option ``audio``.

        What changes audio at random is for training, and left out.

        :param name: of the dataset instead
        :raises ConfigError: there is none, or its features are changed by a function after they are computed
        """
        known = list(dict.fromkeys(["search_data", *evaluation_names(config), "train"]))
        names = [name] if name else known
        for each in names:
            outer: list[Mapping[str, Any]] = []
            for options in nested_options(config, each):
                audio = options.get("audio")
                if not isinstance(audio, Mapping):
                    outer.append(options)
                    continue
                changed = [key for key in _CHANGES for one in outer if one.get(key) is not None]
                if changed:
                    raise FileError(
                        "transcribe: the function %r changes what the dataset %r has computed of audio, so it is not "
                        "known which features the network expects. Name a dataset without it: --data NAME"
                        % (changed[0], each)
                    )
                features = AudioFeatures.make({**audio, "random_permute": None}, owner="dataset %r" % each)
                return cls(each, features, int(options.get("window") or 1), seconds_of_frame(audio))
        there = [each for each in names if list(nested_options(config, each))]
        if name and not there:
            raise CommandError("transcribe: --data: there is no dataset %r. %s" % (name, did_you_mean(name, known)))
        raise FileError(
            "transcribe: the features of the model can't be made from audio: no dataset of the config has the option "
            "'audio' (%s). What is in files of features is recognised by ++task search." % (", ".join(there) or "none")
        )


class BatchSize(NamedTuple):
    """How large a batch may be.

    :param frames: with padding; 0: without limit
    :param seqs: sequences; 0: without limit
    """

    frames: int
    seqs: int

    @classmethod
    def of(cls, config: Config, key: str) -> BatchSize:
        """Return the sizes for a data key by the settings ``batch_size`` and ``max_seqs``."""
        options = batch_options_from_config(config, train=False)
        frames, seqs = options.get("batch_size") or 0, options.get("max_seqs") or 0
        if isinstance(frames, Mapping):
            frames = frames.get(key, 0)
        return cls(max(int(frames), 0), max(int(seqs), 0))

    def options(self) -> dict[str, int]:
        """Return the options of `Dataset.batches`."""
        return {"batch_size": self.frames or _NO_LIMIT, "max_seqs": self.seqs or -1}

    def is_reached(self, frames: int, seqs: int, times: int) -> bool:
        """Return whether some sequences are as much as this many batches."""
        return bool((self.frames and frames >= times * self.frames) or (self.seqs and seqs >= times * self.seqs))


class HypothesisSource(Protocol):
    """What gives the hypotheses: a layer of the network."""

    used_data_keys: list[str]
    #: Why the times of words are not known; "" if they are.
    without_times: str

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
        graph = TranscriptGraph(net.plan, path, transcript_options(TaskSettings(net.config)))
        self._searcher = Searcher(net, [path], with_losses=False, needed=graph.needed, further=graph.emit)
        self._transcriber = Transcriber(graph, Labels(names or None), frame_seconds)
        self.used_data_keys = self._searcher.used_data_keys
        self.tensors = self._searcher.tensors
        self.without_times = ""
        if graph.times is None:
            self.without_times = "the network has neither CTC on these labels nor attention weights that tell them"
        elif frame_seconds is None:
            self.without_times = "it is not known how long a frame is. Set search_frame_seconds"

    def run(self, feed: Mapping[str, Any]) -> SearchResult:
        """Search one batch."""
        result = self._searcher.run(feed)
        if any(result.not_ended.values()):
            log.warn(
                "The search for %d of the sequences of a batch did not end within max_seq_len steps, so their texts "
                "are cut off. If the audio is longer than that of the training: --segment SECONDS"
                % max(result.not_ended.values())
            )
        return result

    def hypotheses(self, result: SearchResult, frames: Sequence[int]) -> list[Sequence[Hypothesis]]:
        """Return the hypotheses of each sequence."""
        tags = [""] * len(frames)
        return [
            found.hypotheses for found in self._transcriber.transcripts(tags, result.further, {"data/size0": frames})
        ]


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
        self._by_entropy = TaskSettings(net.config).search_confidence == ENTROPY
        self._threads = DecodingSettings(net.config).decode_threads or default_threads()
        self.used_data_keys = self._forwarder.used_data_keys
        self.tensors, self.run = self._forwarder.tensors, self._forwarder.run
        self.without_times = "" if frame_seconds else "it is not known how long a frame is. Set search_frame_seconds"

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
        return hypotheses_of(found, self._labels, log_probs, seconds, by_entropy=self._by_entropy)


def decoder_of(config: Config, names: LabelNames, node: Node) -> tuple[Decoder, DecodedLabels]:
    """Return what decodes the posteriors of a layer, and their labels.

    It is the beam search of task decode if there is something that the best path does not know, or several hypotheses
    are wanted.

    :raises ConfigError: settings of the decoder do not fit
    :raises DataError: a file of it is missing or does not fit
    """
    settings = DecodingSettings(config)
    if any(map(settings.value, _OF_BEAM)) or settings.decode_nbest > 1:
        beam = decoder_of_config(config, names, node)
        return beam, beam.labels
    dim = node.output.feature_dim
    assert dim is not None and dim.size is not None
    blank = names.blank(dim) if settings.decode_blank is None else settings.decode_blank
    assert blank is not None, "%s has no blank" % node.path
    return GreedyDecoder(dim.size, blank), DecodedLabels(names.names(dim))


class Recogniser:
    """Recognises features of audio by a trained network.

    :param config: with the checkpoint, for task search
    :param layer: path of the layer with labels, or with posteriors of CTC; default: see `_chosen`
    :param data: name of the dataset whose features are meant, see `AudioOfConfig.find`
    :raises ConfigError: there is no such layer, no checkpoint, or audio alone does not give what the network needs
    :raises DataError: the checkpoint or a vocabulary is damaged
    """

    def __init__(self, config: Config, *, layer: Optional[str] = None, data: Optional[str] = None) -> None:
        check_all_settings(config)
        self._config = config
        self.audio = AudioOfConfig.find(config, data)
        plan = search_plan(config)
        names = LabelNames(plan, config, self.audio.dataset)
        path, is_searched = _chosen(config, plan, names, layer)
        wanted = wanted_layers(plan, path, transcript_options(TaskSettings(config))) if is_searched else []
        self.net, choice = load_network(config, search=True, losses=False, outputs=[path, *wanted])
        self.checkpoint = choice.path or ""
        self.source = self._source(path)
        self._key = self._key_of_audio()
        self.batch_size = BatchSize.of(config, self._key)
        self._pass: DatasetPass[Any] = DatasetPass(
            _NAME, self.source.tensors, lambda tensors, batch: self.source.run(tensors), shows_progress=False
        )

    def _source(self, path: str) -> HypothesisSource:
        """Return what gives the hypotheses of a layer chosen by `_chosen`."""
        (node,) = self.net.plan.find_nodes([path])
        names = LabelNames(self.net.plan, self.net.config, self.audio.dataset)
        labels = node.output.sparse_dim
        seconds = TaskSettings(self._config).search_frame_seconds or self.audio.frame_seconds
        if labels is not None:
            return SearchedLayer(self.net, path, names.names(labels), seconds)
        return DecodedLayer(self.net, node, *decoder_of(self._config, names, node), seconds)

    def _key_of_audio(self) -> str:
        """Return the data key whose data are the features.

        :raises ConfigError: the network needs others, or declares other features
        """
        used = self.source.used_data_keys
        keys = [key for key in used if key not in derived_keys(used, [])]
        dense = [key for key in keys if not self.net.extern_data[key].sparse]
        if len(keys) != 1 or not dense:
            raise FileError(
                "transcribe: the network needs the data keys %s to recognise something, but audio gives features only"
                % ", ".join(map(repr, keys))
            )
        spec = self.audio.features.spec
        example = np.zeros([1, *(size or 1 for size in spec.shape)], spec.dtype)
        remark = check_fits(
            self._dataset([example], [""], keys[0]), self.audio.dataset, keys[0], self.net.extern_data[keys[0]]
        )
        if remark:
            log.warn(remark)
        return keys[0]

    def _dataset(self, features: Sequence[NDArray[Any]], tags: Sequence[str], key: str) -> StaticDataset:
        spec: dict[str, Any] = {"class": _Parts, "data": [{key: each} for each in features], "tags": list(tags)}
        if self.audio.window > 1:
            spec["window"] = self.audio.window
        dataset = dataset_from_config(derived(self._config, {_NAME: spec}), _NAME)
        assert isinstance(dataset, StaticDataset)
        return dataset

    def recognise(
        self, features: Sequence[NDArray[Any]], tags: Sequence[str]
    ) -> Generator[tuple[list[int], list[Sequence[Hypothesis]], Step], None, None]:
        """Yield for each batch which sequences it has, their hypotheses, best first, and the step.

        Sequences of similar lengths are together in a batch.

        :param features: of each sequence [frames, ...]
        :param tags: for errors
        :raises DataError: an op failed, e.g. since memory ran out
        """
        order = np.argsort([-len(each) for each in features], kind="stable")
        dataset = self._dataset(features, tags, self._key)
        steps = steps_over_sequences(
            self._pass, dataset, 1, self.source.used_data_keys, seq_order=order, **self.batch_size.options()
        )
        with contextlib.closing(steps):
            for step in steps:
                indices = [int(index) for index in step.batch.seq_indices]
                yield indices, self.source.hypotheses(step.result, [len(features[index]) for index in indices]), step


def _chosen(config: Config, plan: Plan, names: LabelNames, layer: Optional[str]) -> tuple[str, bool]:
    """Return the path of the layer with the hypotheses, and whether it has labels; else it has posteriors of CTC.

    If the settings have something for the decoder of CTC, it is ``decode_layer`` or the only layer with the loss ctc;
    otherwise ``search_output_layer``, or the layer "output" if it has labels, go before these.

    :param layer: path of the layer instead
    :raises ConfigError: there is no such layer, or it does not fit
    """
    layers = plan.by_path()
    settings = DecodingSettings(config)
    decodes = any(map(settings.value, _OF_DECODER))
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
                "transcribe: it is not clear which layer has the hypotheses: %s. Name it: --layer NAME" % many
            )
        (path,) = found
    if path not in layers:
        raise SearchError("transcribe: there is no layer %r. %s" % (path, did_you_mean(path, layers)))
    node = layers[path]
    if node.output.sparse:
        if decodes:
            raise SearchError(
                "transcribe: layer %r has labels, but a lexicon, a language model and hot words are for posteriors of "
                "CTC. Name a layer with those: --layer NAME" % path
            )
        return path, True
    if not _is_posterior(node, names, settings):
        raise SearchError(
            "transcribe: layer %r gives %s, which is neither labels nor posteriors of CTC (with a known blank). "
            "Name a layer of class 'decide' or 'ctc_greedy', or the one with the loss 'ctc': --layer NAME"
            % (path, node.output)
        )
    return path, False


def _is_posterior(node: Node, names: LabelNames, settings: DecodingSettings) -> bool:
    """Return whether a layer has a distribution over labels and a blank for each frame."""
    dim = node.output.feature_dim
    if dim is None or not is_posterior_layer(node.output):
        return False
    return settings.decode_blank is not None or names.blank(dim) is not None


class _Parts(StaticDataset):
    """Features in memory, with the names of their audio as tags."""

    @dataclass
    class Options(StaticDataset.Options):
        tags: list[str] = option(help="of the sequences")

    def tag(self, index: int) -> str:
        """Return the name of the audio."""
        return str(self.opts.tags[index])
