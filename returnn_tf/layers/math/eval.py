"""`eval`: an output computed by user code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.aux_values import PRE_ACTIVATION, PreActivation
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.graph.option_types import Activation, Code, OutType, OutTypeOptions
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.math.combine import ElementwiseLayer, ElementwisePlan
from returnn_tf.layers.math.eval_code import compile_code, run_code, true_labels_of_code
from returnn_tf.layers.shared.out_type import out_type_of_function
from returnn_tf.ops.activations import check_activation, get_activation
from returnn_tf.tensor import Data


@register_layer("eval")
class EvalLayer(ElementwiseLayer):
    """``y = code``: an expression or a function of ``source(i)``.

    ``source(i)`` is the i-th source, broadcast to the layout of the source with most axes; ``auto_convert=False``
    returns the tensor unchanged, ``as_data=True`` a view with ``.placeholder``, ``.get_sequence_lengths()`` and so on.
    A string also sees ``tf`` (with TensorFlow 1 names), ``np``, ``self`` and the names in eval_locals. A function is
    called with ``source``, ``self`` and eval_locals as keywords. The output has the layout of the source with most axes
    unless out_type overrides it; without sources, out_type says all of it.
    Lengths: unchanged.

    Example::

        network = {"output": {"class": "eval", "eval": "tf.nn.relu(source(0)) * scale", "eval_locals": {"scale": 2.0},
            "from": "data"}}
    """

    keeps_features = True
    eval: Code = option(help="expression or function")
    eval_locals: Optional[dict[str, Any]] = option(None, help="further names for the code")
    activation: Activation = option(None, help="name of an activation function applied to the result")
    with_bias: bool = option(False, help="add a bias", unsupported="add it by a layer of its own")
    out_type: OutType = option(None, help="output properties that differ from the sources", group=OutTypeOptions)
    allow_broadcast_all_sources: Optional[bool] = option(None, help="allow that no source has all axes")

    def template(self, ctx: PlanContext) -> ElementwisePlan:
        """Infer the output: the common layout, changed by out_type."""
        check_activation(self.activation)
        compile_code(ctx, self.eval, self.eval_locals)
        out_type: Any = self.out_type
        if callable(out_type):
            out_type = out_type_of_function(ctx, out_type, self.eval_locals)
        if self.n_out is not None and not isinstance(out_type, Data):
            out_type = dict(out_type or {}, dim=self.n_out)
        if not self.sources:
            return self.without_sources(ctx, out_type)
        # The code may do anything with its sources, so they need not match unless it uses them broadcast.
        allow = True if self.out_type else self.allow_broadcast_all_sources
        layout = self.common(ctx, allow)
        if isinstance(out_type, Data):
            return ElementwisePlan(out_type, layout)
        return self.with_out_type(ctx, layout.replace(vocab=None), layout, out_type)

    def differentiates_by(self) -> Sequence[Node]:
        """Return the sources: code may compute derivatives by them."""
        return self.sources

    def true_labels(self, labels: Node) -> Optional[frozenset[int]]:
        """Return the labels for which the code is true."""
        return true_labels_of_code(self, labels)

    def emit(self, ctx: EmitContext) -> Any:
        """Run the code."""
        y = run_code(ctx, self.eval, self.eval_locals, self.plan.layout)
        if self.activation is not None:
            ctx.set_aux(self.node, PRE_ACTIVATION, PreActivation(y, self.activation))
            y = get_activation(self.activation)(y)
        return y
