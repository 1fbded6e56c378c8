"""Runs a SavedModel or a frozen graph in a process of its own: ``python process.py FOLDER FEED RESULT``.

It is run as a file and imports nothing of returnn_tf, so that a library that the export lacks is missing here, too.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy


def main(folder: str, feed: str, result: str) -> int:
    """Load the libraries and the graph, and run it.

    :param folder: of the export
    :param feed: npz file of the inputs
    :param result: npz file to write the outputs to
    """
    import tensorflow as tf

    with open(os.path.join(folder, "model.json"), encoding="utf8") as file:
        facts = json.load(file)
    for library in facts["native"]["libraries"]:
        tf.load_op_library(os.path.join(folder, library))
    with numpy.load(feed, allow_pickle=False) as arrays:
        inputs = {name: arrays[name] for name in facts["inputs"]}
    outputs = _run_frozen(tf, folder, facts, inputs) if "graph" in facts else _run_saved(tf, folder, facts, inputs)
    numpy.savez(result, **outputs)
    return 0


def _run_saved(tf: Any, folder: str, facts: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """Run the signature of a SavedModel."""
    model = tf.saved_model.load(folder)
    outputs = model.signatures[facts["signature"]](**{name: tf.constant(value) for name, value in inputs.items()})
    return {name: value.numpy() for name, value in outputs.items()}


def _run_frozen(tf: Any, folder: str, facts: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """Run a GraphDef in a session."""
    graph_def = tf.compat.v1.GraphDef()
    with open(os.path.join(folder, facts["graph"]), "rb") as file:
        graph_def.ParseFromString(file.read())
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        fetches = {name: info["tensor"] for name, info in facts["outputs"].items()}
        return dict(session.run(fetches, {facts["inputs"][name]["tensor"]: value for name, value in inputs.items()}))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
