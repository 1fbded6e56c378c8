"""Adapters against training all parameters: digit errors after fine-tuning on bent lines.

    python bench/adapters.py [--seeds 3] [--epochs 20] [--work DIR]

A network of two bidirectional LSTMs, 128 wide, with CTC is trained on 5,000 lines of handwritten digits as they were
scanned (those of demos/digits), then on 1,500 lines with bent strokes: all its parameters, or adapters of rank 2. Of
some learning rates, the one with the fewest errors on a dev set over all seeds is taken; its errors on held-out lines
of other digits are printed, and the gain. Asked: 0.9 of the gain with 2 % of the numbers. DIR keeps data
and models, so that a run that was interrupted goes on.
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

from report import table

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DIGITS = os.path.join(ROOT, "demos", "digits")
sys.path.insert(0, DIGITS)

import lines  # noqa: E402

CONFIG = """
import os
behavior_version = 21
log_verbosity = 3
epochs, seed, kind, rate, name = [os.environ[key] for key in ("EPOCHS", "SEED", "KIND", "RATE", "NAME")]
extern_data = {"data": {"dim": 12}, "classes": {"dim": 10, "sparse": True}}
lines = lambda part, order: {"class": "HDFDataset", "files": [part + ".hdf"], "seq_ordering": order}
train, dev = lines("train" if kind == "base" else "bent_train", "laplace:.200"), lines("bent_dev", "sorted")
eval_datasets = {"test": lines("bent_test", "sorted")}
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
    fine_tune["lora"] = {"layers": ["lstm*"], "rank": 2}
"""
BASE_EPOCHS, BASE_RATE = 6, 0.005
RATES = {"all": (0.005, 0.01, 0.02), "adapters": (0.02, 0.03, 0.05)}
BEND = 0.8
#: name of the set -> (digits of, lines, bend)
SETS = {
    "train": ("train", 5000, 0.0),
    "bent_train": ("train", 1500, BEND),
    "bent_dev": ("dev", 400, BEND),
    "bent_test": ("heldout", 800, BEND),
}


class Found(NamedTuple):
    """What came of a training: error rates in percent, and how many numbers were trained."""

    dev: float
    test: float
    numbers: str


def compose(work: str) -> None:
    """Write the lines and the config."""
    digits = lines.load_digits(os.path.join(DIGITS, "digits.hdf"))
    sources = lines.split_sources(len(digits.labels), 1)
    for number, (name, (part, count, bend)) in enumerate(SETS.items()):
        composed = lines.compose(digits, sources[part], count, (1, number), bend=bend)
        lines.write_hdf(os.path.join(work, name + ".hdf"), composed, name, {})
    with open(os.path.join(work, "adapters.config"), "w", encoding="utf8") as file:
        file.write(CONFIG)


def train(work: str, kind: str, rate: float, *, seed: int, epochs: int) -> Found:
    """Train as far as a model is not trained yet, and return what its last epoch reached."""
    name = kind if kind == "base" else "%s_%g_%d" % (kind, rate, seed)
    settings = {"EPOCHS": str(epochs), "SEED": str(seed), "KIND": kind, "RATE": str(rate), "NAME": name}
    command = [sys.executable, "-m", "returnn_tf", "adapters.config"]
    environment = {**os.environ, **settings, "PYTHONPATH": ROOT}
    log_path = os.path.join(work, name + ".log")
    with open(log_path, "a", encoding="utf8") as log:
        subprocess.run(command, cwd=work, env=environment, stdout=log, stderr=subprocess.STDOUT, check=True)
    with open(log_path, encoding="utf8") as log:
        text = log.read()
    with open(os.path.join(work, name + ".rates"), encoding="utf8") as file:
        recorded = file.read()
    dev, test = (100 * float(re.findall(r"'%s_error': ([\d.e-]+)" % part, recorded)[-1]) for part in ("dev", "test"))
    numbers = re.findall(r": ([\d,]+) of [\d,]+ numbers are trained", text)
    return Found(dev, test, numbers[0] if numbers else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--work", default="", help="keep data and models here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = args.work or temporary
        os.makedirs(work, exist_ok=True)
        compose(work)
        before = train(work, "base", BASE_RATE, seed=1, epochs=BASE_EPOCHS).test
        rows: list[tuple[object, ...]] = [("before", "", "", "", "%.1f" % before, "", "")]
        for kind, rates in RATES.items():
            found = {
                rate: [train(work, kind, rate, seed=seed, epochs=args.epochs) for seed in range(1, args.seeds + 1)]
                for rate in rates
            }
            best = min(rates, key=lambda rate: statistics.mean(one.dev for one in found[rate]))
            dev, test = (statistics.mean(values) for values in zip(*(one[:2] for one in found[best])))
            spread = "%.1f - %.1f" % (min(one.test for one in found[best]), max(one.test for one in found[best]))
            figures = ["%.1f" % dev, "%.1f" % test, spread, "%.1f" % (before - test)]
            rows.append((kind, found[best][0].numbers, best, *figures))
    print(table(("trained", "numbers", "rate", "dev, %", "held-out, %", "seeds", "gain"), rows))


if __name__ == "__main__":
    main()
