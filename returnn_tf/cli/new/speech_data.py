"""Write data/train.hdf and data/dev.hdf: made-up speech, to see the format of the data before it is your own.

An utterance is a series of sounds with silence around them. Each sound lasts some frames, each frame has 20 features,
and each speaker shifts and scales them. For your own data, replace `utterances`; for data that comes as a folder of
audio files, see ``returnn-tf data oggzip --help``, which needs no HDF.
"""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from returnn_tf.datasets import HDFWriter

SOUNDS = ["a", "e", "i", "o", "u", "m", "n", "s", "t", "k"]
STATES = 3  # of a sound: its beginning, middle and end
FEATURES = 20
SIZES = {"train": 800, "dev": 100}  # utterances


class SyntheticUtterance(NamedTuple):
    """A sequence of the data.

    :param tag: its name, unique
    :param features: float32 [frames, FEATURES]
    :param labels: int32 [sounds], indices into SOUNDS
    :param states: int32 [frames], 0: silence, 1 + STATES * label + state otherwise
    """

    tag: str
    features: Any
    labels: Any
    states: Any


def utterances(name: str, count: int) -> Iterator[SyntheticUtterance]:
    """Yield utterances, the same ones in each call.

    :param name: of the data set
    """
    means = np.random.default_rng(1).normal(size=(1 + STATES * len(SOUNDS), FEATURES))  # the same for all data sets
    rng = np.random.default_rng(list(name.encode()))
    for index in range(count):
        labels = rng.integers(len(SOUNDS), size=rng.integers(3, 9))
        states = [0] * rng.integers(2, 6)
        for label in labels:
            for state in range(STATES):
                states += [1 + STATES * label + state] * rng.integers(1, 4)
        states += [0] * rng.integers(2, 6)
        speaker = rng.normal(1.0, 0.1) * means[states] + rng.normal(0.0, 0.3, size=FEATURES)
        features = speaker + rng.normal(0.0, 0.8, size=(len(states), FEATURES))
        yield SyntheticUtterance("%s-%04d" % (name, index), features.astype("float32"), labels, np.array(states))


def write(folder: str) -> None:
    """Write the data sets into a folder."""
    for name, count in SIZES.items():
        all_of_set = list(utterances(name, count))
        frames = np.concatenate([utterance.features for utterance in all_of_set])
        if name == "train":  # features of mean 0 and variance 1 learn best; all sets are treated alike
            mean, deviation = frames.mean(axis=0), frames.std(axis=0)
        names = {"classes": SOUNDS}
        kinds = {"classes": (len(SOUNDS), 1, "int32"), "states": (1 + STATES * len(SOUNDS), 1, "int32")}
        with HDFWriter(os.path.join(folder, name + ".hdf"), FEATURES, extra_type=kinds, extra_labels=names) as writer:
            for utterance in all_of_set:
                targets = {"classes": [utterance.labels.astype("int32")], "states": [utterance.states.astype("int32")]}
                writer.insert_sequences([(utterance.features - mean) / deviation], [utterance.tag], targets)


if __name__ == "__main__":
    write(os.path.join(os.path.dirname(os.path.abspath(__file__)), "data"))
