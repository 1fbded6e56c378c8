"""Conversion of a traced function to ONNX, with errors that name the layer."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from returnn_tf._version import __version__
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config.errors import ConfigError, ExportError
from returnn_tf.export.graph_ops import check_ops
from returnn_tf.export.layer_table import choose_another
from returnn_tf.export.layers_of_ops import layer_of_op
from returnn_tf.export.onnx.packages import Packages, packages, quiet


def _elsewhere(plan: Plan, op: str) -> str:
    """Return advice on an op."""
    node = layer_of_op(plan, op) if op else None
    others = choose_another([] if node is None else [node.layer.class_name], "onnx")
    return (
        "%s Or leave the layer out by the option outputs, or replace it." % others if others else "Replace the layer."
    )


def convert(function: Any, specs: Sequence[Any], plan: Plan, opset: int) -> Any:
    """Convert a function to ONNX.

    :param function: a `tf.function` of tensors that returns a dict; its keys become the names of the outputs
    :param specs: `tf.TensorSpec`s whose names become those of the inputs
    :param plan: what was traced, for messages
    :return: an ``onnx.ModelProto``
    :raises ConfigError: ONNX can't express an op; names its layer
    """
    pkg = packages()
    graph_def = function.get_concrete_function(*specs).graph.as_graph_def()
    check_ops(graph_def, "onnx")
    with quiet() as complaints, _right_optimizers(pkg):
        try:
            model, _ = pkg.tf2onnx.convert.from_function(
                function, input_signature=list(specs), opset=opset, custom_op_handlers=handlers(pkg)
            )
        except Exception as exc:  # the converter has no exception class
            complaints.errors.append(("", str(exc).strip() or type(exc).__name__))
    if complaints.errors:
        raise _refused(plan, complaints.errors)
    keep_empty_axes(pkg, model)
    return model


@contextlib.contextmanager
def _right_optimizers(pkg: Packages) -> Iterator[None]:
    """Leave out the optimizer of tf2onnx that merges reshapes, e.g. in attention, into one of a wrong shape."""
    table = pkg.tf2onnx.optimizer._optimizers
    before = dict(table)
    table.pop("reshape_optimizer", None)
    try:
        yield
    finally:
        table.clear()
        table.update(before)


def _refused(plan: Plan, errors: Sequence[tuple[str, str]]) -> ConfigError:
    """Return the error for ops that were not converted: pairs of the name, or "", and the reason."""
    name, text = errors[0]
    kind = re.match(r"Tensorflow op \[(?:.*): (\w+)\] is not supported", text)
    what = "it has no form for the op %s" % kind[1] if kind else text.splitlines()[0].rstrip(".")
    return ExportError(
        "export to onnx: tf2onnx can't convert %s: %s. %s" % (_place(plan, name), what, _elsewhere(plan, name))
    )


def _place(plan: Plan, op: str) -> str:
    """Return the layer of an op, in words."""
    node = layer_of_op(plan, op) if op else None
    if node is None:
        return "the op %r" % op if op else "the network"
    return "layer %r (class %r)" % (node.path, node.layer.class_name)


def check_model(model: Any, plan: Plan) -> None:
    """Check that a model is valid, and that onnxruntime loads it.

    :param model: an ``onnx.ModelProto``
    :raises ConfigError: it doesn't; names the layer
    """
    pkg = packages()
    try:
        with quiet():
            pkg.onnx.checker.check_model(model, full_check=True)
    except (pkg.onnx.checker.ValidationError, pkg.onnx.shape_inference.InferenceError) as exc:
        raise invalid(plan, exc) from exc


def invalid(plan: Plan, exc: Exception) -> ConfigError:
    """Return the error for a converted model that ONNX's tools refuse."""
    text = " ".join(str(exc).split())
    found = re.search(r"(?:Node ?\(|Name: ?'?|[Nn]ode name: |Node:)\"?([\w./-]+)", text)
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    op = found[1] if found else ""
    return ExportError(
        "export to onnx: what tf2onnx made of %s is not valid: %s. %s"
        % (_place(plan, op), text[:300].rstrip("."), _elsewhere(plan, op))
    )


def remove_unused_inputs(model: Any) -> None:
    """Remove the inputs of an ``onnx.ModelProto`` that nothing reads, in place."""
    read = {name for graph in graphs_of(model.graph) for node in graph.node for name in node.input}
    read.update(output.name for output in model.graph.output)
    kept = [entry for entry in model.graph.input if entry.name in read]
    del model.graph.input[:]
    model.graph.input.extend(kept)


def name_axes(model: Any, names: Mapping[str, Sequence[str]]) -> None:
    """Name the axes of inputs and outputs that have no fixed size.

    :param model: an ``onnx.ModelProto``; changed in place
    :param names: of the axes by input or output
    """
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        for dim, name in zip(dims, names.get(value.name, ()) if len(dims) == len(names.get(value.name, ())) else ()):
            if not dim.HasField("dim_value"):
                dim.dim_param = name


def write_model(model: Any, path: str) -> None:
    """Write an ``onnx.ModelProto`` to a file."""
    model.producer_name, model.producer_version = "returnn_tf", __version__
    with open(path, "wb") as file:
        file.write(model.SerializeToString(deterministic=True))


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
