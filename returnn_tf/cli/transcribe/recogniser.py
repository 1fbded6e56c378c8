"""A trained network that recognises features of audio, batch by batch."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.transcribe.sources import chosen_layer, source_of
from returnn_tf.config import Config
from returnn_tf.config.derived import derived
from returnn_tf.config.errors import FileError
from returnn_tf.config.options import option
from returnn_tf.config.settings.decoding import DecodingSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.datasets.config import batch_options_from_config, dataset_from_config
from returnn_tf.datasets.core.batches.batch_options import derived_keys
from returnn_tf.datasets.synthetic.static import StaticDataset
from returnn_tf.engine.data.audio_of_config import AudioOfConfig
from returnn_tf.engine.data.batch_table import known
from returnn_tf.engine.data.fit import check_fits
from returnn_tf.engine.data.label_names import LabelNames
from returnn_tf.engine.passes.dataset_pass import DatasetPass, Step, steps_over_sequences
from returnn_tf.engine.search.words_of_choice import WORDS
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.engine.transcripts.transcript import Hypothesis
from returnn_tf.tasks.decode import search_with_words
from returnn_tf.tasks.search import search_plan
from returnn_tf.tasks.setting_checks import check_all_settings
from returnn_tf.tensor import Data

_NAME = "transcribe"
_NO_LIMIT = 1 << 40


class BatchSize(NamedTuple):
    """How large a batch may be.

    :param frames: with padding; 0: without limit
    :param seqs: sequences; 0: without limit
    :param seqs_by_length: sequences by the frames of the longest one; None: without limit
    """

    frames: int
    seqs: int
    seqs_by_length: Optional[Mapping[int, int]] = None

    @classmethod
    def of(cls, config: Config, key: str) -> BatchSize:
        """Return the sizes for a data key by ``batch_size``, ``max_seqs`` and ``max_seqs_by_length``.

        :raises ConfigError: ``batch_size`` is "auto", but no training has found numbers
        """
        options = batch_options_from_config(known(config), train=False)
        frames, seqs = options.get("batch_size") or 0, options.get("max_seqs") or 0
        if isinstance(frames, Mapping):
            frames = frames.get(key) or 0
        by_length = options.get("max_seqs_by_length")
        if by_length and not frames:
            frames = max(longest * count for longest, count in by_length.items())
        return cls(max(int(frames), 0), max(int(seqs), 0), by_length)

    def options(self) -> dict[str, Any]:
        """Return the options of `Dataset.batches`."""
        limits = {"batch_size": self.frames or _NO_LIMIT, "max_seqs": self.seqs or -1}
        return limits if self.seqs_by_length is None else {**limits, "max_seqs_by_length": self.seqs_by_length}

    def is_reached(self, frames: int, seqs: int, times: int) -> bool:
        """Return whether some sequences are as much as this many batches."""
        return bool((self.frames and frames >= times * self.frames) or (self.seqs and seqs >= times * self.seqs))


def key_of_audio(
    config: Config, audio: AudioOfConfig, extern_data: Mapping[str, Data], used: Sequence[str], where: str
) -> str:
    """Return the data key whose data are the features.

    :param used: the data keys that the network needs
    :param where: begin of errors
    :raises ConfigError: there are others among them, or the key declares other features
    """
    keys = [key for key in used if key not in derived_keys(used, [])]
    dense = [key for key in keys if not extern_data[key].sparse]
    if len(keys) != 1 or not dense:
        raise FileError(
            "%s: the network needs the data keys %s to recognise something, but audio gives features only"
            % (where, ", ".join(map(repr, keys)))
        )
    (key,), spec = keys, audio.features.spec
    example = np.zeros([1, *(size or 1 for size in spec.shape)], spec.dtype)
    check_fits(dataset_of(config, audio, [example], [""], key), audio.dataset, key, extern_data[key])
    return key


def dataset_of(
    config: Config, audio: AudioOfConfig, features: Sequence[NDArray[Any]], tags: Sequence[str], key: str
) -> StaticDataset:
    """Return a dataset of features in memory, which joins frames as that of the config does."""
    spec: dict[str, Any] = {"class": _Parts, "data": [{key: each} for each in features], "tags": list(tags)}
    if audio.window > 1:
        spec["window"] = audio.window
    dataset = dataset_from_config(derived(config, {_NAME: spec}), _NAME)
    assert isinstance(dataset, StaticDataset)
    return dataset


def config_with_words(config: Config, layer: Optional[str]) -> Config:
    """Return the config with lexicon, language model and hot words of its settings in a search by `choice`, if meant.

    :param layer: of the search; None: that of the settings
    :raises ConfigError: see `search_with_words`
    """
    settings = DecodingSettings(config)
    if not any(map(settings.value, WORDS)):
        return config
    # How many hypotheses are written, and by how many threads, is also for other layers; there are no references.
    others = ("decode_nbest", "decode_threads", "decode_reference")
    return search_with_words(config, layer or settings.decode_layer, others) or config


class Recogniser:
    """Recognises features of audio by a trained network.

    :param config: with the checkpoint, for task search
    :param layer: path of the layer with labels, or with posteriors of CTC; default: see `chosen_layer`
    :param data: name of the dataset whose features are meant, see `AudioOfConfig.find`
    :raises ConfigError: there is no such layer, no checkpoint, or audio alone does not give what the network needs
    :raises DataError: the checkpoint or a vocabulary is damaged
    """

    def __init__(self, config: Config, *, layer: Optional[str] = None, data: Optional[str] = None) -> None:
        check_all_settings(config)
        self._config = config = config_with_words(config, layer)
        self.audio = AudioOfConfig.find(config, data, _NAME)
        plan = search_plan(config, [layer] if layer else [])
        path, outputs = chosen_layer(config, plan, LabelNames(plan, config, self.audio.dataset), layer, _NAME)
        self.net, choice = load_network(config, search=True, losses=False, outputs=outputs)
        self.checkpoint = choice.path or ""
        seconds = TaskSettings(config).search_frame_seconds or self.audio.frame_seconds
        self.source = source_of(self.net, path, LabelNames(self.net.plan, config, self.audio.dataset), seconds)
        self._key = key_of_audio(config, self.audio, self.net.extern_data, self.source.used_data_keys, _NAME)
        self.batch_size = BatchSize.of(config, self._key)
        self._pass: DatasetPass[Any] = DatasetPass(
            _NAME, self.source.tensors, lambda tensors, batch: self.source.run(tensors), shows_progress=False
        )

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
        dataset = dataset_of(self._config, self.audio, features, tags, self._key)
        steps = steps_over_sequences(
            self._pass, dataset, 1, self.source.used_data_keys, seq_order=order, **self.batch_size.options()
        )
        with contextlib.closing(steps):
            for step in steps:
                indices = [int(index) for index in step.batch.seq_indices]
                yield indices, self.source.hypotheses(step.result, [len(features[index]) for index in indices]), step


class _Parts(StaticDataset):
    """Features in memory, with the names of their audio as tags."""

    @dataclass
    class Options(StaticDataset.Options):
        tags: list[str] = option(help="of the sequences")

    def tag(self, index: int) -> str:
        """Return the name of the audio."""
        return str(self.opts.tags[index])
