"""Training with several processes, by TensorFlow's collectives and by Horovod (Gloo): throughput and costs of a step.

Throughput, and computing of each rank: ranks with one thread each against one rank with one thread, the same global
batch, ``reduce`` "grad" and "param" (synchronised each 50 steps); medians of rounds, in which all alternate; asked of
two ranks: 1.7 and 1.8 times. Beside it, the share of a step in which the first rank has its gradient and waits for that
of all. Overhead: milliseconds of a step of a tiny model with 1 - 64 ranks, which share the cores: an upper
limit of what the engine adds.

    python bench/ranks.py [--rounds 5] [--large 2,4] [--ranks 1,4,16,64] [--engines tensorflow,horovod]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
#: units, layers, sequences of the global batch, frames of each; large: as much as the usual batch_size = 5000
SIZES = {"large": (512, 4, 32, 160), "tiny": (16, 1, 2, 5)}
STEPS = {"large": 60, "tiny": 200}
WARM_UP = 10


ENGINES = ("tensorflow", "horovod")


def settings(size: str, engine: str, reduce_type: str) -> dict[str, Any]:
    """Return the config of a worker."""
    units, layers, _, _ = SIZES[size]
    network: dict[str, Any] = {}
    source = "data"
    for index in range(layers):
        name = "layer%i" % index
        network[name] = {"class": "linear", "activation": "relu", "n_out": units, "from": source}
        source = name
    network["output"] = {"class": "softmax", "loss": "ce", "target": "classes", "from": source}
    distributed = {"engine": engine, "reduce": reduce_type, "sync_steps": 50, "check_size": False}
    return {
        **({"distributed": distributed} if engine else {}),
        "extern_data": {"data": {"dim": units}, "classes": {"dim": units, "sparse": True}},
        "network": network,
        "optimizer": {"class": "sgd"},
        "learning_rate": 1e-4,
        "device": "cpu",
        "tf_session_opts": {"intra_op_parallelism_threads": 1, "inter_op_parallelism_threads": 1},
    }


def work(size: str, engine: str, reduce_type: str, path: str) -> None:
    """Train on random data as a worker; the chief writes the seconds of a step."""
    import numpy as np

    import returnn_tf
    from returnn_tf.engine.distributed import world as worlds
    from returnn_tf.engine.support import devices

    config = returnn_tf.Config(settings(size, engine, reduce_type))
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
    start, computing, communication = time.perf_counter(), time.process_time(), 0.0
    for _ in range(STEPS[size]):
        communication += trainer.step(feed).communication
    computing = time.process_time() - computing
    world.barrier("end")
    totals = {
        "step": time.perf_counter() - start,
        "communication": communication,
        "cpu": statistics.fmean(world.gather(computing)),
    }
    if world.is_chief:
        pathlib.Path(path).write_text(json.dumps({name: value / STEPS[size] for name, value in totals.items()}))
    world.leave()


def measure(size: str, ranks: int, engine: str, reduce_type: str = "grad") -> dict[str, float]:
    """Run a number of workers; return the seconds of a step, and those of them that the first rank waits and sends."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        name = engine if ranks > 1 else "none"
        arguments = [sys.executable, os.path.abspath(__file__), "--work", size, name, reduce_type, path]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = (LAUNCHERS[engine](ranks) if ranks > 1 else [_SESSION]) + arguments
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
        if done.returncode or not os.path.exists(path):
            raise SystemExit("%d ranks of %s failed:\n%s" % (ranks, engine, done.stdout[-2000:]))
        return json.loads(pathlib.Path(path).read_text())


def _horovodrun(ranks: int) -> list[str]:
    launcher = [str(pathlib.Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", str(ranks)]
    # many processes on one machine take long to meet
    return [*launcher, "-H", "localhost:%d" % ranks, "--start-timeout", "600", "--gloo-timeout-seconds", "600"]


#: Starts a program in a session of its own, as horovodrun does: Linux shares the cores out among sessions (autogroup).
_SESSION = "setsid"


def _start_ranks(ranks: int) -> list[str]:
    return [sys.executable, "-m", "tests.reliability.start_ranks", str(ranks), _SESSION]


LAUNCHERS = {"tensorflow": _start_ranks, "horovod": _horovodrun}


def throughput(rounds: int, ranks: Sequence[int], engines: Sequence[str]) -> None:
    """Compare several ranks with one."""
    cases = [(number, engine, kind) for number in ranks for engine in engines for kind in ("grad", "param")]
    alone = (1, "", "grad")
    found: dict[tuple[int, str, str], list[dict[str, float]]] = {case: [] for case in (alone, *cases)}
    for _ in range(rounds):
        for (number, engine, kind), results in found.items():
            results.append(measure("large", number, engine, kind))
    step, cpu = (
        {case: statistics.median(result[name] for result in results) for case, results in found.items()}
        for name in ("step", "cpu")
    )
    print("1 rank, 1 thread: %7.1f ms/step, %7.1f ms computing" % (1e3 * step[alone], 1e3 * cpu[alone]))
    for case in cases:
        share = statistics.median(result["communication"] / result["step"] for result in found[case])
        print(
            "%d ranks, 1 thread each, %-10s %-5s %7.1f ms/step: %.2f x, %4.1f %% communication; %7.1f ms computing"
            % (*case, 1e3 * step[case], step[alone] / step[case], 100 * share, 1e3 * cpu[case])
        )


def overhead(ranks: Sequence[int], engines: Sequence[str]) -> None:
    """Measure a tiny model on many ranks."""
    for number in ranks:
        for engine in engines:
            found = measure("tiny", number, engine)
            print(
                "tiny model, %2d ranks, %-10s %7.2f ms/step, of which waiting and sending %7.2f; %7.2f computing"
                % (number, engine, 1e3 * found["step"], 1e3 * found["communication"], 1e3 * found["cpu"])
            )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large", default="2", help="numbers of ranks for the throughput, comma separated")
    parser.add_argument("--ranks", default="1,4,16,64", help="for the overhead; empty to leave that out")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        size, engine, reduce_type, path = args.work
        work(size, "" if engine == "none" else engine, reduce_type, path)
        return
    engines = [name for name in args.engines.split(",") if name]
    if "horovod" in engines and importlib.util.find_spec("horovod") is None:
        print("Horovod is not installed here; make horovod builds it.")
        engines.remove("horovod")
    if args.rounds:
        throughput(args.rounds, [int(number) for number in args.large.split(",") if number], engines)
    overhead([int(number) for number in args.ranks.split(",") if number], engines)


if __name__ == "__main__":
    main()
