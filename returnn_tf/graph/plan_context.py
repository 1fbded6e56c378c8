"""The interface of a layer while its template is inferred: no TensorFlow here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config.errors import ConfigError, DimError, LoopError, SourceError, SparseError
from returnn_tf.config.option_types import fits_type
from returnn_tf.config.options import axis_size, log_inert
from returnn_tf.graph.carried_state import KeptSpec
from returnn_tf.graph.layer import Layer, Node
from returnn_tf.graph.network_planner import NetworkPlanner
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.graph.params.init_names import LayerInExpression
from returnn_tf.graph.params.reuse import OpenParam, ReuseLevel
from returnn_tf.graph.registry import LOSSES
from returnn_tf.ops.initial_values import Constant, Drawn, FromTensorFlow
from returnn_tf.ops.initializers import get_initializer
from returnn_tf.tensor import AxisDesc, Data, Dim, DimKind, resolve_axes, resolve_axis
from returnn_tf.tensor.axes import axes_of, resolve_each

#: Numbers in one parameter: 16 GiB of float32. A larger one is a mistake in the config.
_MAX_PARAM_SIZE = 2**32


class PlanContext:
    """The context passed to `Layer.template`."""

    def __init__(self, node: Node, planner: NetworkPlanner) -> None:
        self.node = node
        self.planner = planner
        self.semantics = planner.semantics
        self.behavior_version = planner.semantics.behavior_version
        self.float_dtype = planner.semantics.float_dtype
        self.search = planner.search
        self.in_step = planner.in_step
        self.loop_dim = planner.loop_dim

    def error(self, message: str) -> ConfigError:
        """Return an error to raise; the compiler prepends layer path, class and sources."""
        return DimError(message)

    def log_inert(self, name: str, reason: str) -> None:
        """Log once that an option of the layer has no effect."""
        log_inert("Layer %r (class %r)" % (self.node.path, self.node.layer.class_name), name, reason)

    # --- axes of the sources ---

    def axis(self, data: Data, desc: AxisDesc) -> int:
        """Return the index of the one axis that matches."""
        return resolve_axis(data, desc, behavior_version=self.behavior_version, names=self.planner.dims.names)

    def axes(self, data: Data, desc: Any) -> list[int]:
        """Return the indices of all axes that match; each name must match, except those of groups and "T?"."""
        return resolve_axes(data, desc, behavior_version=self.behavior_version, names=self.planner.dims.names)

    def each_axes(self, data: Data, descs: Sequence[AxisDesc]) -> list[list[int]]:
        """Return the indices of the axes that each description means; see `resolve_each`."""
        return resolve_each(data, descs, behavior_version=self.behavior_version, names=self.planner.dims.names)

    def each_axis(self, data: Data, descs: Sequence[AxisDesc]) -> list[int]:
        """Return the index of the one axis that each description means."""
        each = self.each_axes(data, descs)
        return [axes[0] if len(axes) == 1 else self.axis(data, desc) for axes, desc in zip(each, descs)]

    def has_axis(self, data: Data, desc: AxisDesc) -> bool:
        """Return whether a known name or a dim means an axis."""
        if isinstance(desc, Dim):
            return bool(axes_of(data, desc))
        try:
            return bool(self.axes(data, desc))
        except ConfigError:
            return False

    def single_source(self) -> Data:
        """Return the template of the only source."""
        if len(self.node.sources) != 1:
            raise SourceError("needs exactly one source in 'from', got %d." % len(self.node.sources))
        return self.node.sources[0].output

    def need_feature(self, data: Data, what: str = "the source") -> Dim:
        """Return the feature dim; raise an error if it is absent or if the data is sparse."""
        if data.sparse_dim is not None:
            raise SparseError(
                "%s is sparse (label indices of %s), but dense features are needed. Embed it by a linear layer first, "
                "or make it one-hot." % (what, data.sparse_dim),
            )
        dim = data.feature_dim
        if data.unknown:
            raise LoopError(
                "the shape of %s follows from itself in a loop. Give that layer n_out or initial_output." % what,
            )
        if dim is None:
            raise self.error(
                "%s %s has no feature axis. Add one by expand_dims, or mark one by reinterpret_data or, for data that "
                "extern_data declares by 'dims', by 'version': 1 there." % (what, data)
            )
        return dim

    def need_static(self, dim: Dim, what: str) -> int:
        """Return the static size of a dim."""
        if dim.size is None:
            merged = " Were frames merged into it, e.g. by merge_dims of T and F?"
            merged = merged if dim.kind is DimKind.FEATURE else ""
            raise self.error("%s must have a static size, but %s is dynamic.%s" % (what, dim, merged))
        return dim.size

    # --- dims ---

    def out_feature(self, default: Optional[Dim] = None, what: str = "n_out") -> Dim:
        """Return the output feature dim from out_dim, n_out or out_type, else from the target, else ``default``."""
        layer = self.node.layer
        out_type = layer.out_type or {}
        n_out = layer.n_out if layer.n_out is not None else out_type.get("dim")
        if not fits_type(n_out, Optional[int]) or axis_size(n_out):
            raise self.error("the output size must be a positive int, got %r." % (n_out,))
        if layer.out_dim is not None:
            if n_out is not None and layer.out_dim.size not in (None, n_out):
                raise self.error("n_out is %d but out_dim has size %s. Give one of them." % (n_out, layer.out_dim.size))
            size = n_out if n_out is not None or layer.out_dim.size is not None else self.target_dim()
            if layer.out_dim.size is None and size is not None:
                return self.bind(layer.out_dim, self.new_feature(size))
            return layer.out_dim if layer.out_dim.size is not None or default is None else default
        if n_out is not None:
            return self.new_feature(n_out)
        size = self.target_dim()
        if size is not None:
            return self.new_feature(size)
        if default is not None:
            return default
        raise self.error(
            "the option 'n_out' is missing, the output size. Give n_out, out_dim, or a target of this size."
        )

    def target_dim(self) -> Optional[int]:
        """Return the output size that the target implies (with loss "ctc" one more, for the blank), or None."""
        layer = self.node.layer
        if not layer.target_names:
            return None
        dim = self.planner.target_data(self.node, layer.target_names[0]).dim
        if dim is None:
            return None
        loss = LOSSES.find(layer.loss)
        return dim + 1 if loss is not None and loss.has_blank else dim

    def new_feature(self, size: int, name: str = "") -> Dim:
        """Return a feature dim made up for a size; it agrees with every static dim of its size."""
        return Dim(DimKind.FEATURE, size, name or "%s:feature" % self.node.path, auto=True)

    def new_spatial(self, size: Optional[int], name: str) -> Dim:
        """Return a spatial dim that this layer defines; `emit` sets the lengths of a dynamic one by ``define_lens``.

        :param name: appended to the name of the layer; or the whole description, with "%s" for that name
        """
        layer = self.node.path
        text = name % layer.rpartition("/")[2] if "%s" in name else "%s:%s" % (layer, name)
        return Dim(DimKind.SPATIAL, size, text, auto=True)

    def bind(self, declared: Optional[Dim], definition: Dim) -> Dim:
        """Bind a dim that the user declared to the one that this layer inferred, and return the one to continue with.

        :param declared: the value of the option, or None
        :raises ConfigError: the sizes differ
        """
        if declared is None:
            return definition
        deps = self._known_templates()
        result = self.planner.dims.bind(self.node.path, declared, definition, deps, self.node.replaced_dims)
        if definition in self.node.replaced_dims:
            self.depend_on_dim(self.node.replaced_dims[definition])
        return result

    def knows_dim(self, dim: Dim) -> bool:
        """Return whether something other than this layer defines the lengths of a dim."""
        return self.planner.dims.known(self.node.path, dim, self._known_templates())

    def _known_templates(self) -> list[Data]:
        return [dep.output for dep in self.node.deps if dep.planned]

    def set_lengths_over(self, dim: Dim, over: Sequence[Dim]) -> None:
        """Declare that `emit` will give a dim lengths with these axes, by ``define_lens_over``."""
        if any(not d.is_batch for d in over):
            self.planner.dims.set_lengths_over(dim, over)

    def lengths_over(self, dim: Dim) -> Optional[tuple[Dim, ...]]:
        """Return the axes of lengths that vary with the frames of other dims; None if they do not."""
        return self.planner.dims.lengths_over(dim)

    def name_dim(self, dim: Dim, name: str, *, passed: bool = False) -> None:
        """Give a dim of the output a name that axes can be named by; see `DimNames.add`.

        :param name: with "%s" for the name of this layer
        """
        self.planner.dims.names.add(dim, name.replace("%s", self.node.path.rpartition("/")[2]), passed=passed)

    # --- parameters ---

    def param(
        self,
        name: str,
        shape: Sequence[Any],
        init: Any,
        *,
        dtype: Optional[str] = None,
        trainable: Optional[bool] = None,
    ) -> None:
        """Declare a parameter; `emit` gets it by ``ctx.param(name)``.

        :param name: relative to the scope of the layer, e.g. "W"
        :param shape: ints and dims of static size
        :param init: anything `get_initializer` understands
        """
        sizes = tuple(
            self.need_static(s, "An axis of parameter %r" % name) if isinstance(s, Dim) else int(s) for s in shape
        )
        if math.prod(sizes) > _MAX_PARAM_SIZE:
            raise self.error(
                "the parameter %r would have the shape %s, i.e. %.3g numbers. Is an option such as n_out wrong?"
                % (name, sizes, math.prod(sizes))
            )
        dtype = dtype or self.float_dtype
        layer = self.node.layer
        if layer.trainable is False:
            trainable = False
        spec = ParamSpec(
            self._full_name(name),
            sizes,
            dtype,
            self._initializer(name, sizes, dtype, init),
            True if trainable is None else trainable,
            self.node.path,
            updater_opts=layer.updater_opts,
            device=layer.param_device,
        )
        levels = self.planner.outer_reuse
        if layer.reuse_params is not None:
            levels = (ReuseLevel(layer.reuse_params, self.node, self.planner.owner_of_params, self.node.scope), *levels)
        if levels:
            self.node.params[name] = OpenParam(spec, levels)
            return
        self.node.params[name] = spec
        self.node.owned.append(spec)

    def _full_name(self, name: str) -> str:
        return "%s/%s" % (self.node.scope, name) if self.node.scope else name

    def _initializer(self, name: str, shape: tuple[int, ...], dtype: str, init: Any) -> Any:
        """Return the initialiser of a parameter, checked with its shape."""
        found = get_initializer(init, {"layer": LayerInExpression(self.node)} if isinstance(init, str) else None)
        if isinstance(found, FromTensorFlow):
            found = dataclasses.replace(found, dtype=dtype)
        fault = found.check(shape) if isinstance(found, (Constant, Drawn, FromTensorFlow)) else None
        if fault:
            raise self.error("the initialiser of %r: %s." % (name, fault))
        return found

    # --- the step of a loop ---

    def loop_state(self, key: str, data: Data, initial: Any) -> None:
        """Declare a tensor that this layer carries from step to step; for layers in the step of a loop.

        :param initial: function of the `EmitContext` that returns the value before the first step
        :raises ConfigError: the class of the layer does not declare ``has_memory``, so that a loop could move it out
        """
        if not type(self.node.layer).has_memory:
            raise self.error(
                "carries a state from step to step, but its class does not declare it. Set has_memory = True on %s."
                % type(self.node.layer).__name__
            )
        self.node.loop_states[key] = (data, initial)

    def keep(self, key: str, name: str, data: Data, *, resets: bool, is_param: bool = True, fed: bool = False) -> None:
        """Declare a tensor that is kept from batch to batch; `emit` uses ``ctx.kept`` and ``ctx.keep``.

        For a layer in the step of a loop, the key is that of its `loop_state`, and the loop keeps it.

        :param name: relative to the scope of the layer, e.g. "rec/keep_state_h"
        :param resets: whether it is zero in the first batch of each pass over a dataset
        :param is_param: whether to list it among the parameters
        :param fed: whether another program keeps it, see `KeptSpec`
        """
        self.node.kept[key] = KeptSpec(self._full_name(name), data, resets, is_param, self.node.path, fed)

    # --- further layers ---

    def depend(self, node: Node) -> Node:
        """Declare that `emit` will use this node."""
        self.node.depend(node)
        return node

    def depend_on_dim(self, dim: Dim) -> None:
        """Declare that `emit` will use the size of a dim that need not occur in the sources of this layer.

        :raises ConfigError: if its lengths are unknown
        """
        if dim.size is not None:
            return
        node = self.planner.node_with_dim(self.node, dim)
        if node is not None:
            if node is not self.node:
                self.depend(node)
            return
        operands = [a for a in dim.expr.args if isinstance(a, Dim)] if dim.expr is not None else []
        if not operands:
            raise self.error(
                "the lengths of the dim %s are not known here. Use the dim of a data key or of a layer that this "
                "layer has as a source or in an option such as shape_deps." % dim
            )
        for operand in operands:
            self.depend_on_dim(operand)

    def subnetwork(
        self,
        network: dict[str, Any],
        inputs: dict[str, Node],
        *,
        scope: Optional[str] = None,
        loop_dim: Optional[Dim] = None,
    ) -> Node:
        """Plan a nested network as part of this layer and return its output layer.

        :param inputs: data key inside -> node
        :param scope: scope of the parameters; defaults to that of this layer
        :param loop_dim: the step axis inside, if it differs from the one here
        """
        scope = self.node.scope if scope is None else scope
        return self.depend(self.planner.subnetwork(self.node, network, inputs, scope, loop_dim))

    def inner_network(self) -> Node:
        """Plan the network of the option ``inner_network`` as part of this layer and return its output layer."""
        return self.depend(self.planner.inner_network(self.node))

    def implicit(self, name: str, layer: Layer, sources: Sequence[Node]) -> Node:
        """Plan a layer that the config does not name, e.g. the concatenation of several sources."""
        return self.depend(self.planner.implicit_layer(self.node, name, layer, sources))

    def sub_output(self, name: str, data: Data) -> None:
        """Declare a further output, reached in configs as ``<layer>/<name>``; `emit` sets it by ``set_sub_output``."""
        self.node.sub_outputs[name] = data
