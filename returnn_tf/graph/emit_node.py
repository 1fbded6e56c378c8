"""Emission of the ops of one node, with errors that name the node."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from returnn_tf.config import ConfigError, DataError
from returnn_tf.config.errors import DimError
from returnn_tf.config.options import declared_options
from returnn_tf.config.user_code import error_in_config
from returnn_tf.graph.aux_values import OUTPUT_LOSS, PRE_ACTIVATION
from returnn_tf.graph.batch_norm import apply_batch_norm_option
from returnn_tf.graph.check_numerics import checked_output
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.graph.lowering import Lowering
from returnn_tf.graph.postponed import Postponed
from returnn_tf.graph.user_views import user_views
from returnn_tf.ops.frames.pad import fit_dims
from returnn_tf.ops.mixed_precision import full
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


class LoweringError(ConfigError):
    """The ops of a layer could not be built; the message names it.

    Usually an option, or code in the config, asks for something that TensorFlow does not support. The cause is chained,
    so that log level 5 shows the traceback.
    """

    class_topic = "dims"


def emit_node(lowering: Lowering, node: Node) -> None:
    """Emit the ops of a node, check them against its template, and store the value.

    :raises LoweringError: with the path of the layer, its sources and its output
    """
    packing = lowering.packing.of(node, lowering.dims)
    ctx = EmitContext(node, lowering, may_reduce=True, packing=packing)
    with tf.name_scope(op_scope(node.path)), user_views().knowing_lengths(ctx.lens):
        try:
            value = node.layer.emit(ctx)
            _check_tensor(node, value)
            value = full(value, lowering.options.semantics.product_dtype) if node.output.dtype == "float32" else value
            if packing is not None:  # then nothing looks at the value here
                _check_shape(node, value)
                lowering.packing.frames[node] = value
                lowering.values.outputs[node] = Postponed(partial(packing.unpack, value))
                return
            if node.own_output is not None:
                value = _with_declared_sizes(ctx, value, node.own_output)
            if node.layer.batch_norm and not node.layer.normalizes_batch:
                value = apply_batch_norm_option(EmitContext(node, lowering), value)
            if node in lowering.options.differentiated:
                value = tf.identity(value)  # else what follows may be fused with the ops that made it
            dependencies = node.layer.control_dependencies_on_output
            if dependencies:
                with tf.control_dependencies(_dependencies(ctx, value, dependencies)):
                    value = tf.identity(value)
            if lowering.options.print_outputs or node.layer.debug_print_layer_output:
                shown = tf.print("%s:" % node.path, "shape", tf.shape(value), value, summarize=99)
                with tf.control_dependencies([shown]):
                    value = tf.identity(value)
            if node.layer.copy_output_loss_from_source_idx is not None:
                source = node.sources[node.layer.copy_output_loss_from_source_idx]
                loss = ctx.aux(source, OUTPUT_LOSS)
                if loss is not None:
                    ctx.set_aux(node, OUTPUT_LOSS, loss)
        except DimError as exc:
            if str(exc).startswith("Layer "):
                raise
            raise DimError("Layer %r (class %r): %s" % (node.path, node.layer.class_name, exc)) from exc
        except (ConfigError, DataError, LoweringError):
            raise
        except Exception as exc:  # TensorFlow and user code may raise anything
            raise LoweringError(
                "Layer %r (class %r): its ops could not be built: %s\n  sources: %s\n  output: %s"
                % (
                    node.path,
                    node.layer.class_name,
                    error_in_config(exc) or "%s: %s" % (type(exc).__name__, exc),
                    "; ".join("%s %s" % (s.path, s.output) for s in node.sources) or "none",
                    node.output,
                )
            ) from exc
    _check_shape(node, value)
    check = lowering.options.check_numerics
    lowering.values.outputs[node] = checked_output(node, value, check) if check else value


def _with_declared_sizes(ctx: EmitContext, value: Any, own: Data) -> Any:
    """Cut or extend the value, and that before the activation, to the dims that the user declared.

    These have the same lengths; the padding may have another size.
    """
    for inferred, declared in zip(own.dims, ctx.node.output.dims):
        value = ctx.with_same_lens(value, inferred, declared, "Declare another dim for this axis.")
    inner = ctx.aux(ctx.node, PRE_ACTIVATION)
    if inner is not None:
        ctx.set_aux(ctx.node, PRE_ACTIVATION, inner.changed(lambda x: fit_dims(x, own, ctx.node.output, ctx.size)))
    return fit_dims(value, own, ctx.node.output, ctx.size)


def _dependencies(ctx: EmitContext, value: Any, given: Any) -> list[Any]:
    """Return the ops that must run before the output is used: layers, or what a function of the layer returns."""
    if callable(given):
        ctx.lowering.values.outputs[ctx.node] = value
        return list(given(user_views().layer(ctx, ctx.node)) or [])
    return [ctx.lowering.values.outputs[node] for node in (given if isinstance(given, (list, tuple)) else [given])]


def _check_tensor(node: Node, value: Any) -> None:
    if not tf.is_tensor(value):
        raise LoweringError(
            "Layer %r (class %r): the value is %s, not a tensor.%s"
            % (node.path, node.layer.class_name, type(value).__name__, _function_hint(node))
        )


def _function_hint(node: Node) -> str:
    """Return a hint where to look for the cause if user code runs in a layer, e.g. as an activation."""
    infos = declared_options(type(node.layer)).values()
    names = [info.name for info in infos if callable(getattr(node.layer, info.attribute))]
    return " Check the function in the option %r." % names[0] if names else ""


def _check_shape(node: Node, value: Any) -> None:
    """Check that the emitted static shape fits the template; only a bug here or user code can break it."""
    data = node.output
    rank = value.shape.rank
    fits = rank is None or (
        rank == data.rank
        and all(a is None or b is None or a == b for a, b in zip(value.shape.as_list(), data.static_shape))
    )
    if not fits:
        raise LoweringError(
            "Layer %r (class %r): the value has the shape %s, but the output was declared as %s.%s "
            "If the layer runs your own function, declare its result in out_type."
            % (node.path, node.layer.class_name, value.shape, data, _function_hint(node))
        )
    if value.dtype.base_dtype.name != data.dtype:
        raise LoweringError(
            "Layer %r (class %r): the value is %s, but the output was declared as %s. "
            "Declare it in out_type: {'dtype': %r}."
            % (node.path, node.layer.class_name, value.dtype.name, data.dtype, value.dtype.name)
        )


def op_scope(path: str) -> str:
    """Return a valid TF op scope; it only serves readers of the graph."""
    return re.sub("[^A-Za-z0-9_/.]", "_", path).strip("/_.") or "layer"
