"""Time to the first batch, memory and speed of LmDataset on a large text, beside a list of its lines.

    python bench/lm_loading.py [--megabytes N] [--seqs N] [--file PATH]

The text is made up: words with frequencies by Zipf's law, 20 words per line, until it has the size. Each row is a
process of its own: seconds until the first batch (index, order and reading included, after the imports) by the clock
and of the CPU, the memory it added by then, and sequences and words per CPU second from there on, for machines with
other load. A list of lines is what is simplest to write.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
from report import table

from returnn_tf.datasets import Dataset

NUM_WORDS, WORDS_PER_LINE, BLOCK = 50000, 20, 50000


def write_text(path: str, size: int) -> None:
    """Write a text of about this number of bytes."""
    rng = np.random.RandomState(1)
    words = np.array([word_of(i) for i in range(NUM_WORDS)], object)
    weights = 1 / np.arange(1, NUM_WORDS + 1)
    with open(path, "w", encoding="utf8") as file:
        while file.tell() < size:
            lengths = rng.randint(1, 2 * WORDS_PER_LINE, size=BLOCK)
            chosen = iter(words[rng.choice(NUM_WORDS, size=lengths.sum(), p=weights / weights.sum())])
            file.writelines(" ".join(itertools.islice(chosen, int(n))) + "\n" for n in lengths)


def word_of(index: int) -> str:
    """Return a word of letters, the frequent ones short."""
    return np.base_repr(index + 10, 36).lower()


def options(path: str, order: str) -> dict[str, Any]:
    """Return a dataset as configs have it."""
    vocab = {"labels": ["<s>", "<unk>", *map(word_of, range(NUM_WORDS))], "unknown_label": "<unk>", "seq_postfix": [0]}
    return {"class": "LmDataset", "corpus_file": path, "orth_vocab": vocab, "seq_ordering": order}


class LinesInMemory:
    """The simplest way: all lines in a list, and a dict of the words."""

    def __init__(self, path: str, order: str) -> None:
        with open(path, encoding="utf8") as file:
            self.lines = file.read().splitlines()
        self.ids = {word_of(i): i + 2 for i in range(NUM_WORDS)}
        numbers = np.arange(len(self.lines))
        if order == "random":
            numbers = np.random.RandomState(1).permutation(len(self.lines))
        if order == "sorted":
            numbers = np.argsort([len(line) for line in self.lines], kind="stable")
        self.order = numbers

    def lengths(self) -> Any:
        """Yield the number of labels of each sequence, read in order."""
        for index in self.order:
            ids = [self.ids.get(word, 1) for word in self.lines[index].split()]
            yield len(np.array([*ids, 0], np.int32))


def measure(side: str, order: str, path: str, num_seqs: int) -> dict[str, float]:
    """Return figures of one side, measured in this process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, start_cpu = time.perf_counter(), time.process_time()
    if side == "LmDataset":
        dataset = Dataset.from_config(options(path, order))
        next(dataset.batches(1, batch_size=5000, max_seqs=100))
        lengths: Any = (len(seq.data["data"]) for seq in dataset.sequences(1))
    else:
        lengths = LinesInMemory(path, order).lengths()
        list(itertools.islice(lengths, 100))
    first, first_cpu = time.perf_counter() - start, time.process_time() - start_cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    next(lengths)
    start = time.process_time()
    words = sum(itertools.islice(lengths, num_seqs))
    seconds = time.process_time() - start
    return {
        "first": first,
        "cpu": first_cpu,
        "memory": memory / 1024,
        "seqs": num_seqs / seconds,
        "words": words / seconds,
    }


def main() -> None:
    """Make the text and print a row for each side and order."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--seqs", type=int, default=50000, help="sequences to read for the speed")
    parser.add_argument("--file", help="a text that is there")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--order", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(measure(args.side, args.order, args.file, args.seqs)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = args.file or os.path.join(folder, "corpus.txt")
        if not args.file:
            write_text(path, args.megabytes << 20)
        rows = []
        for side, order in itertools.product(("LmDataset", "list of lines"), ("default", "random", "sorted")):
            command = [
                sys.executable,
                __file__,
                "--side",
                side,
                "--order",
                order,
                "--file",
                path,
                "--seqs",
                str(args.seqs),
            ]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            row = json.loads(done.stdout.splitlines()[-1])
            rows.append([side, order, *("%.4g" % row[name] for name in ("first", "cpu", "memory", "seqs", "words"))])
        print("%.0f MB" % (os.path.getsize(path) / 2**20))
        print(table(["", "order", "first batch (s)", "of CPU", "memory (MB)", "seqs/s", "words/s"], rows))


if __name__ == "__main__":
    main()
