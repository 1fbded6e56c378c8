"""A graph that is thrown away: it has placeholders for the layers that a layer of a config depends on."""

from __future__ import annotations

import types
from typing import Any

from returnn_tf.graph.aux_values import PRE_ACTIVATION, PreActivation
from returnn_tf.graph.layer import Node
from returnn_tf.graph.lowering import Lowering
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


class ScratchGraph:
    """Values of layers that are only planned; to be used within ``graph.as_default()``."""

    def __init__(self, ctx: PlanContext) -> None:
        self.graph = tf.Graph()
        self._node = ctx.node
        with self.graph.as_default():
            step = tf.compat.v1.placeholder(tf.int64, [])
            # As in training, where such code has all its variables.
            self.lowering = Lowering({}, not ctx.search, ctx.search, ctx.semantics, step=step)
            self.lowering.batch_size = _placeholder("int32", [])
            if ctx.in_step:
                self.lowering.loop_index = _placeholder("int32", [])
                if ctx.search:
                    scores, ended = _placeholder("float32", [None, None]), _placeholder("bool", [None])
                    self.lowering.hypotheses = types.SimpleNamespace(scores=scores, ended=ended)
        for node in ctx.node.deps:
            self.provide(node)

    def provide(self, node: Node) -> None:
        """Add placeholders for the output of a layer, its lengths, its parameters and the values before activation."""
        if node in self.lowering.values:
            return
        data = node.output
        with self.graph.as_default():
            self.lowering.values[node] = _placeholder(data.dtype, data.static_shape)
            for dim in data.dims:
                self._provide_dim(dim)
            for spec in node.params.values():
                if isinstance(spec, ParamSpec):
                    self.lowering.variables[spec.name] = _placeholder(spec.dtype, spec.shape)
            activation = node.layer.activation
            if activation is not None:
                before = PreActivation(_placeholder(data.dtype, data.static_shape), activation)
                self.lowering.set_aux(node, PRE_ACTIVATION, before)

    def state(self, key: str, data: Data) -> None:
        """Add a placeholder for a state of the layer itself."""
        with self.graph.as_default():
            self.lowering.loop_inputs[self._node, key] = _placeholder(data.dtype, data.static_shape)

    def _provide_dim(self, dim: Dim) -> None:
        if dim.size is not None:
            return
        for operand in dim.expr.args if dim.expr is not None else ():
            if isinstance(operand, Dim):
                self._provide_dim(operand)
        if dim.expr is None:
            if dim.is_batch:
                self.lowering.sizes.setdefault(dim, self.lowering.batch_size)
            else:
                self.lowering.lens.setdefault(dim, _placeholder("int32", [None]))


def _placeholder(dtype: str, shape: Any) -> Any:
    return tf.compat.v1.placeholder(dtype, list(shape))
