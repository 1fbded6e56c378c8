"""Seconds of 16 kHz audio per second: log-mel features, with and without decoding, beside librosa and tensorflow-io.

    python bench/audio_features.py [--rounds N] [--threads N] [--seqs N]

Asked: at least 2000 x real time of log-mel on 2 cores, and 5 x librosa. All figures are of the best round, for a
machine with other load, with wall and CPU time; rounds of what is compared alternate. librosa is no dependency: to
compare, run this with an environment that has it, h5py, scipy and soundfile. It gets the same samples and parameters,
one sequence after the other, as programs call it; ours is given for one thread and for as many as there are cores.
tensorflow-io decodes inside of `tf.data` with as many parallel calls.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads are over sequences here, on all sides

import numpy as np
import soundfile
from report import table

from returnn_tf.datasets.audio import AudioFeatures, read_audio
from returnn_tf.datasets.core.read_ahead import ReadAhead

RATE, FILTERS = 16000, 40
FORMATS = {
    "flac": ("FLAC", "PCM_16"),
    "ogg (Vorbis)": ("OGG", "VORBIS"),
    "ogg (Opus)": ("OGG", "OPUS"),
    "mp3": ("MP3", None),
    "wav": ("WAV", "PCM_16"),
}


def utterance(rng: np.random.RandomState, seconds: float) -> np.ndarray:
    """Return something like speech, in 16 bits: harmonics of a moving pitch in syllables, and noise."""
    times = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(150 + 40 * np.sin(3 * times + rng.uniform(0, 6))) / RATE
    voice = sum(np.sin(n * phase) / n for n in range(1, 20))
    audio = 0.1 * voice * np.maximum(np.sin(9 * times), 0) + 0.01 * rng.normal(size=len(times))
    return np.round(audio * 2**15) / 2**15


def encoded(audio: np.ndarray, name: str) -> bytes:
    """Return the content of a file."""
    file = io.BytesIO()
    kind, subtype = FORMATS[name]
    soundfile.write(file, audio, RATE, format=kind, subtype=subtype)
    return file.getvalue()


def best(sides: dict[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[float, float]]:
    """Return wall and CPU seconds of the best round of each side; the sides alternate."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for function in sides.values():
        function()  # caches, imports
    for _ in range(rounds):
        for name, function in sides.items():
            wall, cpu = time.perf_counter(), time.process_time()
            function()
            times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {name: (min(w for w, _ in pairs), min(c for _, c in pairs)) for name, pairs in times.items()}


class Work:
    """The utterances, and what is done with all of them."""

    def __init__(self, num_seqs: int, threads: int) -> None:
        rng = np.random.RandomState(1)
        audios = [utterance(rng, rng.uniform(4, 16)) for _ in range(num_seqs)]
        self.audios = [read_audio(encoded(audio, "wav"))[0] for audio in audios]
        self.threads = threads
        self.seconds = sum(map(len, self.audios)) / RATE
        self.features = AudioFeatures.make(
            {"features": "log_mel_filterbank", "num_feature_filters": FILTERS}, owner="the benchmark"
        )

    def log_mel(self, audio: np.ndarray) -> np.ndarray:
        """Return our log-mel features."""
        return self.features.extract(audio, RATE, rng=np.random.RandomState(1), seq_name="")

    def in_order(self, read: Callable[[int], Any], threads: int) -> list[Any]:
        """Return all items as a dataset reads them, ahead in threads."""
        if threads == 1:
            return [read(i) for i in range(len(self.audios))]
        ahead = ReadAhead(read, lambda i: i < len(self.audios), threads)
        try:
            return [ahead.get(i) for i in range(len(self.audios))]
        finally:
            ahead.close()

    def features_of_samples(self, threads: int) -> list[np.ndarray]:
        """Return the features of samples, without decoding."""
        return self.in_order(lambda i: self.log_mel(self.audios[i]), threads)

    def features_of_files(self, files: list[bytes], threads: int) -> list[np.ndarray]:
        """Return the features of files, with decoding."""
        return self.in_order(lambda i: self.log_mel(read_audio(files[i])[0]), threads)

    def row(self, name: str, times: tuple[float, float]) -> list[str]:
        """Return a line of a table."""
        return [name, "%.0f" % (self.seconds / times[0]), "%.0f" % (self.seconds / times[1])]


def librosa_log_mel(audio: np.ndarray) -> np.ndarray:
    """Return the log-mel features by librosa."""
    import librosa

    mel = librosa.feature.melspectrogram(y=audio, sr=RATE, n_mels=FILTERS, hop_length=RATE // 100, n_fft=RATE // 40)
    return np.log(np.maximum(1e-3, mel)).astype("float32").T


def beside_librosa(work: Work, rounds: int) -> None:
    """Print the ratio to librosa, and check that the numbers are the same."""
    if importlib.util.find_spec("librosa") is None:
        print("no comparison with librosa, which is not installed here (it is no dependency of returnn-tf)\n")
        return
    single = [audio / np.abs(audio).max() for audio in work.audios]  # ours does that itself
    double = [audio.astype("float64") for audio in single]
    sides: dict[str, Callable[[], Any]] = {
        "librosa, double precision (RETURNN)": lambda: [librosa_log_mel(audio) for audio in double],
        "librosa, single precision": lambda: [librosa_log_mel(audio) for audio in single],
        "returnn_tf, 1 thread": lambda: work.features_of_samples(1),
        "returnn_tf, %d threads" % work.threads: lambda: work.features_of_samples(work.threads),
    }
    for got, expected in zip(work.features_of_samples(work.threads), map(librosa_log_mel, double)):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    times = best(sides, rounds)
    print(table(["log-mel of samples", "x real time", "per CPU second"], [work.row(*item) for item in times.items()]))
    theirs, ours = list(times)[:2], list(times)[2:]
    for name in ours:
        for other in theirs:
            ratios = [slow / fast for slow, fast in zip(times[other], times[name])]
            print("%s: %.1f x %s (%.1f x per CPU second)" % (name, ratios[0], other, ratios[1]))
    print()


def by_tf_data(files: list[bytes], decode: Any, threads: int) -> Any:
    """Return the samples of all files, decoded by tensorflow-io in `tf.data` with parallel calls."""
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices(files).map(decode, num_parallel_calls=threads, deterministic=True)
    return lambda: [samples.numpy() for samples in data.prefetch(2 * threads)]


def decoders(work: Work, rounds: int) -> None:
    """Compare decoding alone: soundfile in threads, and tensorflow-io in `tf.data`."""
    if importlib.util.find_spec("tensorflow_io") is None:
        print("no comparison with tensorflow-io, which is not installed here")
        return
    import tensorflow as tf
    import tensorflow_io as tfio

    tf.config.threading.set_inter_op_parallelism_threads(work.threads)
    theirs = {
        "flac": lambda content: tfio.audio.decode_flac(content, dtype=tf.int16),
        "ogg (Vorbis)": tfio.audio.decode_vorbis,
        "mp3": tfio.audio.decode_mp3,
    }
    rows = []
    for name, decode in theirs.items():
        files = [encoded(audio, name) for audio in work.audios]
        with ThreadPoolExecutor(work.threads) as pool:
            sides = {
                "soundfile": lambda files=files: list(pool.map(read_audio, files)),
                "tensorflow-io": by_tf_data(files, decode, work.threads),
            }
            times = best(sides, rounds)
        rows += [work.row("%s, %s" % (name, side), pair) for side, pair in times.items()]
    print(table(["decoding in %d threads" % work.threads, "x real time", "per CPU second"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--seqs", type=int, default=24)
    args = parser.parse_args()
    work = Work(args.seqs, args.threads)
    counts = sorted({1, args.threads})
    sides: dict[str, Callable[[], Any]] = {
        "samples, %d threads" % n: lambda n=n: work.features_of_samples(n) for n in counts
    }
    for name in FORMATS:
        if soundfile.check_format(*FORMATS[name]):
            files = [encoded(audio, name) for audio in work.audios]
            label = "%s, %d threads" % (name, args.threads)
            sides[label] = lambda files=files: work.features_of_files(files, args.threads)
    times = best(sides, args.rounds)
    print("%d sequences, %.0f s of audio; best of %d rounds" % (args.seqs, work.seconds, args.rounds))
    print(table(["log-mel of", "x real time", "per CPU second"], [work.row(*item) for item in times.items()]))
    print()
    beside_librosa(work, args.rounds)
    decoders(work, args.rounds)


if __name__ == "__main__":
    main()
