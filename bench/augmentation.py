"""Milliseconds of one core that each step of ``augment`` takes per second of audio, beside decoding and features.

    python bench/augmentation.py [--rounds N] [--rate HZ]

Each step is made in every sequence, by its defaults: 8 sequences of 4 to 16 s, one after the other in one thread. CPU
time of the best round; rounds of all rows alternate. Noise is a flac file of 10 minutes, the impulse response 0.5 s.
"""

from __future__ import annotations

import argparse
import functools
import os
import tempfile
from typing import Any, Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import soundfile
from audio_features import best, utterance
from report import table

from returnn_tf.datasets.audio import AudioFeatures, read_audio
from returnn_tf.datasets.audio.augmentation import CODECS, STEPS, Augmentation
from returnn_tf.datasets.audio.encode import encoded

RATE = 16000


def steps_to_measure(folder: str, rate: int) -> dict[str, dict[str, Any]]:
    """Return steps by the name of the row.

    :param folder: where files are written
    """
    rng = np.random.RandomState(2)
    noise, room = os.path.join(folder, "noise.flac"), os.path.join(folder, "room.wav")
    soundfile.write(noise, rng.normal(size=600 * rate) * 0.1, rate)
    decay = np.exp(-np.arange(rate // 2) / (0.1 * rate))
    soundfile.write(room, rng.normal(size=rate // 2) * 0.2 * decay, rate)
    more = {"noise": {"files": noise}, "reverberation": {"files": room}, "speed": {"factor": 1.1}}
    found = {name: {"class": name, **more.get(name, {})} for name in STEPS if name != "codec"}
    return {**found, **{"codec %s" % name: {"class": "codec", "codecs": [name]} for name in CODECS}}


def measure(rounds: int, rate: int, count: int = 8) -> list[tuple[str, float]]:
    """Return (row, milliseconds per second of audio)."""
    rng = np.random.RandomState(1)
    seconds = rng.uniform(4, 16, count)
    audios = [utterance(rng, length * rate / RATE).astype(np.float32) for length in seconds]
    files = [encoded(audio, rate, "FLAC", "PCM_16") for audio in audios]
    features = AudioFeatures.make({"features": "log_mel_filterbank"}, owner="the benchmark")
    sides: dict[str, Callable[[], Any]] = {
        "decoding of flac": lambda: [read_audio(content) for content in files],
        "log-mel features": lambda: [features.extract(audio, rate, rng=rng, seq_name="") for audio in audios],
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, step in steps_to_measure(folder, rate).items():
            change = Augmentation.parse([step], where="the benchmark")
            sides[name] = functools.partial(_apply, change, audios, rate)
        times = best(sides, rounds)
    total = sum(map(len, audios)) / rate
    return [(name, 1000 * cpu / total) for name, (_, cpu) in times.items()]


def _apply(change: Augmentation, audios: list[np.ndarray], rate: int) -> None:
    rng = np.random.RandomState(3)
    for audio in audios:
        change.apply(audio, rate, rng)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", type=int, default=RATE)
    args = parser.parse_args()
    rows = measure(args.rounds, args.rate)
    print(table(["%d Hz" % args.rate, "ms per second of audio"], [[name, "%.2f" % cost] for name, cost in rows]))


if __name__ == "__main__":
    main()
