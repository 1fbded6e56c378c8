"""Adapters against training all parameters: digit errors after fine-tuning on lines of another hand.

    python bench/adapters.py [--shift leaning] [--seeds 3] [--epochs 20] [--work DIR]

A network of two bidirectional LSTMs, 128 wide, with CTC is trained on 5,000 lines of handwritten digits as they were
scanned (those of demos/digits), then on fewer lines that lean, or on lines whose strokes are bent at random: all its
parameters, or adapters. Of some learning rates, the one with the fewest errors on a dev set with the first seed is
taken for all seeds; a seed decides on the order of the lines and the first numbers of adapters. Errors on held-out
lines of other digits are printed, and the share of what training all parameters gains. Asked: 0.9 of it with 2 % of
the numbers. DIR keeps data and models, so that a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from typing import NamedTuple

import numpy as np
from report import table

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DIGITS = os.path.join(ROOT, "demos", "digits")
sys.path.insert(0, DIGITS)

import lines  # noqa: E402

CONFIG = """
import os
behavior_version = 21
log_verbosity = 3
epochs, seed, kind, shift, rate, name = [os.environ[key] for key in ("EPOCHS", "SEED", "KIND", "SHIFT", "RATE", "NAME")]
extern_data = {"data": {"dim": 12}, "classes": {"dim": 10, "sparse": True}}
lines = lambda part, order: {"class": "HDFDataset", "files": [part + ".hdf"], "seq_ordering": order}
train = {**lines(shift + "_train", "laplace:.200"), "random_seed_offset": 1000 * (int(seed) - 1)}
if kind == "base":
    eval_datasets = {other: lines(other + "_test", "sorted") for other in os.environ["SHIFTS"].split()}
else:
    dev, eval_datasets = lines(shift + "_dev", "sorted"), {"test": lines(shift + "_test", "sorted")}
batch_size, max_seqs, num_epochs, random_seed = 2000, 50, int(epochs), int(seed)
lstm = lambda source, direction: {"class": "rec", "unit": "lstm", "n_out": 128, "direction": direction, "from": source}
network = {
    "lstm0_fw": lstm("data", 1), "lstm0_bw": lstm("data", -1),
    "lstm1_fw": lstm(["lstm0_fw", "lstm0_bw"], 1), "lstm1_bw": lstm(["lstm0_fw", "lstm0_bw"], -1),
    "output": {"class": "softmax", "loss": "ctc", "loss_opts": {"beam_width": 1}, "from": ["lstm1_fw", "lstm1_bw"]},
}
optimizer, learning_rate, gradient_clip_global_norm = {"class": "adam"}, float(rate), 5.0
learning_rate_schedule = {"class": "cosine", "unit": "epoch", "final": 0.01}
learning_rate_file, model = name + ".rates", name + "/net"
cleanup_old_models = {"keep_last_n": 1, "keep_best_n": 0, "keep": []}
if kind != "base":
    fine_tune = {"from": "base/net.006"}
if kind == "adapters":
    fine_tune.update(lora={"layers": ["lstm*"], "rank": 2}, rates={"*/lora_b": 4.0})
"""
BASE, BASE_EPOCHS, BASE_RATE = "plain", 6, 0.005
RATES = {"all": (0.01, 0.02), "adapters": (0.02,)}
SETS_PER_EPOCH = 3  # the training data, and two that are evaluated
MARGIN = 3  # columns on both sides of a line, for what leans out


class Set(NamedTuple):
    """How a set is composed.

    :param digits: which scanned digits it has
    :param lines: how many
    :param seed: of what is drawn
    :param bend: how much strokes are bent at random
    :param lean: by how many columns a line moves from row to row
    """

    digits: str
    lines: int
    seed: int
    bend: float = 0.0
    lean: float = 0.0


SHIFTS = ("leaning", "bent")
SETS = {
    "plain_train": Set("train", 5000, 0),
    "leaning_train": Set("train", 800, 21, lean=0.3),
    "leaning_dev": Set("dev", 200, 22, lean=0.3),
    "leaning_test": Set("heldout", 400, 23, lean=0.3),
    "bent_train": Set("train", 1500, 1, bend=0.8),
    "bent_dev": Set("dev", 400, 2, bend=0.8),
    "bent_test": Set("heldout", 800, 3, bend=0.8),
}


class Found(NamedTuple):
    """What came of a training: error rates of its last epoch in percent by dataset, and how many numbers it trained."""

    errors: dict[str, float]
    numbers: str


def compose(work: str) -> None:
    """Write the lines and the config."""
    digits = lines.load_digits(os.path.join(DIGITS, "digits.hdf"))
    sources = lines.split_sources(len(digits.labels), 1)
    for name, of in SETS.items():
        composed = lines.compose(digits, sources[of.digits], of.lines, (1, of.seed), bend=of.bend)
        if of.lean:
            composed = [line._replace(pixels=leaning(line.pixels, of.lean)) for line in composed]
        lines.write_hdf(os.path.join(work, name + ".hdf"), composed, name, {})
    with open(os.path.join(work, "adapters.config"), "w", encoding="utf8") as file:
        file.write(CONFIG)


def leaning(pixels: np.ndarray, lean: float) -> np.ndarray:
    """Return a line whose rows are moved against each other: [time, rows] -> [time + 2 MARGIN, rows]."""
    padded = np.pad(pixels, ((MARGIN, MARGIN), (0, 0)))
    columns, rows = np.arange(len(padded)), padded.shape[1]
    moved = [
        np.interp(columns + lean * (row - (rows - 1) / 2), columns, padded[:, row], left=0, right=0)
        for row in range(rows)
    ]
    return np.stack(moved, axis=1).astype("float32")


def train(work: str, kind: str, shift: str, rate: float, *, seed: int, epochs: int) -> Found:
    """Train as far as a model is not trained yet, and return what its last epoch reached."""
    name = kind if kind == "base" else "%s_%s_%g_%d" % (shift, kind, rate, seed)
    settings = {"EPOCHS": str(epochs), "SEED": str(seed), "KIND": kind, "SHIFT": shift, "RATE": str(rate), "NAME": name}
    command = [sys.executable, "-m", "returnn_tf", "adapters.config"]
    environment = {**os.environ, **settings, "SHIFTS": " ".join(SHIFTS), "PYTHONPATH": ROOT}
    log_path = os.path.join(work, name + ".log")
    if len(recorded_errors(work, name)) < epochs * SETS_PER_EPOCH:
        with open(log_path, "a", encoding="utf8") as log:
            subprocess.run(command, cwd=work, env=environment, stdout=log, stderr=subprocess.STDOUT, check=True)
    with open(log_path, encoding="utf8") as log:
        numbers = re.findall(r": ([\d,]+) of [\d,]+ numbers are trained", log.read())
    errors = {part: 100 * float(error) for part, error in recorded_errors(work, name)}
    return Found(errors, numbers[0] if numbers else "")


def recorded_errors(work: str, name: str) -> list[tuple[str, str]]:
    """Return (dataset, error rate) of all epochs so far, from the learning-rate file of a training."""
    path = os.path.join(work, name + ".rates")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf8") as file:
        return re.findall(r"'(\w+)_error': ([\d.e-]+)", file.read())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shift", choices=SHIFTS, default="", help="only this one")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--work", default="", help="keep data and models here")
    args = parser.parse_args()
    rows: list[tuple[object, ...]] = []
    with tempfile.TemporaryDirectory() as temporary:
        work = args.work or temporary
        os.makedirs(work, exist_ok=True)
        compose(work)
        base = train(work, "base", BASE, BASE_RATE, seed=1, epochs=BASE_EPOCHS)
        for shift in [args.shift] if args.shift else SHIFTS:
            before, gain = base.errors[shift], {}
            rows.append((shift, "before", "", "", "", "%.1f" % before, "", ""))
            for kind, rates in RATES.items():
                first = {rate: train(work, kind, shift, rate, seed=1, epochs=args.epochs) for rate in rates}
                best = min(rates, key=lambda rate: first[rate].errors["dev"])
                others = [
                    train(work, kind, shift, best, seed=seed, epochs=args.epochs) for seed in range(2, args.seeds + 1)
                ]
                found = [first[best], *others]
                dev, test = (statistics.mean(one.errors[part] for one in found) for part in ("dev", "test"))
                spread = "%.1f - %.1f" % tuple(of(one.errors["test"] for one in found) for of in (min, max))
                gain[kind] = before - test
                figures = ["%.1f" % dev, "%.1f" % test, spread, "%.2f" % (gain[kind] / gain["all"])]
                rows.append((shift, kind, found[0].numbers, best, *figures))
    print(table(("lines", "trained", "numbers", "rate", "dev, %", "held-out, %", "seeds", "share"), rows))


if __name__ == "__main__":
    main()
