"""How long OggZipDataset takes until it delivers, and what it delivers per second.

    python bench/oggzip_loading.py [--seqs N] [--index-only N] [--epoch-seqs N]

Asked: of 10 000 utterances, index in less than 1 s, and the first batch less than 3 s after the start. The corpus is
made in a temporary folder: Ogg Vorbis of 16 kHz, 1 to 4 s each (200 different ones, repeated), stored in one zip file.
Then, each in a process of its own so that memory is its own: the time from the call that makes the dataset to the
first batch, shuffled with laplace ordering, also through the loading process that training uses; sequences and hours
per second with log-mel features and labels; and the index of a larger corpus of texts alone.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads are over sequences here

import numpy as np
import soundfile
from report import table

RATE, DIFFERENT = 16000, 200
WORDS = ["time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "it's", "world"]
LABELS = ["@", *" abcdefghijklmnopqrstuvwxyz'"]


def make_text(rng: np.random.RandomState, seconds: list[float]) -> str:
    """Return the text of a corpus, as `returnn-tf data oggzip` writes it."""
    entries = (
        {
            "text": " ".join(rng.choice(WORDS, 3 + int(3 * length))),
            "speaker_name": "speaker%d" % (i % 91),
            "file": "rec%d/%d.ogg" % (i % 97, i),
            "seq_name": "corpus/rec%d/%d" % (i % 97, i),
            "duration": length,
        }
        for i, length in enumerate(seconds)
    )
    return "[\n%s\n]\n" % ",\n".join(map(repr, entries))


def make_corpus(path: str, count: int) -> None:
    """Write a corpus with audio."""
    rng = np.random.RandomState(1)
    name = os.path.splitext(os.path.basename(path))[0]
    lengths = [round(float(length), 3) for length in rng.uniform(1, 4, DIFFERENT)]
    files = []
    for length in lengths:
        times = np.arange(int(length * RATE)) / RATE
        audio = 0.3 * np.sin(2000 * times * (1 + 0.1 * np.sin(9 * times))) + 0.02 * rng.normal(size=len(times))
        file = io.BytesIO()
        soundfile.write(file, audio, RATE, format="OGG", subtype="VORBIS")
        files.append(file.getvalue())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        text = make_text(rng, [lengths[i % DIFFERENT] for i in range(count)])
        archive.writestr(name + ".txt", text, zipfile.ZIP_DEFLATED)
        for i in range(count):
            archive.writestr("%s/rec%d/%d.ogg" % (name, i % 97, i), files[i % DIFFERENT])


def make_texts(path: str, count: int) -> None:
    """Write a corpus without audio."""
    rng = np.random.RandomState(1)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        name = os.path.splitext(os.path.basename(path))[0]
        archive.writestr(name + ".txt", make_text(rng, rng.uniform(1, 20, count).round(3).tolist()))


def options(path: str, *, audio: bool = True) -> dict[str, Any]:
    """Return a dataset as configs have it."""
    return {
        "class": "OggZipDataset",
        "path": path,
        "audio": {"features": "log_mel_filterbank", "num_feature_filters": 80} if audio else None,
        "targets": {"class": "CharacterTargets", "labels": LABELS},
        "seq_ordering": "laplace:.1000",
    }


def peak_memory() -> float:
    """Return the peak memory of this process in MB."""
    with open("/proc/self/status", encoding="utf8") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM"))


def measure(what: str, path: str, seqs: int) -> str:
    """Run one measurement; in a process that does nothing else."""
    from returnn_tf.datasets import BatchLoader, Dataset

    clock = time.perf_counter
    start, cpu_start, before = clock(), time.process_time(), peak_memory()
    dataset = Dataset.from_config(options(path, audio=what != "texts"))
    if what in ("index", "texts"):
        count = dataset.num_seqs
        result = "%.2f s, %d sequences" % (clock() - start, count)
    elif what == "first batch":
        next(dataset.batches(1, batch_size=60000, max_seqs=50))
        result = "%.2f s" % (clock() - start)
    elif what == "first batch of the loading process":
        with BatchLoader(dataset) as loader:
            next(iter(loader.batches(1, batch_size=60000, max_seqs=50)))
            result = "%.2f s" % (clock() - start)
    else:
        assert dataset.num_seqs
        start, cpu, frames, count = clock(), time.process_time(), 0, 0
        for batch in dataset.batches(1, batch_size=60000, max_seqs=50):
            frames, count = frames + batch.num_frames["data"], count + batch.num_rows
            if count >= seqs:
                break
        seconds, cpu = clock() - start, time.process_time() - cpu
        rates = (count / seconds, 0.01 * frames / seconds, count / cpu, 0.01 * frames / cpu)
        result = "%.0f sequences/s, %.0f x real time (per second of CPU: %.0f, %.0f)" % rates
    return "%s | %.2f s | %.0f MB, %.0f before" % (result, time.process_time() - cpu_start, peak_memory(), before)


def main() -> None:
    """Make the corpora, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqs", type=int, default=10000)
    parser.add_argument("--index-only", type=int, default=280000)
    parser.add_argument("--epoch-seqs", type=int, default=5000)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(measure(*args.measure, args.epoch_seqs))
        return
    with tempfile.TemporaryDirectory() as folder:
        corpus, texts = os.path.join(folder, "corpus.zip"), os.path.join(folder, "texts.zip")
        make_corpus(corpus, args.seqs)
        make_texts(texts, args.index_only)
        rows = []
        for what in ("index", "first batch", "first batch of the loading process", "epoch", "texts"):
            path = texts if what == "texts" else corpus
            command = [sys.executable, __file__, "--epoch-seqs", str(args.epoch_seqs), "--measure", what, path]
            output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
            rows.append([what, *output.split(" | ")])
        print(table(["what", "result", "CPU", "memory"], rows))


if __name__ == "__main__":
    main()
