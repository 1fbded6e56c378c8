"""A step of training with each optimizer, and with an average of the parameters, against one with Adam.

    python bench/optimizers.py [--only lion] [--rounds 10] [--frames 200] [--sequences 16]

The network is a Transformer of 4 blocks, 256 wide, with 3.3 million parameters. Both sides run in one process in turn;
CPU milliseconds of all threads, medians over the rounds.
"""

from __future__ import annotations

import argparse
from typing import Any, Callable

import numpy as np
from step_memory import LABELS, transformer
from timing import in_turn

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.engine.passes.step_trainer import StepTrainer

FEATURES = 40
ADAM: dict[str, Any] = {"optimizer": {"class": "adam"}}
NAMES = (
    "adamw", "radam", "lion", "lamb", "adafactor", "scaledadam", "schedulefreeadamw", "muon", "adadelta", "adamax",
    "nadamkeras", "sgd",
)  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    **{name: {"optimizer": {"class": name}} for name in NAMES},
    "adam, weight_average": {**ADAM, "weight_average": {"decay": 0.999}},
}


def step_of(settings: dict[str, Any], feed: dict[str, np.ndarray]) -> Callable[[], Any]:
    """Return a function that does a step with a feed."""
    data = {"data": {"dim": FEATURES}, "frames": {"dim": LABELS, "sparse": True}}
    config = Config({"network": transformer(), "extern_data": data, "learning_rate": 1e-5, **settings})
    trainer = StepTrainer(Network.from_config(config, train=True), config)
    tensors = trainer.tensors(feed)
    return lambda: trainer.step(tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="what has this in its name")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--sequences", type=int, default=16)
    args = parser.parse_args()
    rng, lengths = np.random.RandomState(1), np.full(args.sequences, args.frames, "int32")
    feed = {
        "data": rng.normal(0, 1, (args.sequences, args.frames, FEATURES)).astype("float32"),
        "frames": rng.randint(0, LABELS, (args.sequences, args.frames)).astype("int32"),
        "data/size0": lengths,
        "frames/size0": lengths,
    }
    print("%-24s %10s %10s %7s" % ("CPU milliseconds", "Adam", "this", "ratio"))
    adam = step_of(ADAM, feed)
    for name, settings in CASES.items():
        if args.only not in name:
            continue
        times = 1e3 * in_turn(adam, step_of(settings, feed), args.rounds + 2, cpu=True)[2:]
        ratio = np.median(times[:, 1] / times[:, 0])
        print("%-24s %10.1f %10.1f %7.2f" % (name, *np.median(times, axis=0), ratio), flush=True)


if __name__ == "__main__":
    main()
