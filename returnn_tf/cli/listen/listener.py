"""Audio to words while it comes: features, network, decoder and the ends of utterances, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.listen.network import BlockNetwork
from returnn_tf.cli.transcribe.audio import AudioPart
from returnn_tf.cli.transcribe.job import joined
from returnn_tf.cli.transcribe.recogniser import key_of_audio
from returnn_tf.cli.transcribe.sources import chosen_layer, decoder_of_layer
from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandError, SearchError
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.datasets.audio.stream import FeatureStream, check_streams
from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.engine.data.audio_of_config import AudioOfConfig
from returnn_tf.engine.data.label_names import LabelNames
from returnn_tf.engine.decoding.decoder import Decoder
from returnn_tf.engine.decoding.greedy import GreedyDecoder
from returnn_tf.engine.decoding.posteriors import log_posteriors
from returnn_tf.engine.decoding.transcripts import hypotheses_of
from returnn_tf.engine.search.times import input_frames
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.engine.transcripts.transcript import Transcript
from returnn_tf.graph.layer import Node
from returnn_tf.layers.search.ctc_greedy import CtcGreedyLayer
from returnn_tf.tasks.search import search_plan, transcript_options
from returnn_tf.tasks.setting_checks import check_all_settings

_NAME = "listen"


@dataclass(frozen=True)
class Update:
    """What is known after a block.

    :param text: the words of the utterance so far
    :param seconds: of audio on which it is based
    :param transcript: of the utterance, if it has ended
    """

    text: str
    seconds: float
    transcript: Optional[Transcript] = None


class StreamingRecogniser:
    """A trained network with what recognises audio while it comes, for any number of listeners.

    :param config: with the checkpoint, for task search
    :param layer: path of the layer with posteriors of CTC, or with labels of class "ctc_greedy"; default: that of
        ``returnn-tf transcribe``
    :param data: name of the dataset whose features are meant
    :param block: frames of features that are computed at once; default: about 0.1 seconds
    :raises ConfigError: features, network or search need all of the audio; or see `Recogniser`
    :raises DataError: the checkpoint or a vocabulary is damaged
    """

    def __init__(
        self, config: Config, *, layer: Optional[str] = None, data: Optional[str] = None, block: Optional[int] = None
    ) -> None:
        check_all_settings(config)
        self.audio = AudioOfConfig.find(config, data, _NAME)
        check_streams(self.audio.features)
        if self.audio.window > 1:
            raise SearchError(
                "listen: dataset %r: option 'window' joins frames with those after them, which is not done while audio "
                "comes. A layer 'window' in the network may look back." % self.audio.dataset
            )
        plan = search_plan(config, [layer] if layer else [])
        path, _ = chosen_layer(config, plan, LabelNames(plan, config, self.audio.dataset), layer, _NAME)
        chosen = plan.by_path()[path]
        posteriors = _posteriors_of(chosen)
        self.net, choice = load_network(config, search=True, losses=False, outputs=[posteriors.path, path])
        self.checkpoint = choice.path or ""
        names = LabelNames(self.net.plan, config, self.audio.dataset)
        self.decoder, self.labels = _decoder(self.net, path, names)
        self._is_logits = isinstance(chosen.layer, CtcGreedyLayer) and chosen.layer.input_type == "logits"
        #: Seconds between frames of features; None: unknown.
        self.frame_seconds = TaskSettings(config).search_frame_seconds or self.audio.frame_seconds
        used = self.net.data_keys(self.net.plan.find_nodes([posteriors.path]), with_losses=False)
        key = key_of_audio(config, self.audio, self.net.extern_data, used, _NAME)
        self.network = BlockNetwork(self.net, posteriors.path, key, self.frame_seconds, block)
        self._where = "Layer %r" % posteriors.path
        self.confidence = transcript_options(TaskSettings(config)).confidence

    @property
    def block_seconds(self) -> Optional[float]:
        """Return the audio of a block; None if it is not known how long a frame is."""
        return None if self.frame_seconds is None else self.network.block * self.frame_seconds

    def log_probs(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Return the logs of posteriors of the layer.

        :raises DataError: the values are no posteriors
        """
        if self._is_logits:
            values = values - np.logaddexp.reduce(values, axis=1, keepdims=True)
        return log_posteriors(values, self._where)


def _posteriors_of(chosen: Node) -> Node:
    """Return the layer with the posteriors that a layer with labels is made of, or itself."""
    if isinstance(chosen.layer, CtcGreedyLayer):
        return chosen.layer.source
    if chosen.output.sparse:
        raise SearchError(
            "listen: layer %r (class %r) has the labels of a search over all of the audio. Name a layer with "
            "posteriors of CTC, or one of class 'ctc_greedy': --layer NAME" % (chosen.path, chosen.layer.class_name)
        )
    return chosen


def _decoder(net: Network, path: str, names: LabelNames) -> tuple[Decoder, DecodedLabels]:
    (node,) = net.plan.find_nodes([path])
    if not isinstance(node.layer, CtcGreedyLayer):
        return decoder_of_layer(net.config, names, node)
    dim, labels = node.layer.source.output.feature_dim, node.output.sparse_dim
    assert dim is not None and dim.size is not None and labels is not None
    return GreedyDecoder(dim.size, node.layer.plan.blank), DecodedLabels(names.names(labels))


class Listener:
    """Recognises one stream of audio.

    :param recogniser: what it uses
    :param sample_rate: in Hz
    :param tag: of the transcripts
    :param pause: seconds without a label after which an utterance ends; None: all of the audio is one
    :raises ConfigError: pauses can't be measured
    """

    def __init__(
        self, recogniser: StreamingRecogniser, sample_rate: int, tag: str = "", pause: Optional[float] = None
    ) -> None:
        self._recogniser, self._rate, self._tag, self._pause = recogniser, sample_rate, tag, pause
        self._blank = recogniser.decoder.blank
        if pause is not None and (self._blank is None or recogniser.frame_seconds is None):
            fault = "the labels have no blank" if self._blank is None else "set search_frame_seconds"
            raise CommandError("listen: --pause: it is not known how long no label comes: %s" % fault)
        self._features = FeatureStream(recogniser.audio.features, sample_rate)
        self._waiting: list[NDArray[Any]] = []
        self._states = recogniser.network.begin()
        self._samples = 0
        self._frames = 0  # of features, that the network got
        self._utterances = 0
        self._begin()

    def _begin(self) -> None:
        """Begin an utterance; the network goes on."""
        self._decoding = self._recogniser.decoder.begin()
        self._log_probs: list[NDArray[np.float32]] = []
        self._first_frame = self._frames
        self._silence = 0  # frames of the output without a label, at the end
        self._spoken = False

    @property
    def seconds(self) -> float:
        """Return the audio so far."""
        return self._samples / self._rate

    def hear(self, samples: NDArray[Any]) -> list[Update]:
        """Continue by some samples; return what is new for each block that is complete with them.

        :param samples: [time], or [time, channels] if the features have channels
        :raises DataError: they are not what the model takes
        """
        self._samples += len(samples)
        self._waiting.append(self._features.add(samples))
        return self._blocks()

    @classmethod
    def warm_up(cls, recogniser: StreamingRecogniser, sample_rate: int) -> None:
        """Recognise a second of silence, so that libraries are loaded and tables made before the audio begins."""
        channels = recogniser.audio.features.opts.num_channels
        listener = cls(recogniser, sample_rate)
        listener.hear(np.zeros([sample_rate] if channels is None else [sample_rate, channels], "float32"))
        listener.end()

    def end(self) -> list[Update]:
        """Return what is new at the end of the audio: the last one has the transcript.

        :raises DataError: there is too little audio
        """
        self._waiting.append(self._features.end())
        updates = self._blocks()
        (rest,) = self._waiting
        if len(rest):
            updates += self._block(rest)
        if self._spoken or not self._utterances:
            updates.append(self._close(self.seconds))
        return updates

    def _blocks(self) -> list[Update]:
        frames = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)
        size, updates = self._recogniser.network.block, []
        while len(frames) >= size:
            updates += self._block(frames[:size])
            frames = frames[size:]
        self._waiting = [frames]
        return updates

    def _block(self, frames: NDArray[Any]) -> list[Update]:
        values, self._states = self._recogniser.network.step(frames, self._states)
        log_probs = self._recogniser.log_probs(values)
        self._frames += len(frames)
        self._log_probs.append(log_probs)
        self._decoding.advance(log_probs)
        labels = np.flatnonzero(log_probs.argmax(axis=1) != self._blank)
        self._silence = len(log_probs) - 1 - int(labels[-1]) if len(labels) else self._silence + len(log_probs)
        self._spoken = self._spoken or len(labels) > 0
        found = [Update(self._text(), self._reached())]
        if self._pause is not None and self._spoken:
            step = (self._recogniser.frame_seconds or 0.0) * self._recogniser.network.ratio
            if self._silence * step >= self._pause:
                found.append(self._close(self._reached()))
                self._begin()
        return found

    def _reached(self) -> float:
        """Return the seconds up to which the network has got features; those of the audio if they are not known."""
        step = self._recogniser.frame_seconds
        return self.seconds if step is None else min(self.seconds, self._frames * step)

    def _text(self) -> str:
        labels, words = self._decoding.best()
        if words is None:
            own = self._recogniser.labels
            words = [word for word, _, _ in own.spelling.spans([own.name(label) for label in labels])]
        return " ".join(words)

    def _close(self, end: float) -> Update:
        """End the utterance.

        :param end: in seconds
        """
        recogniser, step = self._recogniser, self._recogniser.frame_seconds
        frames = self._frames - self._first_frame
        log_probs = np.concatenate(self._log_probs) if self._log_probs else np.zeros((0, recogniser.decoder.num_labels))
        seconds = None if step is None else step * input_frames(frames, len(log_probs)) * len(log_probs)
        found = hypotheses_of(
            self._decoding.results(), recogniser.labels, log_probs, seconds, confidence=recogniser.confidence
        )
        begin = 0.0 if step is None else self._first_frame * step
        part = AudioPart(begin, end - begin, log_probs)
        hypotheses = tuple(joined([part], [each]) for each in found)
        transcript = Transcript(self._tag, hypotheses, end - begin)
        self._utterances += 1
        text: Sequence[str] = [word.text for word in transcript.best.words]
        return Update(" ".join(text), end, transcript)
