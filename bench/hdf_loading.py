"""Reading an epoch of 300 000 short sequences from one HDF file of 1.5 GB, beside h5py reading one by one.

    python bench/hdf_loading.py [--file F] [--layout contiguous|chunked|columns|gzip] [--per-round N] [--rounds N]

The file is made if it does not exist: 10 to 50 frames of 40 numbers, a label every third frame.
First batch: from the start of the loading process, imports and index included, with the memory of that process. Then
round reads the next N sequences with h5py, as sequences, and in batches; the medians of the rounds are given in CPU
seconds, for a machine with other load, and in real ones. Asked: first batch < 3 s, < 500 MB, twice h5py.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Callable

import h5py
import numpy as np

from returnn_tf.datasets import BatchLoader, Dataset

SEQS, DIM, LABELS = 300_000, 40, 1000
LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": {"chunks": (1024, DIM), "maxshape": (None, DIM)},
    "columns": {"chunks": (35_000, 1), "maxshape": (None, DIM)},
    "gzip": {"chunks": (1024, DIM), "maxshape": (None, DIM), "compression": "gzip", "compression_opts": 1},
}
BATCHES = {"batch_size": 5000, "max_seqs": 200}


def make_file(path: str, layout: str) -> None:
    """Write the corpus."""
    rng = np.random.RandomState(0)
    lengths = rng.randint(10, 51, size=SEQS).astype("int32")
    total, block = int(lengths.sum()), rng.normal(size=(100_000, DIM)).astype("float32")
    with h5py.File(path, "w") as file:
        inputs = file.create_dataset("inputs", shape=(total, DIM), dtype="float32", **LAYOUTS[layout])
        for start in range(0, total, len(block)):
            inputs[start : start + len(block)] = block[: total - start]
        file["targets/data/classes"] = rng.randint(0, LABELS, size=int((lengths // 3).sum())).astype("int32")
        file.create_group("targets/size").attrs["classes"] = [LABELS, 1]
        file["seqLengths"] = np.stack([lengths, lengths // 3], axis=1)
        file["seqTags"] = np.array([b"corpus/rec-%06d/%d" % divmod(i, 10) for i in range(SEQS)])


def first_batch(options: dict[str, Any]) -> tuple[float, float]:
    """Return seconds until the first batch, and the largest memory of the loading process after 200 batches in MB."""
    start = time.perf_counter()
    with BatchLoader(Dataset.from_config(options)) as loader:
        batches = loader.batches(epoch=1, **BATCHES)
        next(batches)
        seconds = time.perf_counter() - start
        for _ in itertools.islice(batches, 200):
            pass
        with open("/proc/%d/status" % loader.pid, encoding="utf8") as status:
            return seconds, int(re.findall(r"VmHWM:\s*(\d+)", status.read())[0]) / 1024


class OneByOne:
    """Reads with h5py in the given order."""

    def __init__(self, path: str, order: np.ndarray):
        self.file = h5py.File(path, "r")
        self.streams = [self.file["inputs"], self.file["targets/data/classes"]]
        lengths = self.file["seqLengths"][:].astype("int64")
        self.offsets = [np.concatenate([[0], np.cumsum(column)]).tolist() for column in lengths.T]
        self.order = iter(order.tolist())

    def read(self, count: int) -> None:
        """Read the next sequences."""
        for index in itertools.islice(self.order, count):
            for stream, offsets in zip(self.streams, self.offsets):
                stream[offsets[index] : offsets[index + 1]]


def in_batches(batches: Iterator[Any], count: int) -> int:
    """Read batches with at least this number of sequences; return the number."""
    read = 0
    while read < count:
        read += next(batches).num_seqs
    return read


def measure(sides: dict[str, Callable[[], int]], rounds: int) -> dict[str, tuple[float, float]]:
    """Return the median CPU and real microseconds per sequence of each side, which take turns."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, read in sides.items():
            cpu, real = time.process_time(), time.perf_counter()
            count = read()
            times[name].append(((time.process_time() - cpu) / count * 1e6, (time.perf_counter() - real) / count * 1e6))
    return {name: tuple(np.median(values, axis=0)) for name, values in times.items()}


def compare(path: str, options: dict[str, Any], count: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Return microseconds per sequence for h5py, sequences and batches."""
    dataset = Dataset.from_config(options)
    order = dataset.seq_order(1)
    thirds = [np.roll(order, -part * SEQS // 3) for part in range(3)]  # so that none finds what another has read
    one_by_one = OneByOne(path, thirds[0])
    sequences = dataset.sequences(1, seq_order=thirds[1])
    batches = dataset.batches(1, seq_order=thirds[2], **BATCHES)

    def of_h5py() -> int:
        one_by_one.read(count)
        return count

    def as_sequences() -> int:
        return sum(1 for _ in itertools.islice(sequences, count))

    return measure({"h5py": of_h5py, "sequences": as_sequences, "batches": lambda: in_batches(batches, count)}, rounds)


def main() -> None:
    """Print the figures for the order of the corpus and for a random one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", help="default: one in the folder for temporary files, removed in the end")
    parser.add_argument("--layout", choices=sorted(LAYOUTS), default="contiguous")
    parser.add_argument("--per-round", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.file or os.path.join(folder, "corpus.hdf")
        if not os.path.exists(path):
            make_file(path, args.layout)
        print("%s: %.2f GB, %d sequences" % (args.layout, os.path.getsize(path) / 1e9, SEQS))
        for order in ("default", "random"):
            options = {"class": "HDFDataset", "files": [path], "seq_ordering": order}
            print("%s: first batch %.2f s, %d MB" % (order, *first_batch(options)))
            times = compare(path, options, args.per_round, args.rounds)
            for name, (cpu, real) in times.items():
                text = "%8s %9s: %6.1f us CPU per sequence (%.2f times h5py), %6.1f us real (%.2f times)"
                print(text % (order, name, cpu, times["h5py"][0] / cpu, real, times["h5py"][1] / real))


if __name__ == "__main__":
    main()
