"""The MDLSTM on a GPU: are the kernels right, and how much faster are they than ours on the CPU of the same machine.

    python bench/gpu/mdlstm.py [--rounds N] [--rows digits,lines] [--threads N]

Needs nvcc, g++, NumPy and PyTorch with CUDA, but no TensorFlow. Four directions, ragged images (50 - 100 % of the
array). First all results are compared with those of the kernels for the CPU, which the tests compare with NumPy. Then
both are timed in turn: forward and backward with the gradients of the weights, medians over the rounds; a GPU has to
be 10 times faster. GFLOP/s count the products of the recurrence of valid pixels only. ``--ways`` shows what other
plans would take, for whom tunes `clocks_of` in ``native_ops/mdlstm/cuda_plan.h``. ``--emulated`` compares a small
size on the CPU, without a GPU and PyTorch.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any, Callable, Optional

import numpy as np
from building import ROOT, cpu_library, gpu_library, import_torch, milliseconds

sys.path[:0] = [ROOT, os.path.join(ROOT, "bench")]

from mdlstm_rows import FLIPS, ROWS, Row  # noqa: E402

from tests.native.cuda.mdlstm_calls import RESULTS, CpuRun, GpuRun, Images, Limits  # noqa: E402
from tests.native.cuda.memory import GpuMemory, HostMemory  # noqa: E402

ASKED = 10.0
#: with larger ones, of which not all weights fit on the chip
GPU_ROWS: dict[str, Row] = {**ROWS, "tall": Row(16, 40, 400, 32, 128), "grid": Row(32, 50, 50, 64, 256)}
#: of the largest number of a result; those stored in 16 bits are rounded in every pixel
TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-1}
#: bytes of shared memory that a block may use, for --ways
WAYS = [227 << 10, 160 << 10, 100 << 10, 60 << 10, 30 << 10, 2000]


def make_images(row: Row) -> Images:
    """Return random inputs; weights such that small differences stay small from pixel to pixel."""
    rng = np.random.RandomState(1)
    heights, widths = row.sizes()
    shape, n = (row.batch, row.height, row.width), row.units
    scales = (0.5, (*shape, 5 * n)), (0.5 * n**-0.5, (2 * n, 5 * n)), (1, (*shape, n))
    z, r, dh = ([rng.normal(0, scale, size).astype("float32") for _ in FLIPS] for scale, size in scales)
    return Images(heights, widths, FLIPS, z, r, dh)


def compare(gpu: GpuRun, cpu: CpuRun, dtype: str) -> None:
    """Print the largest difference, relative to the largest number.

    :raises AssertionError: it is too large
    """
    ours, exact = gpu.results(), cpu.results()
    worst = 0.0
    for name in RESULTS:
        for one, other in zip(ours[name], exact[name]):
            worst = max(worst, float(np.abs(one - other).max() / max(np.abs(other).max(), 1e-9)))
    print("  %-9s largest difference %.1e" % (dtype, worst), flush=True)
    assert worst < TOLERANCES[dtype], "the kernels differ"


def whole(run: Any, product: Callable[[Any, Any], Any]) -> Callable[[], list[Any]]:
    """Run forward, backward, and the gradients of the weights as one product for each direction."""
    n = run.shape.units

    def step() -> list[Any]:
        run.forward()
        run.backward()
        return [product(mine["before"].reshape(-1, 2 * n).T, mine["dz"].reshape(-1, 5 * n)) for mine in run.arrays]

    return step


def plans_of(run: GpuRun) -> str:
    """Return how both passes are divided."""
    return ", ".join(
        "%s: %d groups x %d slices of %d units, %d threads, %d KiB"
        % ("per diagonal" if plan.per_diagonal else "at once", plan.groups, plan.slices, plan.units_of_slice,
           plan.threads, plan.shared_bytes >> 10)
        for plan in run.plans
    )  # fmt: skip


def timed(torch: Any, gpu: GpuRun, cpu: CpuRun, rounds: int) -> tuple[float, float]:
    """Return the milliseconds of a whole step on the GPU and on the CPU."""
    times: list[tuple[float, float]] = []
    on_gpu, on_cpu = whole(gpu, torch.matmul), whole(cpu, np.dot)
    on_gpu()
    for _ in range(rounds):
        start = time.perf_counter()
        on_cpu()
        seconds = time.perf_counter() - start
        times.append((milliseconds(torch, on_gpu), 1e3 * seconds))
    gpu_time, cpu_time = np.median(times, axis=0)
    return float(gpu_time), float(cpu_time)


def measure(torch: Any, libraries: Any, name: str, images: Images, args: argparse.Namespace) -> None:
    """Print the comparison and the times of a row."""
    row, memory = GPU_ROWS[name], GpuMemory(torch)
    cpu = CpuRun(libraries[1], images, threads=args.threads)
    cpu.forward()
    cpu.backward()
    for dtype in TOLERANCES:
        gpu = GpuRun(libraries[0], images, memory=memory, dtype=dtype)
        whole(gpu, torch.matmul)()
        compare(gpu, cpu, dtype)
        gpu_time, cpu_time = timed(torch, gpu, cpu, args.rounds if dtype == "float32" else 1)
        parts = [milliseconds(torch, step) for step in (gpu.forward, gpu.backward)]
        ratio = cpu_time / gpu_time
        print("  %-9s GPU %.3f ms (forward %.3f, backward %.3f), CPU %.1f ms, %.0f times (asked: %.0f), %.0f GFLOP/s%s"
              % (dtype, gpu_time, *parts, cpu_time, ratio, ASKED, row.gflop() / sum(parts) * 1e3,
                 "" if ratio >= ASKED else "  below the limit"))  # fmt: skip
        print("            " + plans_of(gpu), flush=True)
    if args.ways:
        compare_ways(torch, libraries[0], images)


def compare_ways(torch: Any, library: Any, images: Images) -> None:
    """Print the times of other plans."""
    count = torch.cuda.get_device_properties(0).multi_processor_count
    seen = set()
    for shared_bytes in WAYS:
        gpu = GpuRun(library, images, memory=GpuMemory(torch), limits=Limits(count, shared_bytes))
        if plans_of(gpu) in seen:
            continue
        seen.add(plans_of(gpu))
        gpu.forward()
        forward, backward = (milliseconds(torch, step) for step in (gpu.forward, gpu.backward))
        print("  forward %.3f ms, backward %.3f ms: %s" % (forward, backward, plans_of(gpu)), flush=True)


def emulate(libraries: Any) -> None:
    """Run the comparison alone."""
    images = make_images(Row(3, 4, 7, 4, 20))
    cpu = CpuRun(libraries[1], images)
    cpu.forward()
    cpu.backward()
    for dtype in TOLERANCES:
        gpu = GpuRun(libraries[0], images, memory=HostMemory(), dtype=dtype)
        whole(gpu, lambda before, dz: None)()
        compare(gpu, cpu, dtype)
        print("            " + plans_of(gpu))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="timed runs of each side")
    parser.add_argument("--rows", default=",".join(GPU_ROWS), help="which of: %(default)s")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the CPU; default: %(default)s")
    parser.add_argument("--ways", action="store_true", help="time other plans too")
    parser.add_argument("--emulated", action="store_true", help="without a GPU: only compare, a small size")
    args = parser.parse_args()
    torch: Optional[Any] = import_torch(args.emulated)
    libraries = gpu_library(torch, "mdlstm/mdlstm_cuda.cu"), cpu_library("mdlstm/mdlstm_cpu.cc")
    if torch is None:
        return emulate(libraries)
    torch.backends.cuda.matmul.allow_tf32 = False
    print("%s, CPU with %d threads" % (torch.cuda.get_device_name(), args.threads))
    for name in args.rows.split(","):
        row = GPU_ROWS[name]
        sizes = row.batch, row.height, row.width, row.units
        print("%s: batch x height x width %d x %d x %d, %d units" % (name, *sizes))
        measure(torch, libraries, name, make_images(row), args)
    return None


if __name__ == "__main__":
    main()
