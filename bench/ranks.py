"""Training with several processes: throughput of two ranks, and what each step costs with many.

Throughput: two ranks with one thread each against one rank with one thread, the same global batch, for
``horovod_reduce_type`` "grad" and "param" (synchronised each 50 steps); medians of rounds, which alternate; asked:
1.7 and 1.8 times. Overhead: milliseconds of a step of a tiny model with 1 - 64 ranks of Gloo, which share the cores, so
that it is an upper limit of what the engine and Horovod add.

    python bench/ranks.py [--rounds 5] [--ranks 1,4,16,64]
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
#: units, layers, sequences of the global batch, frames of each; large: as much as the usual batch_size = 5000
SIZES = {"large": (512, 4, 32, 160), "tiny": (16, 1, 2, 5)}
STEPS = {"large": 60, "tiny": 200}
WARM_UP = 10


def settings(size: str, several: bool, reduce_type: str) -> dict[str, Any]:
    """Return the config of a worker."""
    units, layers, _, _ = SIZES[size]
    network: dict[str, Any] = {}
    source = "data"
    for index in range(layers):
        name = "layer%i" % index
        network[name] = {"class": "linear", "activation": "relu", "n_out": units, "from": source}
        source = name
    network["output"] = {"class": "softmax", "loss": "ce", "target": "classes", "from": source}
    return {
        "extern_data": {"data": {"dim": units}, "classes": {"dim": units, "sparse": True}},
        "network": network,
        "optimizer": {"class": "sgd"},
        "learning_rate": 1e-4,
        "device": "cpu",
        "use_horovod": several,
        "horovod_check_world_size": False,
        "horovod_reduce_type": reduce_type,
        "horovod_param_sync_step": 50,
        "tf_session_opts": {"intra_op_parallelism_threads": 1, "inter_op_parallelism_threads": 1},
    }


def work(size: str, several: bool, reduce_type: str, path: str) -> None:
    """Train on random data as a worker; the chief writes the seconds of a step."""
    import numpy as np

    import returnn_tf
    from returnn_tf.engine.distributed import world as worlds
    from returnn_tf.engine.support import devices

    config = returnn_tf.Config(settings(size, several, reduce_type))
    world = worlds.start(config)
    devices.set_up(config)  # one thread
    trainer = returnn_tf.Trainer(returnn_tf.Network.from_config(config, train=True), config)
    units, _, sequences, frames = SIZES[size]
    rows = max(sequences // world.size, 1)
    rng = np.random.default_rng(world.rank)
    feed = {
        "data": rng.normal(size=(rows, frames, units)).astype("float32"),
        "classes": rng.integers(0, units, (rows, frames)).astype("int32"),
        "data/size0": np.full([rows], frames, "int32"),
        "classes/size0": np.full([rows], frames, "int32"),
    }
    trainer.steps.ranks.control.more = True
    for _ in range(WARM_UP):
        trainer.step(feed)
    world.barrier("start")
    start, communication = time.perf_counter(), 0.0
    for _ in range(STEPS[size]):
        communication += trainer.step(feed).communication
    world.barrier("end")
    seconds = (time.perf_counter() - start) / STEPS[size]
    if world.is_chief:
        pathlib.Path(path).write_text(json.dumps({"step": seconds, "communication": communication / STEPS[size]}))
    world.leave()


def measure(size: str, ranks: int, reduce_type: str = "grad") -> dict[str, float]:
    """Run a number of workers; return the seconds of a step."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        arguments = [sys.executable, os.path.abspath(__file__), "--work", size, str(int(ranks > 1)), reduce_type, path]
        launcher = [str(pathlib.Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", str(ranks)]
        # many processes on one machine take long to meet
        launcher += ["-H", "localhost:%d" % ranks, "--start-timeout", "600", "--gloo-timeout-seconds", "600"]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = (launcher if ranks > 1 else []) + arguments
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode or not os.path.exists(path):
            raise SystemExit("%d ranks failed:\n%s" % (ranks, done.stdout[-2000:]))
        return json.loads(pathlib.Path(path).read_text())


def throughput(rounds: int) -> None:
    """Compare two ranks with one."""
    found: dict[str, list[float]] = {"one": [], "grad": [], "param": []}
    for _ in range(rounds):
        for name, times in found.items():
            one = name == "one"
            times.append(measure("large", 1 if one else 2, "grad" if one else name)["step"])
    middle = {name: statistics.median(times) for name, times in found.items()}
    print("1 rank, 1 thread:        %7.1f ms/step" % (1e3 * middle["one"]))
    for name in ("grad", "param"):
        print(
            "2 ranks, 1 thread, %-5s %7.1f ms/step: %.2f x" % (name, 1e3 * middle[name], middle["one"] / middle[name])
        )


def overhead(ranks: list[int]) -> None:
    """Measure a tiny model on many ranks."""
    for number in ranks:
        found = measure("tiny", number)
        print(
            "tiny model, %2d ranks of Gloo: %7.2f ms/step, of which waiting and sending %7.2f"
            % (number, 1e3 * found["step"], 1e3 * found["communication"])
        )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", default="1,4,16,64", help="comma separated; empty to leave that out")
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        size, several, reduce_type, path = args.work
        work(size, several == "1", reduce_type, path)
        return
    try:
        import horovod  # noqa: F401
    except ImportError:
        print("Horovod is not installed here; make horovod builds it.")
        return
    if args.rounds:
        throughput(args.rounds)
    overhead([int(number) for number in args.ranks.split(",") if number])


if __name__ == "__main__":
    main()
