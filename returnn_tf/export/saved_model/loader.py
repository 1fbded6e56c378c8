"""Loads an exported SavedModel or frozen graph. As a program, ``python loader.py FOLDER FEED RESULT`` also runs it.

It imports nothing of returnn_tf, so that a library that the export lacks is missing here, too.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from typing import Any, Callable

import numpy as np

Run = Callable[..., dict[str, Any]]

#: Features of a CPU that name instructions, which a compiler may use.
_INSTRUCTIONS = re.compile(
    r"(sse|ssse|avx|fma|f16c|bmi|amx|popcnt|movbe|adx|v?aes|gfni|sha|v?pclmul|abm|asimd|sve|sme|fp)", re.ASCII
)


def load(folder: str) -> Run:
    """Load an exported SavedModel or frozen graph, and the libraries of its native ops.

    :param folder: of the export
    :return: function of arrays by the names of the inputs, which returns the outputs as arrays by name
    :raises ValueError: ``model.json`` is not that of such an export; the libraries are for another version of
        TensorFlow, or another CPU
    """
    import tensorflow as tf

    facts = read_facts(folder)
    native = facts["native"]
    if native["libraries"]:
        check_machine(native, tf.version.VERSION)
    for library in native["libraries"]:
        tf.load_op_library(os.path.join(folder, library))
    return _frozen(tf, folder, facts) if "graph" in facts else _saved_model(tf, folder, facts)


class _Facts(dict[str, Any]):
    """An object in ``model.json``: a missing entry is an error that names it."""

    def __missing__(self, key: str) -> Any:
        raise ValueError("model.json lacks the entry %r of such an export" % key)


def read_facts(folder: str) -> dict[str, Any]:
    """Return the content of ``model.json``. The files that it names lie in the folder of the export.

    :raises ValueError: it is not the file of an export that can be run, or names files elsewhere, e.g. libraries
    """
    path = os.path.join(folder, "model.json")
    try:
        with open(path, encoding="utf8") as file:
            facts = json.load(file, object_hook=_Facts)
    except (ValueError, RecursionError) as exc:
        raise ValueError("%s is not the side file of an export: %s" % (path, exc)) from None
    if not isinstance(facts, dict) or not isinstance(facts["native"], dict):
        raise ValueError("%s is not the side file of an export" % path)
    names = [facts[key] for key in ("graph", "meta_graph", "checkpoint") if key in facts]
    for name in [*facts["native"]["libraries"], *names]:
        if not isinstance(name, str) or os.path.isabs(name) or os.pardir in name.replace(os.sep, "/").split("/"):
            raise ValueError("%s names a file outside of the export: %r. It is not loaded" % (path, name))
    return facts


def _saved_model(tf: Any, folder: str, facts: Mapping[str, Any]) -> Run:
    model = tf.saved_model.load(folder)

    def run(**inputs: Any) -> dict[str, Any]:
        signature = model.signatures[facts["signature"]]  # which does not own the variables: the model must stay
        outputs = signature(**{name: tf.constant(value) for name, value in inputs.items()})
        return {name: value.numpy() for name, value in outputs.items()}

    return run


def _frozen(tf: Any, folder: str, facts: Mapping[str, Any]) -> Run:
    graph_def = tf.compat.v1.GraphDef()
    with open(os.path.join(folder, facts["graph"]), "rb") as file:
        graph_def.ParseFromString(file.read())
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    fetches = {name: info["tensor"] for name, info in facts["outputs"].items()}

    def run(**inputs: Any) -> dict[str, Any]:
        feed = {facts["inputs"][name]["tensor"]: value for name, value in inputs.items()}
        with tf.compat.v1.Session(graph=graph) as session:
            return dict(session.run(fetches, feed))

    return run


def check_machine(native: Mapping[str, Any], tensorflow: str) -> None:
    """Check that the libraries of an export can run here.

    :param native: of ``model.json``
    :param tensorflow: the version here
    :raises ValueError: they can't; tells what differs, and what to do
    """
    remedy = "Export again on such a machine, or with --portable."
    if native["tensorflow"] != tensorflow:
        raise ValueError(
            "the native libraries were compiled for TensorFlow %s, this is %s. %s"
            % (native["tensorflow"], tensorflow, remedy)
        )
    if native["machine"] != platform.machine():
        raise ValueError(
            "the native libraries are for %s, this is %s. %s" % (native["machine"], platform.machine(), remedy)
        )
    here = set(_cpu_features())
    lacking = [name for name in native["cpu"].split() if _INSTRUCTIONS.match(name) and name not in here]
    if here and lacking:
        raise ValueError(
            "the native libraries may use instructions that this CPU lacks: %s. %s" % (" ".join(lacking), remedy)
        )


def _cpu_features() -> list[str]:
    """Return the features of this CPU, none if they are unknown."""
    try:
        with open("/proc/cpuinfo", encoding="utf8", errors="replace") as file:
            lines = [line for line in file if line.startswith(("flags", "Features"))]
    except OSError:
        return []
    return lines[0].split(":", 1)[1].split() if lines else []


def main(folder: str, feed: str, result: str) -> int:
    """Run the graph.

    :param folder: of the export
    :param feed: npz file of the inputs
    :param result: npz file to write the outputs to
    """
    run = load(folder)
    with np.load(feed, allow_pickle=False) as arrays:
        inputs = {name: arrays[name] for name in arrays.files}
    outputs = run(**inputs)
    strings = {name: value.astype("S") for name, value in outputs.items() if value.dtype.kind == "O"}  # no pickle
    np.savez(result, **{**outputs, **strings})
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except ValueError as exc:
        sys.exit(str(exc))
