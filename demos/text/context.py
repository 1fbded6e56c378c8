#!/usr/bin/env python3
"""What decoding label by label costs after a context of some length, in time and in memory.

Reads a model exported with ``returnn-tf export --state``. Labels of the held-out lines bring it to a length of context,
in blocks; then some labels are fed one by one. The median CPU time of one, in a single thread, and the size of all
states that go from label to label are written as JSON for each length.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

BLOCK = 500  # labels fed at once to reach a length; what is kept after them does not depend on it


def labels(path: str) -> Iterator[int]:
    """Yield the labels of all lines of an HDF file, again and again."""
    with h5py.File(path, "r") as file:
        found = file["targets/data/delayed"][()]
    return itertools.cycle(found.tolist())


class Decoder:
    """A model for one sequence, which keeps its states."""

    def __init__(self, folder: str) -> None:
        with open(os.path.join(folder, "model.json"), encoding="utf8") as file:
            entries = json.load(file)["states"]
        self._module = tf.saved_model.load(folder)
        self._call = self._module.signatures["serving_default"]
        self._next = {name: entry["next"] for name, entry in entries.items()}
        self._states = {
            name: tf.zeros([1, *(size or 0 for size in entry["shape"][1:])], entry["dtype"])
            for name, entry in entries.items()
        }

    def feed(self, block: Sequence[int]) -> np.ndarray:
        """Return the distribution of the label after a block: [82]."""
        ids = tf.constant([block], tf.int32)
        outputs: dict[str, Any] = self._call(delayed=ids, delayed_size0=tf.constant([len(block)]), **self._states)
        self._states = {name: outputs[after] for name, after in self._next.items()}
        return outputs["output"][0, -1].numpy()

    @property
    def state_bytes(self) -> int:
        """Return the size of all states."""
        return sum(int(tf.size(state)) * state.dtype.size for state in self._states.values())


def measure(decoder: Decoder, text: Iterator[int], contexts: Sequence[int], repeat: int) -> list[dict[str, float]]:
    """Return one entry for each length of context, in ascending order.

    :param repeat: labels that are timed at each length
    """
    entries, done = [], 0
    for context in contexts:
        while done < context:
            block = list(itertools.islice(text, min(BLOCK, context - done)))
            decoder.feed(block)
            done += len(block)
        times = []
        for label in itertools.islice(text, repeat):
            start = time.process_time()
            probs = decoder.feed([label])
            times.append(time.process_time() - start)
            assert abs(probs.sum() - 1) < 1e-3
        done += repeat
        entry = {"context": context, "ms": 1000 * statistics.median(times[1:]), "state": decoder.state_bytes}
        entries.append(entry)
        print("context %6d: %7.2f ms a label, states of %9d bytes" % (context, entry["ms"], entry["state"]), flush=True)
    return entries


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="exported folder")
    parser.add_argument("text", help="HDF file of lines")
    parser.add_argument("output", help="JSON file to write")
    parser.add_argument("--contexts", type=int, nargs="+", default=[100, 1000, 2500, 5000, 7500, 10000], metavar="N")
    parser.add_argument("--repeat", type=int, default=40, metavar="N", help="labels timed at each length, at least 2")
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    decoder, text = Decoder(args.model), labels(args.text)
    decoder.feed(list(itertools.islice(text, 1)))  # graphs are optimised at the first call
    entries = measure(decoder, text, sorted(args.contexts), args.repeat)
    with open(args.output, "w", encoding="utf8") as file:
        json.dump(entries, file, indent=1)


if __name__ == "__main__":
    main()
