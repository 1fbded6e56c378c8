"""What the tests of commands on audio share: a network that hears tones, and the tones."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import soundfile

import returnn_tf
from returnn_tf.engine.monitoring import run_settings

RATE = 8000
#: Tones by label, in Hz: each in a band of its own of four mel bands.
TONES = {"a": 300.0, "b": 900.0, "c": 1800.0, "d": 3000.0}
_CONFIG = """
audio = {"features": "log_mel_filterbank", "num_feature_filters": 4, "sample_rate": %d, %s}
train = {"class": "OggZipDataset", "path": "gone.zip", "audio": audio,
         "targets": {"class": "CharacterTargets", "vocab_file": "vocab.txt", "unknown_label": None}}
extern_data = {"data": {"dim": 4}, "classes": {"dim": 4, "sparse": True}}
behavior_version = 21
task = "train"
model = "out/net"
"""


def config_of_tones(audio: str, network: str) -> str:
    """Return a config.

    :param audio: further options of audio
    :param network: the network, and further settings
    """
    return _CONFIG % (RATE, audio) + network


def write_model(
    folder: pathlib.Path,
    config: str,
    layers: Sequence[str],
    blank_biases: Sequence[float],
    further: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> None:
    """Write a config, and for each bias of the blank a checkpoint, as a training does.

    :param config: see `config_of_tones`
    :param layers: those that get a band and say its label, [4 bands, 4 labels and the blank]
    :param further: values of other parameters, by name
    """
    (folder / "my.config").write_text(config)
    (folder / "vocab.txt").write_text(json.dumps({label: index for index, label in enumerate(TONES)}))
    before = os.getcwd()
    os.chdir(folder)
    try:
        loaded = returnn_tf.Config.from_file("my.config")
        net = returnn_tf.Network.from_config(loaded, train=True)
        values = {**net.get_param_values(), **further}
        os.mkdir("out")
        for epoch, bias in enumerate(blank_biases, start=1):
            for layer in layers:
                values[layer + "/W"] = 4 * np.eye(4, 5, dtype="float32")
                values[layer + "/b"] = np.array([0, 0, 0, 0, bias], "float32")
            net.set_param_values(values)
            returnn_tf.save_checkpoint(net, "out/net.%03d" % epoch)
        run_settings.write("out/net", run_settings.facts_of(loaded, loaded.typed("network")))
    finally:
        os.chdir(before)


def tones(text: str, rate: int = RATE, seconds: float = 0.2, pause: float = 0.1) -> np.ndarray:
    """Return a tone for each letter, which begins and ends softly, with pauses between."""
    time = np.arange(round(seconds * rate)) / rate
    loudness = np.minimum(1.0, np.minimum(time, seconds - time) / 0.02)
    quiet = np.zeros(round(pause * rate))
    parts = [quiet]
    for letter in text:
        parts += [0.5 * loudness * np.sin(2 * np.pi * TONES[letter] * time), quiet]
    return np.concatenate(parts).astype("float32")


def write(path: str, text: str, rate: int = RATE, **options: Any) -> str:
    """Write the tones of a text, and return the path."""
    soundfile.write(path, tones(text, rate), rate, **options)
    return path
