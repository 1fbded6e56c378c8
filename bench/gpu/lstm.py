"""The LSTM on a GPU: are the kernels right, and how fast are they beside cuDNN.

    python bench/gpu/lstm.py [--rounds N] [--units 320,512,1024] [--kinds f32,tf32,bf16]

Needs nvcc, g++, NumPy and PyTorch with CUDA, but no TensorFlow. A layer, forward and backward with all gradients, is
compared with PyTorch in float64, then timed in turn with ``torch.nn.LSTM`` (cuDNN): medians, dense batches, and ragged
ones with lengths of 50 - 100 %, which PyTorch gets packed beforehand. Asked: at most 1.0 x cuDNN's time on dense
batches, 0.7 x on ragged ones. ``us/step``: our recurrence alone, forward and backward. f32: products as exact as
those of float on both sides; tf32: both sides may use TF32.

``--small`` only compares, small sizes; ``--check`` does that under compute-sanitizer. ``--emulated`` does it on the
CPU, without a GPU, with a PyTorch for the CPU.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from importlib import import_module
from typing import Any, Callable

import numpy as np
from building import ROOT, gpu_library, import_torch, milliseconds

sys.path.insert(0, ROOT)

from lstm_sides import KINDS, RESULTS, Ours, Problem, Torch, make_problem

from tests.native.cuda.recurrences import Kernels

ASKED = {False: 1.0, True: 0.7}  # by ragged
#: of the largest number of a result
TOLERANCES = {"f32": 1e-5, "tf32": 1e-2, "bf16": 6e-2, "f16": 1e-2}
#: frames, batch, units
SMALL = [(3, 2, 5), (4, 17, 40)]
CHECKED = [(20, 16, 320), (20, 33, 512), (12, 64, 1024), (6, 20, 1500), (4, 20, 2200)]


def compare(torch: Any, kernels: Kernels, problem: Problem, kind: str) -> None:
    """Print the largest differences from float64, relative to the largest number of a result.

    :raises AssertionError: one is too large
    """
    exact = Torch(torch, problem, "float64").results()
    ours = Ours(torch, kernels, problem, kind).step()
    worst = {name: float((ours[name].double() - exact[name]).abs().max() / exact[name].abs().max()) for name in RESULTS}
    print("  %-5s %s" % (kind, ", ".join("%s %.1e" % item for item in worst.items())), flush=True)
    assert max(worst.values()) < TOLERANCES[kind], "the kernels give something else than float64"


def compare_sizes(torch: Any, kernels: Kernels, device: str, sizes: list[tuple[int, int, int]]) -> None:
    """Compare all kinds of sizes, dense and ragged."""
    for size in sizes:
        for ragged in (False, True):
            problem = make_problem(torch, device, size, ragged)
            print("T %d, B %d, H %d, %s" % (*size, "ragged" if ragged else "dense"))
            for kind in KINDS:
                compare(torch, kernels, problem, kind)


def in_turn(torch: Any, sides: dict[str, Callable[[], Any]], rounds: int, repeat: int) -> dict[str, float]:
    """Return the median milliseconds of each side."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for step in sides.values():
        step()
    for _ in range(rounds):
        for name, step in sides.items():
            times[name].append(milliseconds(torch, step, repeat))
    return {name: float(np.median(values)) for name, values in times.items()}


def measure(torch: Any, kernels: Kernels, problem: Problem, kind: str, rounds: int) -> None:
    """Print a row of the table."""
    _, dtype, tf32 = KINDS[kind]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    ours, theirs = Ours(torch, kernels, problem, kind), Torch(torch, problem, dtype)
    repeat = 3 if problem.frames >= 1000 else 10
    time = in_turn(torch, {"ours": ours.step, "cuDNN": theirs.step}, rounds, repeat)
    parts = in_turn(torch, {"forward": ours.recurrence, "backward": ours.recurrence_backward}, rounds, repeat)
    ragged, ratio = problem.lengths is not None, time["ours"] / time["cuDNN"]
    steps: list[float] = [1e3 * parts[part] / problem.frames for part in ("forward", "backward")]
    print(
        "| %d | %d | %d | %s | %s | %.3f | %.3f | %.2f | %.1f | %.2f, %.2f |%s"
        % (problem.units, problem.batch, problem.frames, kind, "ragged" if ragged else "dense", time["ours"],
           time["cuDNN"], ratio, ASKED[ragged], *steps, "" if ratio <= ASKED[ragged] else " slower than asked"),
        flush=True,
    )  # fmt: skip


def sanitize() -> None:
    """Compare small sizes under each tool of compute-sanitizer.

    :raises SystemExit: it is not there, or finds something
    """
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer is None:
        raise SystemExit("there is no compute-sanitizer")
    for tool in ("memcheck", "racecheck", "synccheck", "initcheck"):
        command = [sanitizer, "--tool", tool, "--error-exitcode", "1", sys.executable, __file__, "--small"]
        done = subprocess.run(command, check=False)
        print("%s: %s" % (tool, "nothing found" if done.returncode == 0 else "exit status %d" % done.returncode))
        if done.returncode != 0:
            raise SystemExit(1)


def numbers(text: str) -> list[int]:
    """Return the numbers of a list with commas."""
    return [int(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="timed runs of each side")
    parser.add_argument("--units", type=numbers, default=[320, 512, 1024])
    parser.add_argument("--batch", type=numbers, default=[16, 32, 64])
    parser.add_argument("--frames", type=numbers, default=[100, 1000])
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=["f32", "tf32", "bf16"])
    parser.add_argument("--small", action="store_true", help="only compare, small sizes")
    parser.add_argument("--check", action="store_true", help="compare small sizes under compute-sanitizer")
    parser.add_argument("--emulated", action="store_true", help="without a GPU: only compare, small sizes")
    return parser.parse_args()


def main() -> None:
    """Run the command."""
    args = arguments()
    if args.check:
        return sanitize()
    torch: Any = import_module("torch") if args.emulated else import_torch(False)
    kernels = Kernels(gpu_library(None if args.emulated else torch, "lstm/lstm_cuda.cu"), "lstm")
    if args.emulated:
        return compare_sizes(torch, kernels, "cpu", SMALL)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    compare_sizes(torch, kernels, "cuda", SMALL if args.small else SMALL + CHECKED)
    if args.small:
        return None
    print(
        "%s, PyTorch %s, cuDNN %s" % (torch.cuda.get_device_name(), torch.__version__, torch.backends.cudnn.version())
    )
    print("| H | B | T | numbers | batch | ours, ms | cuDNN, ms | ours / cuDNN | asked | us/step: forward, backward |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for units in args.units:
        for frames in args.frames:
            for batch in args.batch:
                for ragged in (False, True):
                    problem = make_problem(torch, "cuda", (frames, batch, units), ragged)
                    for kind in args.kinds:
                        measure(torch, kernels, problem, kind, args.rounds)
    return None


if __name__ == "__main__":
    main()
