"""`linear` and `softmax`: a matrix product over the feature axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.aux_values import PRE_ACTIVATION, PRODUCT, PreActivation, Product
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.option_types import Activation, Init
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.loops.packed import matrix, share_factors
from returnn_tf.ops.activations import check_activation, is_named, is_over_features
from returnn_tf.ops.frames.shape import move_axis
from returnn_tf.ops.gradients import drop_large_gradients
from returnn_tf.ops.mixed_precision import full
from returnn_tf.ops.product import dense, product
from returnn_tf.tensor import Data
from returnn_tf.tensor.parts import Parts


@register_layer("linear", "hidden", "forward")
class LinearLayer(ConcatInputLayer):
    """``y = activation(x W + b)`` over the feature axis, wherever it is.

    Parameters: ``W`` [in, n_out] ([n_out, in] with use_transposed_weights), ``b`` [n_out].
    Sparse input: row lookup in ``W`` (an embedding); the new feature axis is the last one.
    Lengths: unchanged.

    Example::

        network = {"output": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "data"}}
    """

    is_for_loss = True
    activation: Activation = option(None, help="name of the activation function, or None")
    with_bias: bool = option(True, help="whether to add b")
    forward_weights_init: Init = option("glorot_uniform", help="initialiser of W")
    bias_init: Init = option(0.0, help="initialiser of b", needs="with_bias")
    use_transposed_weights: bool = option(False, help="store W as [n_out, in]")
    grad_filter: Optional[float] = option(
        None, help="drop the gradient of a sequence, before the activation, if a square of it reaches this; 0: never"
    )

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: feature axis replaced; for sparse input appended."""
        check_activation(self.activation)
        data = self.input_template(ctx)
        if data.sparse_dim is not None:
            n_in = ctx.need_static(data.sparse_dim, "the number of labels of a sparse source")
        else:
            n_in = ctx.need_static(ctx.need_feature(data), "the feature axis of the source")
        out = ctx.out_feature()
        n_out = ctx.need_static(out, "out_dim")
        ctx.param("W", (n_out, n_in) if self.use_transposed_weights else (n_in, n_out), self.forward_weights_init)
        if self.with_bias:
            ctx.param("b", (n_out,), self.bias_init)
        if data.sparse_dim is not None:
            data = data.replace(sparse_dim=None, dtype=ctx.float_dtype)
            return data.with_axis(data.rank, out, feature=True)
        assert data.feature_axis is not None
        data = data.with_feature(data.feature_axis, out)
        if is_over_features(self.activation):
            data = feature_last(data)
        return data.replace(vocab=None)

    def before_loop(self, ctx: EmitContext) -> None:
        """Have the gradient of W computed after the loop."""
        if self.input.rank == 2 and self.input.feature_axis == 1:
            share_factors(ctx)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one GEMM over all frames, or a row lookup."""
        x = self.emit_input(ctx)
        bias, data, low = ctx.param("b") if self.with_bias else None, ctx.output, ctx.product_dtype
        if self.input.sparse_dim is not None:
            xw = matrix(ctx, "W", transposed=self.use_transposed_weights).rows(x)
        else:
            w, axis = matrix(ctx, "W", transposed=self.use_transposed_weights), self.input.feature_axis
            assert axis is not None
            xw = product(x, w, axis, train=ctx.train, product_dtype=low)
            if self._is_plain_product() and w.values is not None:
                ctx.set_aux(self.node, PRODUCT, Product(x, w.values, bias, w.transposed))
        on_sum = None
        if self.grad_filter:
            on_sum = partial(drop_large_gradients, limit=self.grad_filter, batch_axis=feature_last(data).batch_axis)
        before, y = dense(xw, bias, self.activation, train=ctx.train, on_sum=on_sum, product_dtype=low)
        if self.activation is not None:
            ctx.set_aux(self.node, PRE_ACTIVATION, PreActivation(self._place(full(before, low), data), self.activation))
        return self._place(y, data)

    def factors(self) -> Mapping[str, bool]:
        """Return W, unless its rows are looked up."""
        return {} if self.input.sparse_dim is not None else {"W": self.use_transposed_weights}

    def channel_axes(self) -> Mapping[str, int]:
        """Return W; where its rows are looked up, its channels are the labels."""
        return {"W": int((self.input.sparse_dim is None) != self.use_transposed_weights)}

    def _is_plain_product(self) -> bool:
        """Return whether the values before the activation are a `Product`, with the features last."""
        data = self.node.output
        changed = bool(self.grad_filter) or self.alters_output()
        return not changed and data.feature_axis == data.rank - 1 == self.input.feature_axis

    def works_by_frame(self) -> bool:
        """Return whether the features are the last axis before and after."""
        last = self.input.sparse_dim is None and self.input.feature_axis == self.input.rank - 1
        return is_named(self.activation) and last and not self.grad_filter and self.drops_by_frame()

    def gradient_reads_output(self) -> bool:
        """Return whether there is an activation."""
        return self.activation is not None

    def work_per_frame(self) -> int:
        """Return the size of W."""
        return (self.input.dim or 0) * (self.node.output.dim or 0)

    def param_parts(self, name: str, shape: Sequence[int], axis: int, inputs: Parts) -> Parts:
        """Return the inputs for the rows of W."""
        return inputs if len(shape) == 2 and axis == (1 if self.use_transposed_weights else 0) else []

    def _place(self, y: Any, data: Data) -> Any:
        """Move the feature axis from the end of ``y`` to its place in the template."""
        assert data.feature_axis is not None
        return move_axis(y, data.rank, data.rank - 1, data.feature_axis)


@register_layer("softmax")
class SoftmaxLayer(LinearLayer):
    """`linear` with the activation softmax: a distribution over ``n_out`` labels per frame.

    Parameters: as `linear`. Losses such as "ce" and "ctc" use the values before the softmax.
    Lengths: unchanged.

    Example::

        network = {"output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}}
    """

    normalizes_features = True
    activation: Activation = option("softmax", help="softmax or log_softmax")


def feature_last(data: Data) -> Data:
    """Move the feature axis to the end."""
    axis = data.feature_axis
    if axis is None or axis == data.rank - 1:
        return data
    return data.permuted([i for i in range(data.rank) if i != axis] + [axis])
