"""Opening an HDF file of many sequences: CPU seconds, and bytes per sequence of index, order of an epoch, and names.

    python bench/hdf_index.py [--seqs N] [--letters ordered|random]

The names have 31 letters. The bytes are those by which the proportional share of the process (PSS) grows, on Linux.
Asked: 25 to 40 bytes for names in an order, and not longer to open than by a list of names.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import subprocess
import sys
import tempfile
import time

import h5py
import numpy as np

from returnn_tf.datasets import Dataset


def make_file(path: str, count: int, letters: str, fixed: bool) -> None:
    """Write a corpus of 3 labels and 2 targets per sequence."""
    if letters == "ordered":
        names = ["corpus/recording-%07d/s%05d" % divmod(number, 37) for number in range(count)]
    else:
        codes = np.random.RandomState(0).randint(ord("a"), ord("z") + 1, size=(count, 31)).astype("u1")
        names = [row.tobytes().decode("ascii") for row in codes]
    with h5py.File(path, "w") as file:
        file["inputs"], file.attrs["inputPattSize"] = np.zeros(3 * count, "i1"), 5
        file["targets/data/classes"] = np.zeros(2 * count, "i1")
        file.create_group("targets/size").attrs["classes"] = [9, 1]
        file["seqLengths"] = np.tile(np.array([[3, 2]], "i4"), (count, 1))
        text = np.array(names, "S31") if fixed else names
        file.create_dataset(
            "seqTags", data=text, chunks=(min(count, 1024),), dtype=None if fixed else h5py.string_dtype()
        )


def memory() -> int:
    """Return the proportional share of the process in bytes."""
    gc.collect()
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))


def measure(path: str) -> None:
    """Open the file and an epoch in random order; in a process of its own, which has not freed any memory yet."""
    before, start = memory(), time.process_time()
    dataset = Dataset.from_config({"class": "HDFDataset", "files": [path], "seq_ordering": "random"})
    seconds, index = time.process_time() - start, memory()
    reader = dataset.open_epoch(1, dataset.data_keys)
    sizes = [(size - before) / len(dataset.seq_lengths()) for size in (index, memory())]
    start = time.process_time()
    reader.tag(0)
    names = time.process_time() - start
    sizes.append((memory() - before) / len(dataset.seq_lengths()))
    reader.close()
    text = (
        "opened in %.2f CPU s, names read in %.2f; bytes per sequence: index %.1f, with the order %.1f, with names %.1f"
    )
    print(text % (seconds, names, *sizes))


def main() -> None:
    """Measure both forms of names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqs", type=int, default=1_000_000)
    parser.add_argument("--letters", choices=("ordered", "random"), default="ordered")
    parser.add_argument("--file", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.file:
        with contextlib.redirect_stdout(None):
            measure(os.path.join(os.path.dirname(args.file), "small.hdf"))  # imports
        measure(args.file)
        return
    with tempfile.TemporaryDirectory() as folder:
        make_file(os.path.join(folder, "small.hdf"), 100, args.letters, fixed=True)
        for fixed in (False, True):
            path = os.path.join(folder, "names.hdf")
            make_file(path, args.seqs, args.letters, fixed)
            print("%s names of %s length: " % (args.letters, "fixed" if fixed else "any"), end="", flush=True)
            subprocess.run([sys.executable, __file__, "--file", path], check=True)


if __name__ == "__main__":
    main()
