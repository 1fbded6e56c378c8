#!/usr/bin/env python3
"""How long it takes to import, plan, describe and trace: a network of 150 layers, medians of several runs.

    python bench/plan.py [--layers 150] [--runs 5]

Each figure comes from processes of its own, since imports and caches count. Limits: import < 0.2 s and without
TensorFlow,
plan < 0.5 s, `returnn-tf check` < 2 s, tracing the train step < 15 s.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_NETWORK = """
def make_network(layers):
    # Blocks of five layers with a residual connection, as encoders have them.
    network = {"in": {"class": "linear", "activation": None, "n_out": 64, "from": "data"}}
    last = "in"
    for i in range((layers - 2) // 5):
        b = "b%i_" % i
        network[b + "norm"] = {"class": "layer_norm", "from": last}
        network[b + "ff1"] = {"class": "linear", "activation": "relu", "n_out": 128, "from": b + "norm"}
        network[b + "ff2"] = {"class": "linear", "activation": None, "n_out": 64, "from": b + "ff1", "dropout": 0.1}
        network[b + "drop"] = {"class": "dropout", "dropout": 0.1, "from": b + "ff2"}
        network[b + "out"] = {"class": "combine", "kind": "add", "from": [last, b + "drop"], "n_out": 64}
        last = b + "out"
    network["output"] = {"class": "softmax", "loss": "ce", "target": "classes", "from": last}
    return network
"""

_CONFIG = (
    _NETWORK
    + """
behavior_version = 21
extern_data = {"data": {"dim": 40}, "classes": {"dim": 50, "sparse": True}}
network = make_network(LAYERS)
optimizer = {"class": "adam"}
learning_rate = 0.001
"""
)

_IMPORT = """
import time; start = time.perf_counter()
import returnn_tf
seconds = time.perf_counter() - start
import sys; assert "tensorflow" not in sys.modules
print(seconds)
"""
_PLAN = """
import sys, time
from returnn_tf.config import Config
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.graph.registry import LAYERS
config = Config.from_file(sys.argv[1])
LAYERS.load()
start = time.perf_counter()
plan = plan_from_config(config, train=True)
seconds = time.perf_counter() - start
assert "tensorflow" not in sys.modules
assert sum(n.extern_key is None for n in plan.nodes) >= int(sys.argv[2]) - 5
print(seconds)
"""
_CHECK = """
import subprocess, sys, time
start = time.perf_counter()
subprocess.run([sys.executable, "-m", "returnn_tf", "check", sys.argv[1]], check=True, stdout=subprocess.DEVNULL)
print(time.perf_counter() - start)
"""
_TRACE = """
import sys, time, numpy
import returnn_tf, tensorflow
config = returnn_tf.Config.from_file(sys.argv[1])
net = returnn_tf.Network.from_config(config, train=True)
trainer = returnn_tf.Trainer(net, config)
feed = {"data": numpy.zeros((2, 7, 40), "float32"), "data/size0": [7, 5],
        "classes": numpy.zeros((2, 7), "int32"), "classes/size0": [7, 5]}
start = time.perf_counter()
trainer.step(feed, learning_rate=0.001)
print(time.perf_counter() - start)
"""


def measure(code: str, *args: str, runs: int) -> float:
    """Return the median of what the code prints last, each run in a new process."""
    env = dict(os.environ, PYTHONPATH=str(ROOT), TF_CPP_MIN_LOG_LEVEL="2")
    seconds = []
    for _ in range(runs):
        command = [sys.executable, "-c", code, *args]
        out = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
        seconds.append(float(out.split()[-1]))
    return statistics.median(seconds)


def main() -> int:
    """Print one line per figure; exit code 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=150)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "big.config")
        Path(config).write_text("#!returnn-tf\n" + _CONFIG.replace("LAYERS", str(args.layers)))
        for name, code, limit, runs in (
            ("import returnn_tf", _IMPORT, 0.2, args.runs),
            ("plan of %i layers" % args.layers, _PLAN, 0.5, args.runs),
            ("returnn-tf check", _CHECK, 2.0, args.runs),
            ("first train step (trace and run)", _TRACE, 15.0, min(args.runs, 3)),
        ):
            seconds = measure(code, config, str(args.layers), runs=runs)
            missed |= seconds > limit
            print("%-34s %7.3f s  (limit %.1f s)%s" % (name, seconds, limit, "  MISSED" if seconds > limit else ""))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
