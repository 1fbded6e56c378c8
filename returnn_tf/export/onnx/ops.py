"""Ops that tf2onnx converts to something else than what TensorFlow computes, done right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from returnn_tf.export.onnx.packages import Packages


def handlers(pkg: Packages) -> dict[str, tuple[Any, list[Any]]]:
    """Return TensorFlow's op type -> (converter, arguments), for tf2onnx's ``custom_op_handlers``."""
    proto = pkg.onnx.TensorProto
    integers = {proto.INT32, proto.INT64}

    def floor_mod(ctx: Any, node: Any, _name: str, _args: Any) -> None:
        """Convert ``a % b``: tf2onnx gives integers the sign of a, not that of b."""
        if ctx.get_dtype(node.input[0]) in integers:
            node.type = "Mod"
        else:
            _math(pkg).FloorMod.version_7(ctx, node)

    def floor_div(ctx: Any, node: Any, _name: str, _args: Any) -> None:
        """Convert ``a // b``: tf2onnx rounds integers towards zero, so that sizes made as -(-n // 2) are wrong."""
        if ctx.get_dtype(node.input[0]) not in integers:
            _math(pkg).FloorDiv.version_6(ctx, node)
            return
        (a, b), shapes, dtypes = node.input, node.output_shapes, node.output_dtypes
        ctx.remove_node(node.name)
        rest = ctx.make_node("Mod", [a, b], op_name_scope=node.name).output[0]
        whole = ctx.make_node("Sub", [a, rest], op_name_scope=node.name).output[0]
        ctx.make_node("Div", [whole, b], name=node.name, outputs=node.output, shapes=shapes, dtypes=dtypes)

    def select(ctx: Any, node: Any, _name: str, _args: Any) -> None:
        """Convert ``where(c, x, y)``: tf2onnx makes ``c x + (1 - c) y``, in which NaN and infinity spread."""
        if ctx.get_dtype(node.output[0]) == proto.BOOL:  # for which onnxruntime has no Where
            _control(pkg).Select.version_7(ctx, node)
        else:
            node.type = "Where"

    def lstm(ctx: Any, node: Any, _name: str, _args: Any) -> None:
        """Convert the op that `returnn_tf.ops.cells.fused_lstm` emits."""
        x, h0, c0, lengths = (node.input[i] for i in (0, 1, 2, 4))
        parts = node.inputs[3].input[3:]  # of CudnnRNNCanonicalToParams: 8 matrices and 8 vectors, gates i, f, j, o

        def joined(first: int, count: int) -> Any:
            """Return parts in the order i, o, f, j of ONNX, [1, sizes]."""
            order = [parts[first + start + gate] for start in range(0, count, 4) for gate in (0, 3, 1, 2)]
            whole = ctx.make_node("Concat", order, attr={"axis": 0}, op_name_scope=node.name).output[0]
            axis = ctx.make_const(pkg.tf2onnx.utils.make_name("axis"), np.array([0], "int64")).output[0]
            return ctx.make_node("Unsqueeze", [whole, axis], op_name_scope=node.name).output[0]

        size = ctx.get_shape(parts[-1])[0]
        outputs, shapes, dtypes = list(node.output), node.output_shapes, node.output_dtypes
        ctx.remove_node(node.name)
        made = ctx.make_node(
            "LSTM", [x, joined(0, 4), joined(4, 4), joined(8, 8), lengths, h0, c0], attr={"hidden_size": size},
            output_count=3, dtypes=dtypes[:3], op_name_scope=node.name,
        )  # fmt: skip
        direction = ctx.make_const(pkg.tf2onnx.utils.make_name("axis"), np.array([1], "int64")).output[0]
        ctx.make_node(
            "Squeeze", [made.output[0], direction], outputs=outputs[:1], shapes=shapes[:1], dtypes=dtypes[:1],
            op_name_scope=node.name,
        )  # fmt: skip
        for source, name, shape, dtype in zip(made.output[1:], outputs[1:], shapes[1:], dtypes[1:]):
            ctx.make_node("Identity", [source], outputs=[name], shapes=[shape], dtypes=[dtype])

    def nothing(ctx: Any, node: Any, _name: str, _args: Any) -> None:
        """Leave an op to the one that reads it."""

    return {
        "FloorMod": (floor_mod, []), "FloorDiv": (floor_div, []), "SelectV2": (select, []),
        "CudnnRNNV3": (lstm, []), "CudnnRNNCanonicalToParams": (nothing, []),
    }  # fmt: skip


def _math(pkg: Packages) -> Any:
    return pkg.tf2onnx.onnx_opset.math


def _control(pkg: Packages) -> Any:
    return pkg.tf2onnx.onnx_opset.controlflow


def keep_empty_axes(pkg: Packages, model: Any) -> None:
    """Let size 0 in a shape that is computed at run time mean an empty axis, as in TensorFlow.

    By default it means the size that the axis has before the Reshape.

    :param model: an ``onnx.ModelProto`` with operators of version 14 at least; changed in place
    """
    for graph in graphs_of(model.graph):
        constants = {tensor.name for tensor in graph.initializer}
        constants.update(name for node in graph.node if node.op_type == "Constant" for name in node.output)
        for node in graph.node:
            if node.op_type == "Reshape" and node.input[1] not in constants:
                node.attribute.append(pkg.onnx.helper.make_attribute("allowzero", 1))


def graphs_of(graph: Any) -> Iterator[Any]:
    """Yield a graph and those inside of its nodes: the bodies of loops and branches."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs_of(attribute.g)
