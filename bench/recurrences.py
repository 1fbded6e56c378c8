"""Recurrent units whose frames are computed in parallel, against the loop over their steps; and the linear recurrence.

    python bench/recurrences.py [--units mamba,lru] [--frames 1000] [--batch 1] [--rounds 3] [--cpu]

A training step is the output over all frames and the gradients of all parameters and of the input, for a sum of the
output. Both sides have the same parameters and numbers, and take turns; "ratio" is the median over the rounds of the
time of the parallel form divided by that of `tf.while_loop`. "Step" is one frame of one sequence in a loop of its own,
as in decoding: its time does not depend on the frames before it. Asked: at most 0.1 for mamba with 512 units over 1000
frames.

The linear recurrence (`native_ops/scan`) is compared with copies of the same arrays by memmove, in as many threads:
bytes read and written by a second, as a share of those of the copies. Asked: 0.6. Arrays are larger than the caches.

With ``--cpu`` times are CPU seconds of all threads: for a machine with other load.
"""

from __future__ import annotations

import argparse
import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Callable

import numpy as np
from report import table
from timing import in_turn

from returnn_tf.native.library import c_library
from returnn_tf.native.scans.scan import scan_ops
from returnn_tf.ops.cells import run_cell, unit_class, unit_names
from returnn_tf.ops.initializers import get_initializer
from returnn_tf.util.lazy_tf import tf

ASKED = 0.1
ASKED_BANDWIDTH = 0.6
_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, _TASK, ctypes.c_void_p)


def parallel_units() -> list[str]:
    """Return names of the units that have a form over all frames in parallel."""
    return [name for name in unit_names() if unit_class(name)(64, 64).parallel_kernel() is not None]


class Sides:
    """Both forms of a unit.

    :param opts: ``unit_opts``
    """

    def __init__(self, unit: str, n: int, n_frames: int, batch: int, opts: Any = None) -> None:
        rng = np.random.default_rng(1)
        cells = [unit_class(unit)(n, n, unit_opts=opts) for _ in range(2)]
        cells[1].parallel_kernel = cells[1].native_kernel = cells[1].loop_kernel = lambda *_: None
        specs = cells[0].param_specs()
        self.params = {s.name: tf.constant(self._start(s, rng), tf.float32) for s in specs}
        self.x = tf.constant(rng.normal(0, 1, (n_frames, batch, n)), tf.float32)
        self.parallel, self.steps = (self._training_step(cell) for cell in cells)
        self.frame = self._loop_of_frames(cells[0], batch)

    @staticmethod
    def _start(spec: Any, rng: Any) -> Any:
        return get_initializer("glorot_uniform" if spec.default is None else spec.default)(spec.shape, rng)

    def _training_step(self, cell: Any) -> Callable[[], Any]:
        @tf.function(autograph=False)
        def step(params: Any, x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch([params, x])
                loss = tf.reduce_sum(run_cell(cell, params, x, None)[0])
            return loss, tape.gradient(loss, [*params.values(), x], unconnected_gradients="zero")

        return lambda: [value.numpy() for value in tf.nest.flatten(step(self.params, self.x))]

    def _loop_of_frames(self, cell: Any, batch: int) -> Callable[[int], Any]:
        @tf.function(autograph=False)
        def frames(count: Any) -> Any:
            weights = cell.prepare(self.params, batch=batch, seed=None)
            z = cell.project_input(self.params, self.x[0])
            start = (0, cell.zero_state(batch, z.dtype), tf.zeros([batch, cell.n_out]))

            def step(i: Any, state: Any, _: Any) -> Any:
                out, state = cell.step(weights, cell.project_input(self.params, self.x[0]), state, None)
                return i + 1, state, out

            return tf.while_loop(lambda i, *_: i < count, step, start, parallel_iterations=1)[2]

        return lambda count: frames(tf.constant(count)).numpy()

    def largest_difference(self) -> float:
        """Return the largest difference of the gradients and the loss, relative to the size of each array."""
        pairs = zip(self.parallel(), self.steps())
        return max(float(abs(a - b).max() / max(abs(b).max(), 1e-20)) for a, b in pairs)


def compare_units(args: argparse.Namespace) -> list[list[Any]]:
    """Measure all units; return the rows."""
    rows = []
    for unit in args.units:
        sides = Sides(unit, args.n_out, args.frames, args.batch)
        difference = sides.largest_difference()
        times = in_turn(sides.parallel, sides.steps, args.rounds, cpu=args.cpu)
        sides.frame(1)
        frames = in_turn(partial(sides.frame, 20), partial(sides.frame, 120), args.rounds, cpu=args.cpu)
        parallel, steps = np.median(times, axis=0)
        frame = np.median(frames[:, 1] - frames[:, 0]) / 100
        ratio = np.median(times[:, 0] / times[:, 1])
        rows.append(
            [unit, "%.4g" % (1e3 * parallel), "%.4g" % (1e3 * steps), "%.3f" % ratio, "%.3g" % (1e3 * frame),
             "%.0e" % difference]
        )  # fmt: skip
        print(table(["unit", "parallel ms", "loop ms", "ratio", "step ms", "difference"], rows[-1:]), flush=True)
    return rows


class Scan:
    """The C interface of the linear recurrence on arrays of its own.

    :param parts: 1: real, 2: complex
    :param constant: the factors are the same in all frames
    """

    class Shape(ctypes.Structure):
        """``RtfScanShape``."""

        _fields_ = (
            *((name, ctypes.c_int64) for name in ("frames", "batch", "units")),
            ("lengths", ctypes.c_void_p),
            *((name, ctypes.c_int) for name in ("reverse", "unused", "parts", "constant")),
        )

    class Threads(ctypes.Structure):
        """``RtfThreads``."""

        _fields_ = (("run", _RUN), ("pool", ctypes.c_void_p), ("n_threads", ctypes.c_int))

    def __init__(self, n_frames: int, batch: int, n: int, parts: int, constant: bool, n_threads: int) -> None:
        self.library, self.pool = c_library("scan"), ThreadPoolExecutor(n_threads)
        self.shape = self.Shape(n_frames, batch, n, None, 0, 0, parts, constant)
        self.threads = self.Threads(_RUN(self._run), None, n_threads)
        self.kept: list[Any] = []
        frames, state, factors = n_frames * batch * n, batch * n, n if constant else n_frames * batch * n
        self.a, self.b, self.h0, self.h, self.last = (
            self._array(parts, size) for size in (factors, frames, state, frames, state)
        )
        self.da = self._array(parts, state if constant else frames)
        self.dh, self.db, self.dh0 = (self._array(parts, size) for size in (frames, frames, state))
        self.size, self.n_threads = 4 * frames, n_threads
        self.n_bytes = (4 * parts * frames * (2 if constant else 3), 4 * parts * frames * (3 if constant else 5))

    def _array(self, parts: int, size: int) -> Any:
        """Return an array for each part, aligned as TensorFlow's."""
        pointers = []
        for _ in range(parts):
            raw = np.full(size + 16, 0.5, "float32")
            self.kept.append(raw)
            pointers.append((raw.ctypes.data + 63) // 64 * 64)
        return (ctypes.c_void_p * 2)(*pointers)

    def _run(self, _: Any, n_tasks: int, task: Any, argument: Any) -> None:
        list(self.pool.map(lambda index: task(argument, index), range(n_tasks)))

    def forward(self) -> None:
        """Run the forward pass."""
        arrays = (self.a, self.b, self.h0, self.h, self.last)
        self.library.rtf_scan_forward_f32(ctypes.byref(self.shape), *arrays, ctypes.byref(self.threads))

    def backward(self) -> None:
        """Run the backward pass."""
        arrays = (self.a, self.h0, self.h, self.dh, self.last, self.da, self.db, self.dh0)
        self.library.rtf_scan_backward_f32(ctypes.byref(self.shape), *arrays, ctypes.byref(self.threads))

    def copy(self) -> None:
        """Copy one array of all frames."""
        part = self.size // self.n_threads
        copies = [(self.db[0] + i * part, self.dh[0] + i * part, part) for i in range(self.n_threads)]
        list(self.pool.map(lambda arguments: ctypes.memmove(*arguments), copies))


def compare_bandwidth(args: argparse.Namespace) -> list[list[Any]]:
    """Measure the linear recurrence; return the rows."""
    if scan_ops(tf.float32) is None:
        raise SystemExit("the native op scan can't be used here")
    rows = []
    for parts, constant in ((1, False), (1, True), (2, False), (2, True)):
        scan = Scan(1000, 16, 512, parts, constant, args.threads)
        row: list[Any] = [("real", "complex")[parts - 1] + (", constant factors" if constant else "")]
        for run, n_bytes in ((scan.forward, scan.n_bytes[0]), (scan.backward, scan.n_bytes[1])):
            run()
            times = in_turn(run, scan.copy, 3 * args.rounds, cpu=args.cpu)
            share = np.median((n_bytes / times[:, 0]) / (2 * scan.size / times[:, 1]))
            row += ["%.1f" % (n_bytes / 1e9 / np.median(times[:, 0])), "%.2f" % share]
        rows.append(row)
    return rows


def main() -> None:
    """Compare, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--units", default="mamba,lru,s4d", help="names with commas, or 'all'; '' for none")
    parser.add_argument("--n-out", type=int, default=512)
    parser.add_argument("--frames", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true", help="count CPU seconds")
    args = parser.parse_args()
    args.units = parallel_units() if args.units == "all" else [name for name in args.units.split(",") if name]
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    print(table(["linear recurrence", "forward GB/s", "share", "backward GB/s", "share"], compare_bandwidth(args)))
    print("asked: %g\n" % ASKED_BANDWIDTH)
    rows = compare_units(args)
    if rows:
        print(table(["unit", "parallel ms", "loop ms", "ratio", "step ms", "difference"], rows))
        print("asked of mamba: %g" % ASKED)


if __name__ == "__main__":
    main()
