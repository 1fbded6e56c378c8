"""Steps of an exported network, loaded as another program would: ``export_worker.py TARGET FOLDER BATCH FRAMES DIM``.

``export_worker.py network CHECKPOINT LAYERS UNITS BATCH FRAMES DIM`` runs the network of ``export_targets.py`` itself.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Callable

import numpy as np
from workers import serve

THREADS = int(os.environ.get("BENCH_THREADS", "2"))
Step = Callable[[], float]


def batch_of(sizes: list[str]) -> dict[str, Any]:
    """Return the inputs: random frames, all sequences of full length."""
    batch, frames, dim = map(int, sizes)
    data = np.random.RandomState(1).normal(0, 1, (batch, frames, dim)).astype("float32")
    return {"data": data, "data_size0": np.full([batch], frames, "int32")}


def first_of(outputs: Any) -> float:
    """Return a number that depends on all layers."""
    return float(np.asarray(outputs)[0, -1].max())


def tensorflow() -> Any:
    import tensorflow as tf  # not in the processes of other runtimes

    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    return tf


def load_libraries(tf: Any, folder: str) -> dict[str, Any]:
    """Load the libraries that the side file names, and return the side file."""
    with open(os.path.join(folder, "model.json"), encoding="utf8") as file:
        facts: dict[str, Any] = json.load(file)
    for library in facts["native"]["libraries"]:
        tf.load_op_library(os.path.join(folder, library))
    return facts


def network(checkpoint: str, layers: str, units: str, *sizes: str) -> Step:
    """Return the network in returnn_tf, without export."""
    tf = tensorflow()
    from export_targets import make_network

    import returnn_tf
    from returnn_tf.export.inference import InferenceModel

    net = make_network(int(layers), int(units))
    returnn_tf.load_checkpoint(net, checkpoint)
    model = InferenceModel(net)
    function = tf.function(model.emit, autograph=False, input_signature=[model.inputs])
    feed = {name: tf.constant(value) for name, value in batch_of(list(sizes)).items()}
    return lambda: first_of(function(feed)["output"])


def saved_model(folder: str, *sizes: str) -> Step:
    tf = tensorflow()
    load_libraries(tf, folder)
    model = tf.saved_model.load(folder)
    function = model.signatures["serving_default"]
    feed = {name: tf.constant(value) for name, value in batch_of(list(sizes)).items()}
    return lambda: first_of(function(**feed)["output"])


def frozen(folder: str, *sizes: str) -> Step:
    tf = tensorflow()
    facts = load_libraries(tf, folder)
    graph_def = tf.compat.v1.GraphDef()
    with open(os.path.join(folder, "model.pb"), "rb") as file:
        graph_def.ParseFromString(file.read())
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    options = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=THREADS, inter_op_parallelism_threads=1)
    session = tf.compat.v1.Session(graph=graph, config=options)
    feed = {facts["inputs"][name]["tensor"]: value for name, value in batch_of(list(sizes)).items()}
    step = session.make_callable(facts["outputs"]["output"]["tensor"], list(feed))
    return lambda: first_of(step(*feed.values()))


def tflite(folder: str, *sizes: str) -> Step:
    tf = tensorflow()
    interpreter = tf.lite.Interpreter(os.path.join(folder, "model.tflite"), num_threads=THREADS)
    runner = interpreter.get_signature_runner()
    feed = batch_of(list(sizes))
    return lambda: first_of(runner(**feed)["output"])


def onnx(folder: str, *sizes: str) -> Step:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
    session = onnxruntime.InferenceSession(os.path.join(folder, "model.onnx"), options)
    feed = batch_of(list(sizes))
    return lambda: first_of(session.run(["output"], feed)[0])


if __name__ == "__main__":
    target, *arguments = sys.argv[1:]
    make = {f.__name__: f for f in (network, saved_model, frozen, tflite, onnx)}[target]
    serve(lambda: {"step": make(*arguments)})
