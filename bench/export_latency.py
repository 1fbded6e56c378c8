"""Exported networks: the time to export, of a step of the SavedModel, and of a stream frame by frame.

    python bench/export_latency.py [--rounds N] [export] [step] [stream]

* ``export``: seconds to export an attention model with an encoder of 6 bidirectional LSTMs, as it searches, check
  included. Limit: 30 s.
* ``step``: a native SavedModel against the same network traced in Python, in turn in one process. Limit: 1.05.
* ``stream``: one LSTM of 512 units, one frame a call, one thread: the SavedModel with state, called from Python and C
  (``export_stream.c``), against ``LSTM`` of onnxruntime, called from Python. Limit: 1.

Times are CPU seconds of one process, since other programs may run; the ratio is that of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from typing import Any, Callable

import numpy as np
from report import table
from timing import in_turn

import returnn_tf
from returnn_tf.export.inference import InferenceModel
from returnn_tf.util.lazy_tf import tf

INPUT, UNITS, FRAMES = 40, 512, 40


def network(layers: dict[str, Any], *, search: bool = False) -> returnn_tf.Network:
    """Return a network with random parameters."""
    extern = {"data": {"dim": INPUT}, "classes": {"dim": 1000, "sparse": True}}
    config = {"extern_data": extern, "network": layers, "behavior_version": 21}
    return returnn_tf.Network.from_config(returnn_tf.Config(config), search=search)


def blstm(count: int, units: int) -> dict[str, Any]:
    """Return an encoder: ``fw<i>``, ``bw<i>``."""
    layers = {}
    for i in range(count):
        source = ["fw%d" % (i - 1), "bw%d" % (i - 1)] if i else "data"
        for name, direction in (("fw", 1), ("bw", -1)):
            lstm = {"class": "rec", "unit": "nativelstm2", "n_out": units, "direction": direction, "from": source}
            layers["%s%d" % (name, i)] = lstm
    return layers


def attention() -> dict[str, Any]:
    """Return an attention decoder on 6 bidirectional LSTMs."""
    step = {
        "s": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": 512, "from": ["prev:emb", "prev:att"]},
        "query": {"class": "linear", "activation": None, "with_bias": False, "n_out": 512, "from": "s"},
        "sum": {"class": "combine", "kind": "add", "from": ["base:keys", "query"]},
        "tanh": {"class": "activation", "activation": "tanh", "from": "sum"},
        "energy": {"class": "linear", "activation": None, "with_bias": False, "n_out": 1, "from": "tanh"},
        "weights": {"class": "softmax_over_spatial", "from": "energy"},
        "att": {"class": "generic_attention", "weights": "weights", "base": "base:enc"},
        "prob": {"class": "softmax", "from": ["s", "att"], "target": "classes", "loss": "ce"},
        "output": {"class": "choice", "target": "classes", "beam_size": 12, "from": "prob", "initial_output": 0},
        "emb": {"class": "linear", "activation": None, "n_out": 256, "from": "output", "initial_output": 0},
        "end": {"class": "compare", "from": "output", "value": 0},
    }
    return {
        **blstm(6, 512),
        "enc": {"class": "copy", "from": ["fw5", "bw5"]},
        "keys": {"class": "linear", "activation": None, "n_out": 512, "from": "enc"},
        "output": {"class": "rec", "from": [], "target": "classes", "max_seq_len": 50, "unit": step},
    }


def bench_export(folder: str) -> str:
    """Measure a whole export, in seconds."""
    net = network(attention(), search=True)
    start, cpu = time.perf_counter(), time.process_time()
    returnn_tf.export(net, os.path.join(folder, "attention"))
    seconds, of_process = time.perf_counter() - start, time.process_time() - cpu
    return table(
        ["export of 6 BLSTM of 512 units + attention", "s"],
        [
            ["whole, with the check in another process", "%.1f" % seconds],
            ["CPU time of this process", "%.1f" % of_process],
        ],
    )


def bench_step(folder: str, rounds: int) -> str:
    """Measure a step of the native SavedModel, and of the network in Python."""
    net = network({**blstm(3, 256), "output": {"class": "softmax", "n_out": 1000, "from": ["fw2", "bw2"]}})
    returnn_tf.export(net, os.path.join(folder, "blstm"))
    model = InferenceModel(net)
    inside = model.trace()
    outside = tf.saved_model.load(os.path.join(folder, "blstm")).signatures["serving_default"]
    feed = {name: tf.constant(value) for name, value in model.sample(batch=8, frames=100).items()}
    for function in (inside, outside, inside, outside):
        function(**feed)
    times = in_turn(lambda: outside(**feed), lambda: inside(**feed), rounds, cpu=True) * 1e3
    first, second = np.median(times, axis=0)
    return table(
        ["3 BLSTM of 256 units, 8 x 100 frames", "ms"],
        [
            ["native SavedModel", "%.1f" % first],
            ["traced in Python", "%.1f" % second],
            ["ratio", "%.3f" % (first / second)],
        ],
    )


def onnx_stream(params: dict[str, np.ndarray]) -> Callable[[], None]:
    """Return the seconds per frame of onnxruntime's LSTM, whose gates are i, o, f, c."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    def gates(x: np.ndarray) -> np.ndarray:
        j, i, f, o = np.split(x, 4, axis=-1)
        return np.concatenate([i, o, f, j], axis=-1)

    bias = np.concatenate([gates(params["b"]), np.zeros(4 * UNITS, "float32")])
    weights = {"W": gates(params["W"]).T[None], "R": gates(params["W_re"]).T[None], "B": bias[None]}
    node = helper.make_node("LSTM", ["x", "W", "R", "B", "", "h0", "c0"], ["y", "h", "c"], hidden_size=UNITS)
    state = [1, 1, UNITS]
    shapes = {"x": [1, 1, INPUT], "h0": state, "c0": state, "y": [1, 1, 1, UNITS], "h": state, "c": state}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    constants = [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph([node], "lstm", values[:3], values[3:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x, zeros = np.zeros([1, 1, INPUT], "float32"), np.zeros([1, 1, UNITS], "float32")

    def run() -> None:
        h, c = zeros, zeros
        for _ in range(FRAMES):
            _, h, c = session.run(None, {"x": x, "h0": h, "c0": c})

    return run


def python_stream(folder: str) -> Callable[[], None]:
    """Return the seconds per frame of the signature of a SavedModel."""
    model = tf.saved_model.load(folder)
    x, one, zeros = tf.zeros([1, 1, INPUT]), tf.constant([1]), tf.zeros([1, UNITS])

    def run() -> None:
        c, h = zeros, zeros
        step = model.signatures["serving_default"]
        for _ in range(FRAMES):
            outputs = step(data=x, data_size0=one, state_l_c=c, state_l_h=h)
            c, h = outputs["state_l_c_next"], outputs["state_l_h_next"]

    return run


def c_stream(folder: str, work: str) -> float:
    """Return the median seconds per frame of a C program, in which the ops run in the calling thread."""
    package = os.path.dirname(tf.__file__)
    libraries = [os.path.join(package, name) for name in ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")]
    program = os.path.join(work, "export_stream")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "export_stream.c")
    include = os.path.join(package, "include")
    command = ["gcc", "-O2", source, "-I", include, "-o", program, *libraries, "-Wl,-rpath," + package]
    subprocess.run(command, check=True)
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    config.experimental.executor_type = "SINGLE_THREADED_EXECUTOR"
    with open(os.path.join(work, "config.bin"), "wb") as file:
        file.write(config.SerializeToString())
    with open(os.path.join(folder, "model.json"), encoding="utf8") as file:
        facts = json.load(file)
    library = ([os.path.join(folder, name) for name in facts["native"]["libraries"]] or ["-"])[0]
    names = ["%s=%s" % (name, v["tensor"]) for name, v in {**facts["inputs"], **facts["outputs"]}.items()]
    arguments = [
        program,
        folder,
        os.path.join(work, "config.bin"),
        library,
        str(FRAMES),
        str(INPUT),
        str(UNITS),
        *names,
    ]
    output = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    return float(np.median([float(line) for line in output.split()]))


def bench_stream(folder: str, rounds: int) -> str:
    """Measure the three programs, in turn."""
    net = network({"l": {"class": "rec", "unit": "lstm", "n_out": UNITS, "from": "data"},
                   "output": {"class": "copy", "from": "l"}})  # fmt: skip
    native, portable = os.path.join(folder, "native"), os.path.join(folder, "portable")
    returnn_tf.export(net, native, state=True)
    returnn_tf.export(net, portable, state=True, portable=True)
    params = {name.rpartition("/")[2]: value for name, value in net.get_param_values().items()}
    other = onnx_stream(params)
    other()
    rows: list[list[str]] = []
    for name, path in (("native", native), ("portable", portable)):
        mine = python_stream(path)
        mine()
        first, second = np.median(in_turn(mine, other, rounds, cpu=True), axis=0) / FRAMES * 1e6
        rows.append(["%s SavedModel, Python" % name, "%.0f" % first, "%.2f" % (first / second)])
        c = c_stream(path, folder) * 1e6
        rows.append(["%s SavedModel, C" % name, "%.0f" % c, "%.2f" % (c / second)])
        if name == "native":
            rows.insert(0, ["onnxruntime, Python", "%.0f" % second, "1"])
    return table(["LSTM of 512 units, frame by frame", "us per frame", "ratio"], rows)


def main() -> None:
    """Run the measurements that the command line names, by default all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["export", "step", "stream", []])
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    what = args.what or ["export", "step", "stream"]
    if what != ["export"]:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if "export" in what:
            print(bench_export(folder), end="\n\n", flush=True)
        if "step" in what:
            print(bench_step(folder, args.rounds), end="\n\n", flush=True)
        if "stream" in what:
            print(bench_stream(folder, args.rounds), flush=True)


if __name__ == "__main__":
    main()
