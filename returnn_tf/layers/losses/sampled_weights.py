"""The layer whose weights and input the loss `sampling_loss` uses, also where it is in a loop."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.graph.loss import LossPlanContext
from returnn_tf.graph.params.reuse import LayerAsParam
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.loops.nodes import AccumLayer, ExitLayer
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data


@dataclasses.dataclass(frozen=True)
class SampledWeights:
    """Weights by label, the bias, and the input of their product.

    :param node: the layer with the parameters "W" [labels, inputs] and "b"
    :param exit: the end of the loop that the layer is in
    """

    node: Node
    exit: Optional[Node] = None

    @property
    def input(self) -> Data:
        """Return the template of the input, as it is after the loop."""
        layer: Any = self.node.layer
        data = layer.input if isinstance(layer, ConcatInputLayer) else layer.source.output
        if self.exit is None:
            return data
        exit_layer: Any = self.exit.layer
        return exit_layer.outside(data)  # type: ignore[no-any-return]

    def rows(self, ctx: EmitContext, frames: Data) -> Any:
        """Return the input [frames, inputs], with the axes in the order of a template with features last."""
        layer: Any = self.node.layer
        own = EmitContext(self.node, ctx.lowering)
        data = self.input
        if isinstance(layer, ConcatInputLayer):
            x, inside = layer.emit_input(own), layer.input
        else:
            x, inside = own.source(), layer.source.output
        if self.exit is not None:
            exit_layer: Any = self.exit.layer
            x = transpose(x, exit_layer.order_outside(inside))
        return transpose(x, frame_axes(data, frames))

    def params(self, ctx: EmitContext) -> tuple[Any, Any]:
        """Return the weights [labels, inputs], and the bias [labels] or None."""
        own = EmitContext(self.node, ctx.lowering)
        return own.param("W"), own.param("b") if "b" in self.node.params else None


def frame_axes(data: Data, frames: Data) -> list[int]:
    """Return the axes of the input in the order of a template with features last; the features of the input last."""
    outer = [dim for axis, dim in enumerate(frames.dims) if axis != frames.feature_axis]
    return [data.dims.index(dim) for dim in outer] + [data.feature_axis]  # type: ignore[list-item]


def sampled_weights(ctx: LossPlanContext) -> SampledWeights:
    """Return the weights of the layer with the loss.

    :raises ConfigError: it has no weights by label, or other axes than its input
    """
    node, exit_node = ctx.node, None
    if isinstance(node.layer, ExitLayer):
        exit_node, node = node, node.sources[0]
        if isinstance(node.layer, AccumLayer):
            raise ctx.error(
                "the loss 'sampling_loss' can't be on a layer that runs in a loop step by step. Let nothing in the "
                "loop depend on it, or set 'loss_opts': {'use_full_softmax': True}."
            )
    weights = node.params.get("W")
    labels = None if ctx.target is None else ctx.target.dim
    shape = _shape(weights)
    if weights is None or (shape is not None and (len(shape) != 2 or shape[0] != labels)):
        raise ctx.error(
            "the loss 'sampling_loss' needs a layer with weights 'W' whose rows are the %s labels of the target, but "
            "%s. Use a softmax layer with 'use_transposed_weights': True, or set 'loss_opts': "
            "{'use_full_softmax': True}."
            % (labels, "it has none" if weights is None else "they are %s" % (list(shape or ()),))
        )
    found = SampledWeights(node, exit_node)
    data = _input_of(ctx, node, found)
    frames = ctx.output
    outer = [dim for axis, dim in enumerate(frames.dims) if axis != frames.feature_axis]
    inner = [dim for axis, dim in enumerate(data.dims) if axis != data.feature_axis]
    if data.sparse or data.feature_axis is None:
        raise ctx.error("the loss 'sampling_loss' needs a dense source, but it is %s." % data)
    if set(outer) != set(inner) or (shape is not None and data.dim != shape[1]):
        raise ctx.error(
            "the loss 'sampling_loss': the source %s must have the axes of the output %s, and one feature for each "
            "column of the weights %s." % (data, frames, list(shape or ()))
        )
    return found


def _input_of(ctx: LossPlanContext, node: Node, found: SampledWeights) -> Data:
    if not isinstance(node.layer, ConcatInputLayer) and len(node.sources) != 1:
        raise ctx.error("the loss 'sampling_loss' needs a layer with one source, but there are %d." % len(node.sources))
    return found.input


def _shape(param: Any) -> Optional[tuple[Any, ...]]:
    """Return the shape of a parameter, where it is known."""
    if isinstance(param, LayerAsParam):
        return tuple(dim.size for dim in param.dims)
    shape = getattr(param, "shape", None)
    return None if shape is None else tuple(shape)
