"""What the export to TFLite says of networks that it has no form for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from returnn_tf.config import DataError
from returnn_tf.export.layer_table import choose_another
from returnn_tf.export.tflite.conversion import ConversionError
from returnn_tf.graph.layer import Node

TARGET = "tflite"
Layers = Mapping[Node, list[str]]
"""See `returnn_tf.export.layers_of_ops.layers_of_ops`."""


def no_form(exc: ConversionError, layers: Layers, *, batch: int, select_tf_ops: bool) -> str:
    """Say which layers need what TFLite does not have, and what to choose instead.

    :param batch: the option; 0: any number of sequences
    :param select_tf_ops: the option
    """
    named = ["%r (class %r: %s)" % (node.path, node.layer.class_name, ", ".join(ops)) for node, ops in layers.items()]
    if named:
        what = "TFLite has no ops for the %s %s" % ("layer" if len(named) == 1 else "layers", ", ".join(named))
    elif exc.ops:
        what = "TFLite has no ops for %s" % ", ".join(exc.ops)
    else:
        what = "TFLite's converter fails: %s" % exc
    ways = []
    if exc.is_loop and not batch:
        ways.append("Fix the number of sequences by the option batch 1, as loops need.")
    if not select_tf_ops:
        ways.append("Allow ops of TensorFlow by the option select_tf_ops (programs then need the Flex delegate).")
    return _message(what, [*ways, choose_another(_classes(layers), TARGET)])


def refused(exc: DataError, layers: Layers) -> str:
    """Say which layer has an op that the interpreter refuses."""
    named = ", ".join("the layer %r (class %r)" % (node.path, node.layer.class_name) for node in layers)
    reason = re.sub(r"tensorflow/\S+ |\.?\s*Node number.*", "", str(exc).partition(": ")[2])
    what = "TFLite's interpreter refuses an op%s: %s" % (" of " + named if named else "", reason)
    return _message(what, [choose_another(_classes(layers), TARGET)])


def ops_of_kernel(text: str, types: Iterable[str]) -> list[str]:
    """Return which ops of TensorFlow an error of the interpreter is about, e.g. "RFFT" for "(RFFT2D) failed".

    :param types: of the ops in the graph
    """
    kernels = [name.replace("_", "") for name in re.findall(r"\(([A-Z0-9_]+)\) failed", text)]
    return sorted(name for name in types if any(kernel.startswith(name.upper()) for kernel in kernels))


def _classes(layers: Layers) -> list[str]:
    return sorted({node.layer.class_name for node in layers})


def _message(what: str, ways: Iterable[str]) -> str:
    return " ".join(["export to tflite: %s." % what, *(way for way in ways if way)])
