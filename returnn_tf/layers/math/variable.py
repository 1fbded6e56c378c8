"""`variable`: a parameter as a layer; `variable_assign`, `variable_read`: ordered writes and reads of it."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Optional, Union

from returnn_tf.config.option_types import Written
from returnn_tf.config.options import LayerRef, LayerRefs, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer, Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Init
from returnn_tf.graph.params.of_layer import ValueOfLayer
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.axis_marks import with_feature_default
from returnn_tf.tensor import NUMERIC_DTYPES, Data, Dim, DimKind, batch_dim
from returnn_tf.tensor.match import match_axes
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class VariablePlan(LayerPlan):
    """The plan of `VariableLayer`.

    :param name: of the parameter
    :param param_data: the parameter itself, without added axes
    """

    name: str
    param_data: Data


@register_layer("variable")
class VariableLayer(Planned[VariablePlan]):
    """A parameter.

    Parameters: ``<param_name>`` (default: the name of the layer) of the given shape.
    Lengths: none; all axes of the parameter are static.

    Example::

        network = {
            "v": {"class": "variable", "shape": [4], "init": "glorot_uniform", "add_batch_axis": True},
            "output": {"class": "combine", "kind": "add", "from": ["data", "v"], "loss": "as_is"}}
    """

    needs_sources = False
    shape: Annotated[Any, Written(Union[int, Dim, list[Union[int, Dim]]])] = option(
        help="dims or sizes; with sizes, the last is the feature axis"
    )
    dtype: Optional[str] = option(
        None, choices=(None, *NUMERIC_DTYPES), help="dtype of the parameter; default: that of floats in the network"
    )
    init: Init = option(None, help="initialiser: a number, an array, or a name such as 'glorot_uniform' (default 0)")
    init_by_layer: Optional[LayerRef] = option(
        None, help="layer with the initial value; it may depend on parameters, but not on inputs", refs=True
    )
    param_name: Optional[str] = option(None, help="name of the parameter; default: the name of the layer")
    add_batch_axis: bool = option(False, help="put a batch axis in front, with the same values for all sequences")
    add_time_axis: bool = option(False, help="put a time axis of size 1 in front")
    saveable: bool = option(True, help="obsolete", inert="all parameters are part of checkpoints")
    non_critical_for_restore: bool = option(
        False, help="obsolete", inert="preload_from_files and its 'ignore_missing' determine what may be missing"
    )

    def template(self, ctx: PlanContext) -> VariablePlan:
        """Infer the output: the dims of the parameter, after the added ones."""
        if self.sources:
            raise ctx.error("takes no sources: 'from' must be [].")
        dims = self._dims(ctx)
        name = self.param_name or self.node.path.rpartition("/")[2]
        dtype = self.dtype or ctx.float_dtype
        is_float = dtype.startswith(("float", "bfloat", "complex"))
        init = 0 if self.init is None else self.init
        if self.init_by_layer is not None:
            init = self._init_of(ctx, self.init_by_layer, Data(tuple(dims), dtype))
        ctx.param(name, dims, init, dtype=dtype, trainable=None if is_float else False)
        data = param_data = with_feature_default(Data(tuple(dims), dtype))
        if self.add_time_axis:
            data = data.with_axis(0, ctx.new_spatial(1, "time"), time=True)
        if self.add_batch_axis:
            ctx.depend_on_dim(batch_dim)
            data = data.with_axis(0, batch_dim)
        return VariablePlan(data, name, param_data)

    def _dims(self, ctx: PlanContext) -> list[Dim]:
        shape = [self.shape] if isinstance(self.shape, (int, Dim)) else list(self.shape)
        dims = []
        for i, size in enumerate(shape):
            if isinstance(size, int):
                kind = DimKind.FEATURE if i == len(shape) - 1 else DimKind.SPATIAL
                size = Dim(kind, size, "%s:static%d" % (self.node.path, i), auto=True)
            if not isinstance(size, Dim) or size.size is None:
                raise ctx.error("shape must hold sizes and static dims, got %s." % (size,))
            dims.append(size)
        return dims

    def _init_of(self, ctx: PlanContext, node: Node, into: Data) -> Any:
        if self.init is not None:
            raise ctx.error("init and init_by_layer are both given. Give one of them.")
        if node.layer.initializer is not None:
            return node.layer.initializer
        data = node.output
        mapping = match_axes(data, into)
        if data.dtype != into.dtype or any(t is None and d.size != 1 for d, t in zip(data.dims, mapping)):
            raise ctx.error("init_by_layer %r gives %s, which does not fit the parameter %s." % (node.path, data, into))
        init = ValueOfLayer(node, into, tuple(mapping))
        of_batch = init.input()
        if of_batch is not None or any(n in ctx.planner.planned_nodes for n in init.nodes() if ctx.in_step):
            raise ctx.error(
                "init_by_layer %r depends on %s, but parameters get their values before that is known. Use a layer "
                "that depends on constants and parameters alone."
                % (node.path, "the step of a loop" if of_batch is None else "the input %r" % of_batch.path)
            )
        return init

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the value of the parameter, repeated for all sequences if there is a batch axis."""
        value = ctx.param(self.plan.name)
        data = ctx.output
        if data.rank == self.plan.param_data.rank:
            return value
        return tf.broadcast_to(value, tf.stack(ctx.shape(data)))


class VariableAccess(Layer):
    """The common part of `variable_assign` and `variable_read`; not registered."""

    needs_sources = False

    def layer_of(self, ctx: PlanContext, var: Node) -> VariableLayer:
        """Return the layer that owns the variable."""
        if self.sources:
            raise ctx.error("takes no sources: 'from' must be [].")
        layer = var.layer
        if not isinstance(layer, VariableLayer):
            raise ctx.error("var %r must be a layer of class 'variable', not %r." % (var.path, layer.class_name))
        return layer

    def resource(self, ctx: EmitContext, var: Node) -> Any:
        """Return the variable."""
        assert isinstance(var.layer, VariableLayer)
        return ctx.lowering.params.variables[var.params[var.layer.plan.name].name]


@register_layer("variable_assign")
class VariableAssignLayer(VariableAccess):
    """Sets a variable, or adds to it, whenever this layer is computed. The output is a dummy, the int32 scalar 0.

    Layers that read the variable by its `variable` layer see the old value; `variable_read` sees the new one.
    Lengths: none.

    Example::

        network = {
            "v": {"class": "variable", "shape": (), "init": 1, "trainable": False},
            "two": {"class": "constant", "value": 2.0},
            "inc": {"class": "variable_assign", "var": "v", "value": "two", "op": "add"},
            "output": {"class": "variable_read", "var": "v", "control_dependencies": ["inc"]}}
    """

    changes_variables = True
    var: LayerRef = option(help="the variable layer", refs=True)
    value: LayerRef = option(help="layer with the value; it is repeated along axes that it lacks", refs=True)
    op: str = option("assign", choices=("assign", "add"), help="what to do with the value")
    control_dependencies: Optional[LayerRefs] = option(None, help="layers to compute first", refs=True)

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: a scalar."""
        into = self.layer_of(ctx, self.var).plan.param_data
        value = self.value.output
        missing = [d for d, target in zip(value.dims, match_axes(value, into)) if target is None and d.size != 1]
        if missing:
            raise ctx.error(
                "the value %s has the axis %s, which the variable %s lacks. Reduce it first."
                % (value, missing[0], into)
            )
        if value.dtype != into.dtype:
            raise ctx.error("the value is %s, but the variable is %s. Cast the value." % (value.dtype, into.dtype))
        return Data((), "int32")

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the assignment; what is emitted later reads the new value."""
        variable = self.resource(ctx, self.var)
        value = tf.broadcast_to(ctx.broadcast(self.value, self.var.layer.plan.param_data), variable.shape)
        done = variable.assign_add(value) if self.op == "add" else variable.assign(value)
        with tf.control_dependencies([done]):
            return tf.constant(0)


@register_layer("variable_read")
class VariableReadLayer(VariableAccess):
    """The value of a variable after the layers in ``control_dependencies`` were computed, e.g. after an assignment.

    Lengths: none.

    Example::

        network = {
            "v": {"class": "variable", "shape": [3], "init": "ones"},
            "output": {"class": "variable_read", "var": "v"}}
    """

    var: LayerRef = option(help="the variable layer", refs=True)
    control_dependencies: Optional[LayerRefs] = option(None, help="layers to compute first", refs=True)

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: the dims of the parameter."""
        return self.layer_of(ctx, self.var).plan.param_data

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a new read of the variable."""
        return self.resource(ctx, self.var).read_value()
