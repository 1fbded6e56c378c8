"""Steps that are timed in processes of their own, in turn, so that other load on the machine hits all of them.

Imports numpy only: some workers run in the Python of another framework.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))


class Worker:
    """A process that is ready to run steps; it sleeps while another one is timed.

    :param script: relative to this folder; it calls `serve`
    :param threads: for the script in ``BENCH_THREADS``, and for libraries with OpenMP
    :param by_cpu: count CPU time of all threads
    """

    def __init__(
        self, name: str, python: str, script: str, args: Sequence[str], threads: int, by_cpu: bool, **environment: str
    ) -> None:
        self.name = name
        self.times: dict[str, list[float]] = {}
        self.by_cpu = by_cpu
        self.last: dict[str, Any] = {}
        self._steps: dict[str, int] = {}
        path = os.path.join(HERE, script)
        variables = {"BENCH_THREADS": str(threads), "OMP_NUM_THREADS": str(threads), "TF_CPP_MIN_LOG_LEVEL": "3"}
        # Else TensorFlow takes as many as there are cores, for parts of an op and for ops side by side.
        variables.update({"TF_NUM_INTRAOP_THREADS": str(threads), "TF_NUM_INTEROP_THREADS": str(threads)})
        paths = os.pathsep.join([os.path.dirname(path), HERE, os.path.dirname(HERE)])
        self.process = subprocess.Popen(
            [python, path, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **variables, **environment, "PYTHONPATH": paths},
        )  # fmt: skip

    def run(self, what: str = "step") -> None:
        """Time a step, in the mean of as many as take a third of a second, and note it in ``times``."""
        if what not in self._steps:
            self._steps[what] = max(1, int(0.3 / self._ask(what, 1)))
        self.times.setdefault(what, []).append(self._ask(what, self._steps[what]))

    def wait(self, what: str = "step", steps: int = 0) -> None:
        """Wait until the worker is ready: nothing is measured before, since starting takes all threads.

        :param steps: how many to run without noting their time
        """
        self._ask(what, steps)

    def steps(self, what: str = "step") -> int:
        """Return how many `run` takes at once."""
        return self._steps.get(what, 1)

    def median(self, what: str = "step") -> float:
        """Return the median seconds of a step."""
        return float(np.median(self.times[what]))

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def _ask(self, what: str, steps: int) -> float:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write("%s %d\n" % (what, steps))
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("%s ended" % self.name)
        self.last = json.loads(line)
        return self.last["cpu" if self.by_cpu else "seconds"] / max(1, steps)


def serve(make_steps: Callable[[], dict[str, Callable[[], Any]]], warm_up: bool = True) -> None:
    """Run a worker: make its steps, then answer each line "name n" with the time of n of them.

    :param warm_up: run each step once before, so that what is built in its first call is not timed

    An answer also has the last result of the step, how often a thread went to sleep (``sleeps``), and the most memory
    so far in MB: of the process (``peak_mb``), and beyond what it had before its steps were made (``grown_mb``).
    """
    out, sys.stdout = sys.stdout, sys.stderr
    before = status_mb("VmRSS")
    steps = make_steps()
    if warm_up:
        for step in steps.values():
            step()
    for line in sys.stdin:
        name, count = line.split()
        start, cpu, slept, result = time.perf_counter(), time.process_time(), sleeps(), None
        for _ in range(int(count)):
            result = steps[name]()
        answer = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu, "result": result}
        answer["sleeps"] = sleeps() - slept
        peak = status_mb("VmHWM")
        print(json.dumps({**answer, "peak_mb": peak, "grown_mb": peak - before}), file=out, flush=True)


def sgemm_gflops(size: int = 2048) -> float:
    """Return the peak of this machine, as numpy's library reaches it with all its cores."""
    a, b = (np.random.RandomState(i).rand(size, size).astype("float32") for i in range(2))
    start = time.perf_counter()
    np.dot(a, b)
    return 2 * size**3 / (time.perf_counter() - start) / 1e9


def sleeps() -> int:
    """Return how often a thread of this process has gone to sleep so far: to wait for another one, or for data."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def status_mb(key: str) -> float:
    """Return the memory of this process in MB, by the keys of ``/proc/self/status``."""
    with open("/proc/self/status", encoding="utf8") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith(key))
