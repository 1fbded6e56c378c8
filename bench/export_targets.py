"""An exported BLSTM in the programs that run it: SavedModel (native, portable), frozen graph, TFLite, ONNX.

    python bench/export_targets.py [--layers N] [--units N] [--frames N] [--batch N] [--threads N] [--rounds N] [--cpu]

The same network with the same parameters is exported to each target. Each runs in a process of its own, loaded as
another program would, and they are timed in turn, so that other load on the machine hits all of them; figures are
medians. The first row is the time of the network within returnn_tf. Frames per second count those of all sequences.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from typing import Any

import numpy as np
from report import table
from workers import Worker, sgemm_gflops

import returnn_tf
from returnn_tf.config import Config

INPUTS, LABELS = 40, 1000
#: name of a row -> target, options
TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "SavedModel, native": ("saved_model", {}),
    "SavedModel, portable": ("saved_model", {"portable": True}),
    "frozen graph, native": ("frozen", {}),
    "frozen graph, portable": ("frozen", {"portable": True}),
    "TFLite": ("tflite", {}),
    "ONNX, onnxruntime": ("onnx", {}),
}


def make_network(layers: int, units: int) -> returnn_tf.Network:
    """Return a BLSTM with random parameters."""
    network: dict[str, Any] = {}
    source: Any = "data"
    for i in range(layers):
        lstm = {"class": "rec", "unit": "lstm", "n_out": units, "from": source}
        network.update({"fw%d" % i: lstm, "bw%d" % i: {**lstm, "direction": -1}})
        source = ["fw%d" % i, "bw%d" % i]
    network["output"] = {"class": "softmax", "n_out": LABELS, "from": source}
    return returnn_tf.Network.from_config(Config({"extern_data": {"data": {"dim": INPUTS}}, "network": network}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--units", type=int, default=512, help="of each direction")
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cpu", action="store_true", help="count CPU seconds: for a machine with other load")
    args = parser.parse_args()
    net = make_network(args.layers, args.units)
    sizes = [str(args.batch), str(args.frames), str(INPUTS)]
    with tempfile.TemporaryDirectory() as temp:
        workers = []
        checkpoint = os.path.join(temp, "net.001")
        returnn_tf.save_checkpoint(net, checkpoint)
        plan = ["network", checkpoint, str(args.layers), str(args.units)]
        jobs = {"returnn_tf": plan}
        for i, (name, (to, options)) in enumerate(TARGETS.items()):
            if to == "tflite":
                options = {**options, "batch": args.batch}
            folder = os.path.join(temp, str(i))
            returnn_tf.export(net, folder, to, **options)
            jobs[name] = [to, folder]
        for name, job in jobs.items():
            worker = Worker(name, sys.executable, "export_worker.py", [*job, *sizes], args.threads, args.cpu)
            worker.wait()
            workers.append(worker)
        results = {}
        for _ in range(args.rounds):
            for worker in workers:
                worker.run()
                results[worker.name] = worker.last["result"]
        for worker in workers:
            np.testing.assert_allclose(results[worker.name], results["returnn_tf"], rtol=1e-3)
            worker.close()
    base = workers[0]
    rows = []
    for worker in workers:
        ratios = np.array(worker.times["step"]) / base.times["step"]
        fps = args.batch * args.frames / worker.median()
        rows.append([worker.name, "%.1f" % (1e3 * worker.median()), "%.0f" % fps, "%.2f" % np.median(ratios)])
    what = "CPU time" if args.cpu else "time"
    print(
        "%d x %d BLSTM, batch %d, %d frames, %d threads; %s; numpy's sgemm: %.0f GFLOP/s"
        % (args.layers, args.units, args.batch, args.frames, args.threads, what, sgemm_gflops())
    )
    print(table(["", "ms", "frames/s", "of returnn_tf"], rows))


if __name__ == "__main__":
    main()
