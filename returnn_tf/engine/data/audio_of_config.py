"""Which features of audio a model takes: those of a dataset of its config, which need not be there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.config import Config
from returnn_tf.config.errors import FileError, did_you_mean
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.datasets.audio import AudioFeatures
from returnn_tf.datasets.audio.frame_seconds import seconds_of_frame
from returnn_tf.datasets.config import nested_options
from returnn_tf.engine.data.data_source import dataset_name, evaluation_names

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
    def find(cls, config: Config, name: Optional[str], where: str) -> AudioOfConfig:
        """Return the first of the datasets to search, to evaluate and to train on that has the option ``audio``.

        What changes audio at random is for training, and left out.

        :param name: of the dataset instead
        :param where: begin of errors
        :raises ConfigError: there is none, or its features are changed by a function after they are computed
        """
        searched = dataset_name("search_data", TaskSettings(config).search_data)
        known = list(dict.fromkeys([searched, *evaluation_names(config), "train"]))
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
                        "%s: the function %r changes what the dataset %r has computed of audio, so it is not known "
                        "which features the network expects. Name a dataset without it: --data NAME"
                        % (where, changed[0], each)
                    )
                features = AudioFeatures.undistorted(audio, owner="dataset %r" % each)
                return cls(each, features, int(options.get("window") or 1), seconds_of_frame(audio))
        there = [each for each in names if list(nested_options(config, each))]
        if name and not there:
            raise FileError("%s: --data: there is no dataset %r. %s" % (where, name, did_you_mean(name, known)))
        raise FileError(
            "%s: the features of the model can't be made from audio: no dataset of the config has the option 'audio' "
            "(%s)." % (where, ", ".join(there) or "none")
        )
