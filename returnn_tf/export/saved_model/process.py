"""Runs a SavedModel in a process of its own: ``python process.py FOLDER FEED RESULT``.

It is run as a file and imports nothing of returnn_tf, so that a library that the export lacks is missing here, too.
"""

from __future__ import annotations

import json
import os
import sys

import numpy


def main(folder: str, feed: str, result: str) -> int:
    """Load the libraries and the SavedModel, and run the signature.

    :param folder: of the export
    :param feed: npz file of the inputs
    :param result: npz file to write the outputs to
    """
    import tensorflow as tf

    with open(os.path.join(folder, "model.json"), encoding="utf8") as file:
        facts = json.load(file)
    for library in facts["native"]["libraries"]:
        tf.load_op_library(os.path.join(folder, library))
    model = tf.saved_model.load(folder)
    with numpy.load(feed, allow_pickle=False) as arrays:
        inputs = {name: tf.constant(arrays[name]) for name in facts["inputs"]}
    outputs = model.signatures[facts["signature"]](**inputs)
    numpy.savez(result, **{name: value.numpy() for name, value in outputs.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
