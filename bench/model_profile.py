"""Where the time of a training step goes: seconds of the ops of a model of bench/models.py, by kind of op.

    python bench/model_profile.py [--row transformer] [--blocks] [--bfloat16] [--part 4] [--steps 10] [--ops 30]

TensorFlow's profiler records when each op of each step begins and ends. Each op counts with the least time that it took
in a step, so that other load on the machine matters little; with one thread, that is CPU time for ops that are shorter
than a time slice. What longer ones take is the CPU time of the step, printed too, less that of the others. What does
not run in an op of its own (fused by TensorFlow's optimizer) counts for the op that it became part of.
"""

from __future__ import annotations

import argparse
import glob
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace

from report import table

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "models_workers"))

import ours
from model_rows import ROWS, Model

from returnn_tf.util.lazy_tf import tf

KINDS = {
    "products": "MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum RtfProduct Conv2D",
    "softmax, cross-entropy": "Softmax LogSoftmax SparseSoftmaxCrossEntropyWithLogits",
    "attention in blocks": "RtfAttention RtfAttentionGrad",
    "convolutions": "DepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput DepthwiseConv2dNativeBackpropFilter",
    "random numbers": "StatelessRandomUniformV2 StatelessRandomGetKeyCounter",
    "transposes and copies": "Transpose ConcatV2 Split SplitV Slice StridedSlice Pack Unpack Pad Tile GatherV2",
    "sums over axes": "Sum Mean BiasAddGrad Max AddN L2Loss Prod All",
    "optimizer": "ResourceApplyAdam AssignVariableOp AssignSubVariableOp AssignAddVariableOp ReadVariableOp",
}  # fmt: skip
"""Ops by what they do; all others are elementwise."""


CALLS = ("If", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile")
"""Ops that wait for others."""


def kind_of(op: str) -> str:
    """Return the kind of a type of op; oneDNN's and fused ones count for the op that they replace."""
    for prefix in ("_MklNative", "_Mkl", "_Fused"):
        op = op[len(prefix) :] if op.startswith(prefix) else op
    found = next((kind for kind, ops in KINDS.items() if op in ops.split()), "elementwise")
    return "other native ops" if found == "elementwise" and op.startswith("Rtf") else found


def op_seconds(folder: str, steps: int) -> Counter:
    """Return seconds of each type of op in a step, given the profile of some steps within a folder."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    runs: dict[str, list[float]] = {}
    for path in glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True):
        space = xplane_pb2.XSpace()
        with open(path, "rb") as f:
            space.ParseFromString(f.read())
        for plane in space.planes:
            if plane.name != "/host:CPU":
                continue
            for line in plane.lines:
                for event in line.events:
                    name = plane.event_metadata[event.metadata_id].name
                    op = name.rsplit(":", 1)[-1]
                    if ":" in name and "::" not in name and op.isidentifier() and op not in CALLS:
                        runs.setdefault(name, []).append(1e-12 * event.duration_ps)  # "name of the node:type of the op"
    found: Counter = Counter()
    for name, seconds in runs.items():
        found[name.rsplit(":", 1)[-1]] += min(seconds) * len(seconds) / steps
    return found


def profile(model: Model, steps: int, *, blocks: bool) -> tuple[Counter, float]:
    """Return seconds of each type of op in a step of training, and CPU seconds of a step."""
    step = ours.make_steps(model, of_blocks=blocks)["step"]
    step()
    step()
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        used = []
        for _ in range(steps):
            before = time.process_time()
            step()
            used.append(time.process_time() - before)
        tf.profiler.experimental.stop()
        return op_seconds(folder, steps), statistics.median(used)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", default="transformer", choices=list(ROWS))
    parser.add_argument("--blocks", action="store_true", help="an encoder as returnn_tf.blocks writes it")
    parser.add_argument("--bfloat16", action="store_true", help="mixed precision")
    parser.add_argument("--part", type=int, default=1, help="take 1 / n of the sequences")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ops", type=int, default=25, help="how many types of ops to list")
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    model = replace(ROWS[args.row], bfloat16=args.bfloat16)
    found, used = profile(replace(model, batch=max(1, model.batch // args.part)), args.steps, blocks=args.blocks)
    kinds: Counter = Counter()
    for op, seconds in found.items():
        kinds[kind_of(op)] += seconds
    total = sum(kinds.values())
    print("%s: %.0f ms in ops, %.0f CPU ms\n" % (args.row, 1e3 * total, 1e3 * used))
    for title, counts, number in (("kind", kinds, None), ("op", found, args.ops)):
        lines = [(name, "%.1f" % (1e3 * s), "%.1f" % (100 * s / total)) for name, s in counts.most_common(number)]
        print(table([title, "ms", "%"], lines) + "\n")


if __name__ == "__main__":
    main()
