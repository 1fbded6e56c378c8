"""Alignments on a GPU: are the kernels right, and how fast are they beside cuDNN's and PyTorch's CTC.

    python bench/gpu/align.py [--rounds N]

Needs nvcc, g++, NumPy and PyTorch with CUDA, but no TensorFlow. Every kernel is compared with that for the CPU (which
the tests compare with NumPy), CTC with that of PyTorch in float64 too. Then CTC is timed, loss and gradient, each side
with its softmax, in turn; the others are timed alone. ``--emulated`` compares small sizes on the CPU, without a GPU and
PyTorch.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, Callable

import numpy as np
from building import ROOT, cpu_library, gpu_library, import_torch, milliseconds

sys.path.insert(0, ROOT)

from tests.native.cuda.align_calls import Calls
from tests.native.cuda.memory import GpuMemory

CUDA = ("chain", "viterbi", "acceptor", "acceptor_best", "transducer")
CPU = ("chain", "acceptor", "acceptor_best", "transducer")
#: frames, batch, classes, labels
SIZES = {
    "digits": (80, 32, 12, 8),
    "phones": (500, 32, 48, 60),
    "speech": (300, 16, 1001, 50),
    "long": (1000, 64, 80, 200),
}
#: the transducer gets so many sequences, else its scores do not fit
JOINT_BATCH = 8

Batch = tuple[Any, Any, Any, Any]


def calls_on_both(torch: Any) -> tuple[Calls, Calls]:
    """Return the kernels for the GPU (without PyTorch: emulated), and those for the CPU."""
    gpu = gpu_library(torch, *("align/%s_cuda.cu" % name for name in CUDA))
    cpu = Calls(cpu_library(*("align/%s_cpu.cc" % name for name in CPU)), cuda=False)
    return Calls(gpu) if torch is None else Calls(gpu, memory=GpuMemory(torch)), cpu


def make_batch(frames: int, batch: int, classes: int, n_labels: int) -> Batch:
    """Return random logits of a ragged batch; the blank is class 0."""
    rng = np.random.RandomState(1)
    lens = np.linspace(frames * 2 // 3, frames, batch).astype("int32")
    scores = rng.normal(0, 2, (frames, batch, classes)).astype("float32")
    return scores, lens, rng.randint(1, classes, (batch, n_labels)), lens * n_labels // frames


def joint(batch: Batch) -> Batch:
    """Return the scores of a transducer."""
    scores, lens, labels, label_lens = (x[:, :JOINT_BATCH] if x.ndim == 3 else x[:JOINT_BATCH] for x in batch)
    by_label = np.sin(np.arange(labels.shape[1] + 1, dtype="float32"))[:, None]
    return scores.transpose(1, 0, 2)[:, :, None] + by_label, lens, labels, label_lens


def chain_of(batch: Batch) -> dict[str, Any]:
    """Return the states of CTC."""
    _, _, labels, label_lens = batch
    classes = np.zeros((len(labels), 2 * labels.shape[1] + 1), "int32")
    classes[:, 1::2] = labels
    before = np.pad(classes, [(0, 0), (2, 0)], constant_values=-1)[:, : classes.shape[1]]
    skip = (classes != 0) & (before != -1) & (classes != before)
    loop = np.ones(classes.shape, "uint8")
    return {"classes": classes, "num_states": 2 * label_lens + 1, "loop": loop, "skip": skip, "optional_ends": 1}


def edges_of(batch: Batch) -> tuple[Any, Any, Any]:
    """Return arcs, costs and numbers of states of automata with a loop at each label and an edge to the next one."""
    _, _, labels, label_lens = batch
    place = np.arange(labels.shape[1])[None] + np.zeros_like(labels)
    arcs = np.concatenate([np.stack([place, place + 1, labels], 2), np.stack([place + 1, place + 1, labels], 2)], 1)
    exists = np.tile(place < label_lens[:, None], 2)
    return np.where(exists[:, :, None], arcs, -1), np.where(exists, 0.25, 0.0), label_lens + 1


def kernels(batch: Batch) -> dict[str, Callable[[Calls], tuple[Any, Any]]]:
    """Return name -> what to run on a batch."""
    chain, edges, transducer = chain_of(batch), edges_of(batch), joint(batch)
    options = {"blank": 0, "label_loop": 1, "normalized": 0, "softmax_without_alignment": 0}
    return {
        "ctc": lambda calls: calls.ctc(*batch, **options),
        "fast_bw": lambda calls: calls.chains(*batch[:2], chain, best=False),
        "forced_align": lambda calls: calls.chains(*batch[:2], chain, best=True),
        "fast_bw, edges": lambda calls: calls.acceptors(*batch[:2], *edges, best=False),
        "forced_align, edges": lambda calls: calls.acceptors(*batch[:2], *edges, best=True),
        "transducer": lambda calls: calls.transducer(*transducer, blank=0, label_takes_frame=0, normalized=0),
    }


def compare(name: str, ours: Any, other: Any, tolerance: float) -> None:
    """Print the largest difference.

    :raises AssertionError: it is too large
    """
    for part, (a, b) in enumerate(zip(ours, other)):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg="%s, result %d" % (name, part))
    worst = max(float(np.abs(np.subtract(a, b, dtype="float64")).max()) for a, b in zip(ours, other))
    print("  %-20s right, largest difference %.1e" % (name, worst), flush=True)


def torch_ctc(torch: Any, batch: Batch, cudnn: bool, dtype: str = "float32") -> Callable[[], tuple[Any, Any]]:
    """Return PyTorch's loss with its gradient with respect to the logits."""
    scores, lens, labels, label_lens = batch
    x = torch.from_numpy(scores).to("cuda", getattr(torch, dtype)).requires_grad_()
    where = "cpu" if cudnn else "cuda"  # cuDNN's takes labels of all sequences behind each other, on the host
    flat = np.concatenate([row[:count] for row, count in zip(labels, label_lens)]).astype("int32")
    targets = torch.from_numpy(flat if cudnn else labels.astype("int64")).to(where)
    sizes = [torch.from_numpy(n.astype("int32" if cudnn else "int64")).to(where) for n in (lens, label_lens)]

    def step() -> tuple[Any, Any]:
        with torch.backends.cudnn.flags(enabled=cudnn):
            probs = torch.nn.functional.log_softmax(x, dim=2)
            loss = torch.nn.functional.ctc_loss(probs, targets, *sizes, blank=0, reduction="none")
            (gradient,) = torch.autograd.grad(loss.sum(), x)
        return loss, gradient

    return step


def measure(torch: Any, gpu: Calls, batch: Batch, rounds: int) -> None:
    """Print the times of all kernels, and those of PyTorch's CTC."""
    steps = {}
    for name, run in kernels(batch).items():
        run(gpu)
        steps[name] = gpu.again
    steps["ctc: cuDNN"], steps["ctc: PyTorch"] = (torch_ctc(torch, batch, cudnn) for cudnn in (True, False))
    for name in ("ctc: cuDNN", "ctc: PyTorch"):
        try:
            steps[name]()
        except RuntimeError as exc:  # cuDNN takes no more than 256 labels, for example
            print("  %-20s cannot: %s" % (name, str(exc).splitlines()[0]))
            del steps[name]
    times = np.array([[milliseconds(torch, step) for step in steps.values()] for _ in range(rounds + 2)])[2:]
    for name, column in zip(steps, times.T):
        ratio = np.median(column / times[:, 0])
        beside = "  %6.2f x ctc here" % ratio if name.startswith("ctc:") else ""
        print("  %-20s %9.3f ms%s" % (name, np.median(column), beside), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--emulated", action="store_true", help="compare small sizes on the CPU")
    args = parser.parse_args()
    torch = import_torch(args.emulated)
    gpu, cpu = calls_on_both(torch)
    for size, numbers in (SIZES if torch else {"small": (30, 3, 12, 5)}).items():
        print("%s: frames %d, batch %d, classes %d, labels %d" % (size, *numbers))
        batch = make_batch(*numbers)
        for name, run in kernels(batch).items():
            compare(name, run(gpu), run(cpu), 0.0 if name.startswith("forced") else 2e-5)
        if torch is None:
            continue
        options = {"blank": 0, "label_loop": 1, "normalized": 0, "softmax_without_alignment": 0}
        reference = [x.detach().cpu().numpy() for x in torch_ctc(torch, batch, False, "float64")()]
        compare("ctc: PyTorch", gpu.ctc(*batch, **options), reference, 2e-5)
        measure(torch, gpu, batch, args.rounds)


if __name__ == "__main__":
    main()
