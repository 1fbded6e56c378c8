"""Matrices of int8 in an ONNX file, by onnxruntime's dynamic quantization."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.compiler.planning.rounded_params import LEAST_SIZE, NOTHING_TO_STORE
from returnn_tf.config.errors import ExportDataError, ExportError, did_you_mean
from returnn_tf.export.layers_of_ops import layer_of_op
from returnn_tf.export.onnx.packages import packages, quiet

#: Largest difference of values, relative to the largest value of an output (at least 1).
QUANTIZED_TOLERANCE = 1e-1
#: Types of nodes that can have a matrix of int8 -> which of their inputs it is.
_MATRIX = {"MatMul": 1, "Gemm": 1, "Gather": 0}


def quantize_matrices(path: str, plan: Plan, exclude: Sequence[str]) -> list[str]:
    """Store the large matrices of a file as int8, by channel; what is multiplied with them is rounded to uint8.

    :param path: of the file, which is replaced
    :param plan: of the network in it
    :param exclude: paths of layers or patterns whose matrices stay float32
    :return: the paths of the layers with matrices of int8
    :raises ConfigError: a pattern leaves nothing out, or there is no large matrix
    :raises DataError: onnxruntime can't convert the file
    """
    onnx = packages().onnx
    model = onnx.load(path)
    _move_into_loops(model.graph, onnx)
    nodes = {node.name: layer_of_op(plan, node.name) for node in _with_matrices(model.graph, onnx)}
    layers = {name: "" if node is None else node.path for name, node in nodes.items()}
    for pattern in exclude:
        if not any(fnmatchcase(layer, pattern) for layer in layers.values()):
            raise ExportError(
                "export to onnx: exclude has %r, but no layer of this name or pattern has a matrix that would be int8. "
                "%s" % (pattern, did_you_mean(pattern, sorted({*layers.values()} - {""})))
            )
    chosen = {name: at for name, at in layers.items() if not any(fnmatchcase(at, pattern) for pattern in exclude)}
    if not chosen:
        raise ExportError("export to onnx: " + NOTHING_TO_STORE)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as temp:
        source, result = os.path.join(temp, "float.onnx"), os.path.join(temp, "int8.onnx")
        onnx.save(model, source)
        try:
            with quiet():
                from onnxruntime.quantization import QuantType, quantize_dynamic

                quantize_dynamic(
                    source,
                    result,
                    op_types_to_quantize=list(_MATRIX),
                    nodes_to_quantize=sorted(chosen),
                    per_channel=True,
                    weight_type=QuantType.QInt8,
                    extra_options={"EnableSubgraph": True},
                )
        except Exception as exc:  # of many classes, which are not public
            raise ExportDataError(
                "export to onnx: onnxruntime can't store matrices as int8: %s" % " ".join(str(exc).split())
            ) from exc
        os.replace(result, path)
    return sorted({at for at in chosen.values() if at})


def _subgraphs(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g


def _large(graph: Any, onnx: Any) -> dict[str, Any]:
    """Return the large matrices among the constants of a graph."""
    return {
        constant.name: constant
        for constant in graph.initializer
        if constant.data_type == onnx.TensorProto.FLOAT
        and len(constant.dims) == 2
        and math.prod(constant.dims) >= LEAST_SIZE
    }


def _move_into_loops(graph: Any, onnx: Any) -> None:
    """Move large matrices that loops carry from step to step without a change into the loops.

    onnxruntime takes no matrix from outside of a loop.
    """
    for node in graph.node:
        if node.op_type == "Loop":
            (body,) = _subgraphs(node)
            large = _large(graph, onnx)
            # inputs: number of steps, condition, what is carried; outputs of a step: condition, what is carried
            for at in range(len(node.input) - 1, 1, -1):
                if node.input[at] in large and _passed_on(body, at):
                    _move(graph, node, body, at, large[node.input[at]])
        for inner in _subgraphs(node):
            _move_into_loops(inner, onnx)


def _passed_on(body: Any, at: int) -> bool:
    """Return whether a loop passes an input on as it is."""
    given, result = body.input[at].name, body.output[at - 1].name
    same = any(n.op_type == "Identity" and n.input[0] == given and n.output[0] == result for n in body.node)
    return given == result or same


def _move(graph: Any, loop: Any, body: Any, at: int, constant: Any) -> None:
    """Make a constant that a loop carries one of its body."""
    inner = type(constant)()
    inner.CopyFrom(constant)
    inner.name = body.input[at].name
    body.initializer.append(inner)
    after = loop.output[at - 2]
    del loop.input[at], loop.output[at - 2], body.input[at], body.output[at - 1]
    read = False
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name == after:
                node.input[place] = constant.name
            read = read or node.input[place] == constant.name
    if not read:
        graph.initializer.remove(constant)


def _with_matrices(graph: Any, onnx: Any) -> Iterator[Any]:
    """Yield the nodes that multiply with a large matrix, or look up its rows, also within loops."""
    large = _large(graph, onnx)
    for node in graph.node:
        if node.op_type in _MATRIX and node.input[_MATRIX[node.op_type]] in large:
            yield node
        for inner in _subgraphs(node):
            yield from _with_matrices(inner, onnx)
