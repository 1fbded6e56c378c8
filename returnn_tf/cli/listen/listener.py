"""Audio to words while it comes: features, network, decoder and the ends of utterances, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.listen.network import BlockNetwork
from returnn_tf.cli.listen.outputs import StreamOutputs
from returnn_tf.cli.listen.posteriors import StreamedPosteriors, posteriors_of
from returnn_tf.cli.listen.search import StreamedSearch
from returnn_tf.cli.transcribe.audio import AudioPart
from returnn_tf.cli.transcribe.job import joined
from returnn_tf.cli.transcribe.recogniser import config_with_words, key_of_audio
from returnn_tf.cli.transcribe.sources import chosen_layer
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandError, SearchError
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.datasets.audio.stream import FeatureStream, check_streams
from returnn_tf.engine.data.audio_of_config import AudioOfConfig
from returnn_tf.engine.data.label_names import LabelNames
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.engine.transcripts.transcript import Transcript
from returnn_tf.layers.search.ctc_greedy import CtcGreedyLayer
from returnn_tf.tasks.search import search_plan
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
    :param layer: path of the layer with posteriors of CTC, or with labels of class "ctc_greedy" or of a search;
        default: that of ``returnn-tf transcribe``
    :param data: name of the dataset whose features are meant
    :param block: frames of features that are computed at once; default: about 0.1 seconds
    :raises ConfigError: features, network or search need all of the audio; or see `Recogniser`
    :raises DataError: the checkpoint or a vocabulary is damaged
    """

    def __init__(
        self, config: Config, *, layer: Optional[str] = None, data: Optional[str] = None, block: Optional[int] = None
    ) -> None:
        check_all_settings(config)
        config = config_with_words(config, layer)
        self.audio = AudioOfConfig.find(config, data, _NAME)
        check_streams(self.audio.features)
        if self.audio.window > 1:
            raise SearchError(
                "listen: dataset %r: option 'window' joins frames with those after them, which is not done while audio "
                "comes. A layer 'window' in the network may look back." % self.audio.dataset
            )
        plan = search_plan(config, [layer] if layer else [])
        path, outputs = chosen_layer(config, plan, LabelNames(plan, config, self.audio.dataset), layer, _NAME)
        chosen = plan.by_path()[path]
        searches = chosen.output.sparse and not isinstance(chosen.layer, CtcGreedyLayer)
        outputs = outputs if searches else [posteriors_of(chosen).path, path]
        self.net, choice = load_network(config, search=True, losses=False, outputs=outputs)
        self.checkpoint = choice.path or ""
        names = LabelNames(self.net.plan, config, self.audio.dataset)
        #: Seconds between frames of features; None: unknown.
        self.frame_seconds = TaskSettings(config).search_frame_seconds or self.audio.frame_seconds
        kind = StreamedSearch if searches else StreamedPosteriors
        self.outputs: StreamOutputs = kind(self.net, path, names, self.frame_seconds)
        used = self.net.data_keys(self.net.plan.find_nodes(self.outputs.paths), with_losses=False)
        key = key_of_audio(config, self.audio, self.net.extern_data, used, _NAME)
        self.network = BlockNetwork(self.net, self.outputs, key, self.frame_seconds, block)

    @property
    def block_seconds(self) -> Optional[float]:
        """Return the audio of a block; None if it is not known how long a frame is."""
        return None if self.frame_seconds is None else self.network.block * self.frame_seconds

    @property
    def held_back_seconds(self) -> float:
        """Return the audio that has to be there behind a block, see `BlockNetwork.held_back`."""
        return self.network.held_back * (self.frame_seconds or 0.0)


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
        fault = recogniser.outputs.without_pauses
        fault = fault or ("set search_frame_seconds" if recogniser.frame_seconds is None else "")
        if pause is not None and fault:
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
        self._utterance = self._recogniser.outputs.begin()
        self._first_frame = self._frames

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
            updates += self._block(rest, ends=True)
        if self._utterance.spoken or not self._utterances:
            updates.append(self._close(self.seconds))
        return updates

    def stop(self) -> Update:
        """Return the transcript of what was computed, where the network can't go on."""
        return self._close(self._reached())

    def _blocks(self) -> list[Update]:
        frames = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)
        network, updates = self._recogniser.network, list[Update]()
        size = network.block
        while len(frames) >= size + network.held_back:
            updates += self._block(frames[:size])
            frames = frames[size:]
        self._waiting = [frames]
        return updates

    def _block(self, frames: NDArray[Any], *, ends: bool = False) -> list[Update]:
        network = self._recogniser.network
        found, self._states = network.step(frames, self._states, ends=ends)
        self._frames += len(frames)
        self._utterance.add(found)
        updates = [Update(self._utterance.text(), self._reached())]
        if self._pause is not None and self._utterance.spoken:
            step = (self._recogniser.frame_seconds or 0.0) * network.ratio
            if self._utterance.silence * step >= self._pause:
                updates.append(self._close(self._reached()))
                self._states = self._utterance.states_after(network.model, self._states)
                self._begin()
        return updates

    def _reached(self) -> float:
        """Return the seconds up to which the network has got features; those of the audio if they are not known."""
        step = self._recogniser.frame_seconds
        return self.seconds if step is None else min(self.seconds, self._frames * step)

    def _close(self, end: float) -> Update:
        """End the utterance.

        :param end: in seconds
        """
        step, frames = self._recogniser.frame_seconds, self._frames - self._first_frame
        found = self._utterance.hypotheses(frames)
        begin = 0.0 if step is None else self._first_frame * step
        part = AudioPart(begin, end - begin, np.zeros(0))
        hypotheses = tuple(joined([part], [each]) for each in found)
        transcript = Transcript(self._tag, hypotheses, end - begin)
        self._utterances += 1
        text: Sequence[str] = [word.text for word in transcript.best.words]
        return Update(" ".join(text), end, transcript)
