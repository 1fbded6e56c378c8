"""What checkpoints beside the training cost: steps with a state of 200 MB, with and without a save among them.

    python bench/saving.py [--steps N] [--rounds N] [--layers N]

Each round runs N steps without and N steps with one save at their begin, whose writing is awaited in the end. The extra
seconds are given per save, and as a share of 100 steps; CPU seconds too, for a machine with other load. Asked: < 2 %.
"""

from __future__ import annotations

import argparse
import glob
import tempfile
import time
from typing import Any, Callable

import numpy as np

import returnn_tf
from returnn_tf.engine.checkpoints.saver import Saver
from returnn_tf.engine.passes.progress import PassState, Progress

WIDTH, FRAMES, LABELS, PER_SAVE = 2048, 1000, 10, 100


def make(layers: int, folder: str) -> returnn_tf.Config:
    """Return a stack of linear layers, each 16.8 MB, with Adam: three times that."""
    network: dict[str, Any] = {}
    source = "data"
    for number in range(layers):
        network["h%d" % number] = {"class": "linear", "activation": "tanh", "n_out": WIDTH, "from": source}
        source = "h%d" % number
    network["output"] = {"class": "softmax", "loss": "ce", "target": "classes", "from": source}
    return returnn_tf.Config({
        "extern_data": {"data": {"dim": WIDTH}, "classes": {"dim": LABELS, "sparse": True}},
        "network": network,
        "optimizer": {"class": "adam"},
        "model": folder + "/net",
    })  # fmt: skip


class Sides:
    """The steps of a round, without and with a save."""

    def __init__(self, config: returnn_tf.Config, steps: int) -> None:
        self.trainer = returnn_tf.Trainer(returnn_tf.Network.from_config(config, train=True), config)
        self.saver = Saver(config)
        self.steps = steps
        rng = np.random.RandomState(1)
        self.feed = self.trainer.tensors({
            "data": rng.normal(size=(10, FRAMES // 10, WIDTH)).astype("float32"),
            "data/size0": np.full(10, FRAMES // 10, "int32"),
            "classes": rng.randint(0, LABELS, (10, FRAMES // 10)).astype("int32"),
            "classes/size0": np.full(10, FRAMES // 10, "int32"),
        })  # fmt: skip
        self.pauses: list[float] = []

    def state_bytes(self) -> int:
        """Return the bytes of parameters and slots."""
        variables = {**self.trainer.net.params, **self.trainer.state()}
        return sum(var.numpy().nbytes for var in variables.values())

    def without(self) -> None:
        """Run the steps only."""
        for _ in range(self.steps):
            self.trainer.step(self.feed, 1e-4)

    def with_save(self) -> None:
        """As many, and a save."""
        start = time.perf_counter()
        step = self.trainer.step_count
        self.saver.save_within(self.trainer.steps, Progress(1, 0, PassState(steps=step)), {})
        self.pauses.append(time.perf_counter() - start)
        self.without()
        self.saver.wait()
        assert glob.glob("%s.*.step%d.index" % (self.saver.model, step)), "nothing was saved"


def timed(function: Callable[[], None]) -> list[float]:
    """Return wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return [time.perf_counter() - wall, time.process_time() - cpu]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sides = Sides(make(args.layers, folder), args.steps)
        sides.with_save()  # traces
        times = np.array([[timed(sides.without), timed(sides.with_save)] for _ in range(args.rounds)])
        sides.saver.close()
    step = np.median(times[:, 0], axis=0) / args.steps
    extra = np.median(times[:, 1] - times[:, 0], axis=0)
    share = 100 * extra / (PER_SAVE * step)
    print(
        "state %.0f MB; a step %.0f ms (%.0f ms CPU); a save stops the training for %.0f ms and takes %+.2f s more "
        "(%+.2f s CPU): %+.2f %% of %d steps (%+.2f %% of their CPU time), %d rounds"
        % (
            sides.state_bytes() / 1e6,
            *1e3 * step,
            1e3 * np.median(sides.pauses[1:]),
            *extra,
            share[0],
            PER_SAVE,
            share[1],
            args.rounds,
        )
    )


if __name__ == "__main__":
    main()
