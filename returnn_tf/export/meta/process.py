"""Runs a meta graph in a separate process, in RASR's order of loading: ``python process.py FOLDER FEED RESULT``.

It is run as a file and imports nothing of returnn_tf, so that a library that the export lacks is missing here, too.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np


def main(folder: str, feed: str, result: str) -> int:
    """Load the libraries and the graph, initialise all variables, restore the checkpoint, and run the outputs.

    :param folder: of the export
    :param feed: npz file of the inputs
    :param result: npz file to write the outputs to
    """
    import tensorflow as tf
    from tensorflow.core.framework.variable_pb2 import VariableDef

    with open(os.path.join(folder, "model.json"), encoding="utf8") as file:
        facts = json.load(file)
    for library in facts["native"]["libraries"]:
        tf.load_op_library(os.path.join(folder, library))
    with open(os.path.join(folder, facts["meta_graph"]), "rb") as file:
        meta = tf.compat.v1.MetaGraphDef.FromString(file.read())
    with np.load(feed, allow_pickle=False) as arrays:
        inputs = {name: arrays[name] for name in facts["inputs"]}
    fed = {facts["inputs"][name]["tensor"]: value for name, value in inputs.items()}
    fed.update(_first_states(facts["fed"], next(iter(inputs.values()), None)))
    variables = [VariableDef.FromString(text) for text in meta.collection_def["variables"].bytes_list.value]
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        tf.graph_util.import_graph_def(meta.graph_def, name="")
        session.run([variable.initializer_name for variable in variables])
        checkpoint = os.path.join(folder, facts["checkpoint"])
        session.run(meta.saver_def.restore_op_name, {meta.saver_def.filename_tensor_name: checkpoint})
        outputs = session.run({name: info["tensor"] for name, info in facts["outputs"].items()}, fed)
    strings = {name: value.astype("S") for name, value in outputs.items() if value.dtype.kind == "O"}  # no pickle
    np.savez(result, **{**outputs, **strings})
    return 0


def _first_states(fed: dict[str, Any], example: Any) -> dict[str, Any]:
    """Return zeros for the states, and the step in the epoch, that a program feeds.

    :param example: one of the inputs, for the number of sequences
    """
    batch = 1 if example is None or not example.ndim else len(example)
    return {
        tensor: np.zeros([size or (0 if i else batch) for i, size in enumerate(info["shape"])], info["dtype"])
        for tensor, info in fed.items()
    }


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
