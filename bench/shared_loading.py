"""Batches from the loading process, in shared memory and through its pipe: CPU time of both processes for a batch.

    python bench/shared_loading.py [--batches 60] [--frames 200,1000,5000]

Sequences of 80 numbers per frame, 16 in a batch, which the dataset has in memory: what is measured is padding,
transport and conversion.
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np

from returnn_tf.datasets import BatchLoader, Dataset
from returnn_tf.datasets.loading import loader as loading
from returnn_tf.util.host_tensors import host_tensor
from returnn_tf.util.lazy_tf import tf

DIM, SEQS = 80, 16


def cpu_of(pid: int) -> float:
    """Return CPU seconds of a process."""
    with open("/proc/%d/stat" % pid, encoding="utf8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(frames: int, count: int, shares: bool) -> tuple[float, float, float]:
    """Return milliseconds per batch: here, in the loading process, and from start to end."""
    loading.can_share = lambda pid: shares
    data = [np.ones((frames, DIM), "float32")]
    dataset = Dataset.from_config({"class": "StaticDataset", "data": [{"data": data[0]}] * (SEQS * (count + 5)), "output_dim": {"data": (DIM, 2)}})  # fmt: skip  # noqa: E501
    with BatchLoader(dataset) as loader:
        batches = loader.batches(epoch=1, batch_size=10**9, max_seqs=SEQS)
        for _ in range(5):
            next(batches)
        here, there, start = time.process_time(), cpu_of(loader.pid), time.perf_counter()
        for batch in batches:
            host_tensor(batch.feed["data"], tf.float32)
        end = time.perf_counter()
        here, there = time.process_time() - here, cpu_of(loader.pid) - there
    return 1e3 * here / count, 1e3 * there / count, 1e3 * (end - start) / count


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--frames", default="200,1000,5000")
    args = parser.parse_args()
    tf.zeros([])
    for frames in args.frames.split(","):
        for shares in (False, True) * 2:
            print("%.1f MB, " % (DIM * SEQS * int(frames) * 4e-6), "shared" if shares else "pipe  ", end=": ")
            print("here %.2f ms CPU, there %.2f, %.2f from start to end" % measure(int(frames), args.batches, shares))


if __name__ == "__main__":
    main()
