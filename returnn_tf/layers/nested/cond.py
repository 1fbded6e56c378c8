"""`cond`: one of two layers, selected by a condition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Union

from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.constraints import constrains_output
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.emit_node import emit_node
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.node import Node, ParamSpec
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.nested.unit_network import unit_network, unit_references
from returnn_tf.ops.frames.shape import to_layout
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.match import match_axes
from returnn_tf.util.lazy_tf import tf

_BRANCHES = ("true_layer", "false_layer")


@register_layer("cond")
class CondLayer(Layer):
    """``y = true_layer if condition else false_layer``. Only the selected layer is computed (`tf.cond`).

    Parameters: those of both layers, as if each were this layer: ``<layer>/W``, of subnetworks ``<layer>/<inner>/W``.
    Parameters of the same name are shared.
    Lengths: those of the layers; both must have the same axes.

    Example::

        network = {
            "sum": {"class": "reduce", "mode": "sum", "axis": ["B", "T", "F"], "from": "data"},
            "is_small": {"class": "compare", "kind": "less", "value": 1.0, "from": "sum"},
            "output": {
                "class": "cond", "condition": "is_small",
                "true_layer": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "data"},
                "false_layer": {"class": "linear", "activation": "sigmoid", "n_out": 3, "from": "data"}}}
    """

    needs_sources = False
    condition: LayerRef = option(help="layer with a single bool", refs=True)
    true_layer: Union[str, dict[str, Any]] = option(help="layer to compute if it is true: a dict or a layer name")
    false_layer: Union[str, dict[str, Any]] = option(help="layer to compute if it is false: a dict or a layer name")

    @classmethod
    def references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return what both layers take from the layers around; "data" if that is one."""
        for name in _BRANCHES:
            yield from unit_references(options.get(name))

    @classmethod
    def param_references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return the layers of which both layers use parameters."""
        for name in _BRANCHES:
            yield from unit_references(options.get(name), of_params=True)

    def template(self, ctx: PlanContext) -> Data:
        """Return the template of the true layer."""
        self._check_condition(ctx)
        self._nodes: list[list[Node]] = []
        self._results: list[Node] = []
        for name in _BRANCHES:
            result, nodes = self._plan_branch(ctx, name)
            self._results.append(result)
            self._nodes.append(nodes)
        self._share_params(ctx)
        ctx.node.inner = self._nodes[0] + self._nodes[1]
        data, other = (node.output for node in self._results)
        self._mapping = match_axes(other, data)
        self._check_same(ctx, data, other)
        return data

    def _check_condition(self, ctx: PlanContext) -> None:
        if not isinstance(self.condition, Node):
            raise ctx.error("condition must be the name of a layer, not %r." % (self.condition,))
        data = self.condition.output
        if not data.unknown and (data.dtype != "bool" or data.rank):
            raise ctx.error(
                "the condition %r must be a single bool, but it is %s. For a choice per entry use class 'switch'."
                % (self.condition.path, data)
            )

    def _plan_branch(self, ctx: PlanContext, name: str) -> tuple[Node, list[Node]]:
        """Return (the layer of a branch, all nodes computed only in this branch)."""
        sink = ctx.builder.sink
        before = len(sink)
        deps = list(ctx.node.deps)
        network = unit_network(getattr(self, name), lambda ref: "base:" + ref, where="the option %r" % name)
        result = ctx.subnetwork(network, {})
        prefix = ctx.node.path + "/"
        nodes = [node for node in sink[before:] if node.path.startswith(prefix)]
        sink[before:] = [node for node in sink[before:] if node not in nodes]
        ctx.node.deps = deps
        for node in nodes:
            has = "a loss" if node.layer.loss else "a state in the loop" if node.loop_states else ""
            if has or any(constrains_output(n) for n in [node, *node.inner]):
                raise ctx.error(
                    "%s: layer %r has %s, which is not supported in a branch that may not be computed."
                    % (name, node.path, has or "darc1 or spatial_smoothing")
                )
            for dep in node.deps:
                if dep not in nodes:
                    ctx.depend(dep)
        return result, nodes

    def _share_params(self, ctx: PlanContext) -> None:
        """Share the parameters that both branches declare."""
        known: dict[str, ParamSpec] = {spec.name: spec for node in self._nodes[0] for spec in node.owned}
        for node in self._nodes[1]:
            for spec in list(node.owned):
                other = known.get(spec.name)
                if other is None:
                    continue
                if other.shape != spec.shape:
                    raise ctx.error(
                        "both layers have a parameter %r, but of the shapes %s and %s. Put one of them into a "
                        "subnetwork or give it a name_scope." % (spec.name, other.shape, spec.shape)
                    )
                node.owned.remove(spec)
        for node in self._nodes[1]:
            for key, spec in node.params.items():
                if isinstance(spec, ParamSpec) and known.get(spec.name) is not None:
                    node.params[key] = known[spec.name]

    def _check_same(self, ctx: PlanContext, data: Data, other: Data) -> None:
        made: list[Any] = [  # dims that each branch creates, so they differ although they are meant to be the same
            axis for axis, target in enumerate(self._mapping) if target is None and _is_new(other.dims[axis])
        ]
        free = [axis for axis in range(data.rank) if axis not in self._mapping and _is_new(data.dims[axis])]
        for axis, target in zip(made, free):
            self._mapping[axis] = target
        if None in self._mapping or data.rank != other.rank or data.dtype != other.dtype:
            raise ctx.error(
                "both layers must have the same axes, but true_layer has %s and false_layer %s." % (data, other)
            )
        if (data.sparse_dim is None) != (other.sparse_dim is None) or data.dim != other.dim:
            raise ctx.error("the features differ: true_layer has %s, false_layer %s." % (data, other))

    def emit(self, ctx: EmitContext) -> Any:
        """Emit `tf.cond`; lengths that only a branch knows come out of it."""
        data = ctx.output
        lens_of = [axis for axis in data.dynamic_axes if not ctx.has_lens(data.dims[axis])]
        size_of = {axis: self._mapping.index(axis) for axis in lens_of}

        def branch(index: int, axes: list[int]) -> Any:
            state = ctx.lowering.child()
            for node in self._nodes[index]:
                emit_node(state, node)
            result = self._results[index]
            value = state.values[result]
            dims = [result.output.dims[axis] for axis in axes]
            if index:
                value = to_layout(value, result.output, data, self._mapping)
            for update in state.updates:
                update()
            ctx.lowering.constraints.extend(state.constraints)
            return [value, [state.get_lens(dim) for dim in dims], [state.get_size(dim) for dim in dims]]

        value, lens, sizes = tf.cond(
            ctx.value(self.condition),
            lambda: branch(0, lens_of),
            lambda: branch(1, [size_of[axis] for axis in lens_of]),
        )
        for axis, dim_lens, size in zip(lens_of, lens, sizes):
            ctx.define_lens(data.dims[axis], dim_lens, size)
        value.set_shape(data.static_shape)
        return value


def _is_new(dim: Dim) -> bool:
    return dim.is_dynamic and dim.expr is None and dim.auto
