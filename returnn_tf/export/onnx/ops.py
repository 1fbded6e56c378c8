"""Ops that tf2onnx converts to something else than what TensorFlow computes, done right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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

    return {"FloorMod": (floor_mod, []), "FloorDiv": (floor_div, []), "SelectV2": (select, [])}


def _math(pkg: Packages) -> Any:
    return pkg.tf2onnx.onnx_opset.math


def _control(pkg: Packages) -> Any:
    return pkg.tf2onnx.onnx_opset.controlflow


def keep_empty_axes(pkg: Packages, model: Any) -> None:
    """Let size 0 in a shape that is computed at run time mean an empty axis, as in TensorFlow.

    By default it means the size that the axis has before the Reshape.

    :param model: an ``onnx.ModelProto`` with operators of version 14 at least; changed in place
    """
    for graph in _graphs(model.graph):
        constants = {tensor.name for tensor in graph.initializer}
        constants.update(name for node in graph.node if node.op_type == "Constant" for name in node.output)
        for node in graph.node:
            if node.op_type == "Reshape" and node.input[1] not in constants:
                node.attribute.append(pkg.onnx.helper.make_attribute("allowzero", 1))


def _graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and those inside of its nodes: the bodies of loops and branches."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)
