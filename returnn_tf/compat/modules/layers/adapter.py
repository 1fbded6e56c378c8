"""Layers whose class is in a config and derives from RETURNN's bases, as layers of ours."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, ClassVar, Optional

from returnn_tf.compat.modules.layers.host import Host
from returnn_tf.compat.modules.layers.layer_base import LayerBase
from returnn_tf.compat.modules.layers.own_layers import KnownOwnLayers, PlannedOwnLayers
from returnn_tf.compat.modules.layers.scratch import ScratchGraph, VariableRecorder
from returnn_tf.compat.modules.layers.specific import SpecificLayer
from returnn_tf.compat.views import size_tags
from returnn_tf.compat.views.data_view import DataView
from returnn_tf.compat.views.layer_view import LayerView
from returnn_tf.compat.views.network_view import NetworkView
from returnn_tf.compiler.planning.code_references import code_references
from returnn_tf.config.errors import CodeError, ConfigError
from returnn_tf.config.option_values import referenced_names
from returnn_tf.config.options import declared_options
from returnn_tf.config.read_only import plain
from returnn_tf.config.user_code import error_in_config
from returnn_tf.graph.aux_values import OUTPUT_LOSS, PRE_ACTIVATION, PreActivation
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer, Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.tensor import Data, Dim, DimKind, batch_dim
from returnn_tf.util.lazy_tf import tf

#: Of the options that every layer has, those that such classes see.
_BASE = ("n_out", "out_type", "target", "trainable", "initial_output")
_TRANSFORM: Any = vars(LayerBase)["transform_config_dict"].__func__
_SPECIFIC_TRANSFORM: Any = vars(SpecificLayer)["transform_config_dict"].__func__
#: Stands for an option that is not given.
ABSENT: Any = type("_Absent", (), {"__repr__": lambda self: "(not given)"})()


@dataclasses.dataclass(frozen=True)
class Known:
    """The layers and sizes that the class can request.

    :param nodes: the layers by the names that it uses; while it is planned more are added
    :param guessed_size: the output size by the target, where ``n_out`` is not given
    """

    nodes: dict[str, Node]
    guessed_size: Optional[int]


@dataclasses.dataclass(frozen=True, eq=False)
class ConfigLayerPlan(LayerPlan):
    """The plan of `ConfigLayer`.

    :param known: the layers and sizes that the class can request
    :param own: the axes whose lengths `__init__` computes, with dims of this plan
    :param own_layers: the layers of ours that bases of the class compute, in the order of the requests
    :param own_templates: the templates of ours that the class asked for, likewise
    """

    known: Known
    own: Mapping[int, Dim]
    own_layers: Sequence[Node]
    own_templates: Sequence[Data]


class ConfigLayer(Planned[ConfigLayerPlan]):
    """A layer whose class is in the config."""

    config_class: ClassVar[Any] = None

    @classmethod
    def takes_data(cls, options: Mapping[str, Any]) -> bool:
        """Return whether the class needs sources: not if it sets ``from`` itself."""
        method = cls.config_class.transform_config_dict
        own_class = own_class_of(cls.config_class)
        if own_class is not None and method.__func__ is _SPECIFIC_TRANSFORM:
            return own_class.takes_data(options)
        return method.__func__ is _TRANSFORM or "from" not in method.__code__.co_consts

    @classmethod
    def references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Yield the layers that `transform_config_dict` of the class requests."""
        names: list[str] = []

        def get_layer(name: str) -> Any:
            names.append(name)
            return types.SimpleNamespace()

        try:
            cls.config_class.transform_config_dict({**options, "from": []}, network=None, get_layer=get_layer)
        except Exception:  # it may need more than the names; then it is run again, with layers, by `template`
            pass
        yield from names
        yield from cls._asked_for()
        own_class = own_class_of(cls.config_class)
        if own_class is not None:
            general = declared_options(Layer)
            for info in declared_options(own_class).values():
                if info.refs and info.name not in general and options.get(info.name) is not None:
                    yield from referenced_names(info, options[info.name])
            yield from own_class.references(options)

    @classmethod
    def _asked_for(cls) -> Iterator[str]:
        """Yield the layers that the code of `__init__` requests from its network."""
        methods = [vars(base).get("__init__") for base in cls.config_class.__mro__ if base is not object]
        yield from code_references({str(i): method for i, method in enumerate(methods)})

    # --- planning ---

    def template(self, ctx: PlanContext) -> ConfigLayerPlan:
        """Run `__init__` of the class with placeholders: this finds the output and the parameters."""
        if any(node.output.unknown for node in ctx.node.deps):
            raise CodeError("the template of a source is not known.")
        nodes = _by_name(ctx.node.sources)
        known = Known(nodes, None if self.n_out is not None else ctx.target_dim())
        scratch = ScratchGraph(ctx)

        def find(name: str) -> Node:
            if name not in nodes:
                nodes[name] = ctx.depend(ctx.planner.resolve(name, "Layer %r" % ctx.node.path))
                scratch.provide(nodes[name])
            return nodes[name]

        def find_target(name: str) -> Node:
            key = "target " + name
            if key not in nodes:
                nodes[key] = ctx.depend(ctx.planner.target_node(ctx.node, name))
                scratch.provide(nodes[key])
            return nodes[key]

        for name in self._asked_for():
            with contextlib.suppress(ConfigError):  # it may ask for it only if it exists
                find(name)
        recorder = VariableRecorder()
        emit = EmitContext(ctx.node, scratch.lowering)
        own = PlannedOwnLayers(ctx, scratch)
        host = Host(emit, recorder, find_target, own)
        with scratch.graph.as_default(), _errors_of_user(ctx):
            if ctx.in_step and self.has_memory:
                self._declare_states(ctx, scratch, emit, known, find)
            instance = self._instance(emit, host, known, find)
        own.drop_unused()
        for variable in recorder.found.values():
            trainable = False if not variable.trainable or variable.name in host.not_trained else None
            ctx.param(variable.name, variable.shape, variable.init, dtype=variable.dtype, trainable=trainable)
        return self._planned(ctx, instance, known, own)

    def _declare_states(
        self,
        ctx: PlanContext,
        scratch: ScratchGraph,
        emit: EmitContext,
        known: Known,
        find: Callable[[str], Node],
    ) -> None:
        options = self._options(emit, known, find)
        initial = self._initial_states(emit, options, scratch.lowering.dims.batch_size)
        invariants = self.config_class.get_rec_initial_extra_outputs_shape_invariants(**options)
        batch = next((d for node in ctx.node.deps for d in node.output.dims if d.is_batch), batch_dim)

        def value(key: str, data: Data) -> Callable[[EmitContext], Any]:
            def initial_state(later: EmitContext) -> Any:
                states = self._initial_states(
                    later, self._options(later, self.plan.known, self._known), later.size(batch)
                )
                # What grows may begin with a known size, such as 0.
                return tf.compat.v1.placeholder_with_default(states[key], list(data.static_shape))

            return initial_state

        for key, tensor in initial.items():
            shape = tf.TensorShape(invariants.get(key, tensor.shape)).as_list()
            dims = [
                batch if i == 0 and size is None else Dim(DimKind.SPATIAL, size, "%s:%d" % (key, i), auto=True)
                for i, size in enumerate(shape)
            ]
            data = Data(tuple(dims), tensor.dtype.name)
            ctx.loop_state(key, data, value(key, data))
            scratch.state(key, data)

    def _initial_states(self, emit: EmitContext, options: dict[str, Any], batch: Any) -> dict[str, Any]:
        states = self.config_class.get_rec_initial_extra_outputs(batch_dim=batch, rec_layer=None, **options)
        return {key: tf.convert_to_tensor(value) for key, value in states.items()}

    def _planned(self, ctx: PlanContext, instance: Any, asked: Known, own_layers: PlannedOwnLayers) -> ConfigLayerPlan:
        view = self._output_of(ctx.node, instance)
        data = view.template
        known = {dim for node in ctx.node.deps for dim in node.output.dims}
        missing = [axis for axis in data.dynamic_axes if data.dims[axis] not in known | set(view.own_lengths)]
        missing = [axis for axis in missing if data.dims[axis].expr is None]
        for source in ctx.node.sources if missing else ():  # preset, as in many layers it is the time of the source
            if len(source.output.dynamic_axes) == len(missing) == len(data.dynamic_axes):
                for axis, other in zip(missing, source.output.dynamic_axes):
                    data = data.with_dim(axis, source.output.dims[other])
                missing = []
                break
        if missing:
            raise CodeError(
                "the lengths of the axis %s of the output %s are unknown. Set self.output.size_placeholder in "
                "__init__ of %s, e.g. to {0: lengths}; axes are counted without batch."
                % (view.get_batch_axis_excluding_batch(missing[0]), data, _name(self))
            )
        if data.time_axis in data.loop_axes:  # for the class it is the time; in a loop, no name of an axis means it
            data = data.replace(time_axis=None)
        own: dict[int, Dim] = {}
        for axis in data.dynamic_axes:
            if data.dims[axis] in view.own_lengths:
                dim = data.dims[axis]
                declared = dim if size_tags.tag_of(view.own_lengths[dim]) is dim else None
                own[axis] = ctx.bind(declared, ctx.new_spatial(None, "time"))
                data = data.with_dim(axis, own[axis])
        return ConfigLayerPlan(data, asked, own, tuple(own_layers.layers), tuple(own_layers.templates))

    # --- both ---

    def _options(self, emit: EmitContext, known: Known, find: Callable[[str], Node]) -> dict[str, Any]:
        """Return the keywords for the methods of the class, after `transform_config_dict`."""
        options = {
            info.name: plain(value)
            for info in declared_options(type(self)).values()
            for value in [getattr(self, info.attribute)]
            if value is not ABSENT and (info.attribute.startswith("own_") or (info.name in _BASE and value is not None))
        }
        if known.guessed_size is not None:
            options["n_out"] = known.guessed_size
        path, _, name = self.node.path.rpartition("/")

        def view(node: Node) -> LayerView:
            return LayerView(emit, node)

        network = NetworkView(emit, path, view)
        names = {node: key for key, node in _by_name(self.node.sources).items()}
        options["from"] = [names[node] for node in self.node.sources]
        self.config_class.transform_config_dict(options, network=network, get_layer=lambda key: view(find(key)))
        options.pop("from", None)
        return {**options, "name": name, "network": network}

    def _instance(self, emit: EmitContext, host: Host, known: Known, find: Callable[[str], Node]) -> Any:
        options = self._options(emit, known, find)
        with host.running():
            output = self.config_class.get_out_data_from_opts(**options)
        if isinstance(output, Data):
            output = DataView(output, None, emit, options["name"])
        if not isinstance(output, DataView):
            raise CodeError("get_out_data_from_opts of %s must return a Data, got %r." % (_name(self), output))
        output = DataView(output.template, output.placeholder, emit, options["name"])
        previous = None
        if self.node.loop_states:
            states = {key: emit.loop_state(key) for key in self.node.loop_states}
            previous = types.SimpleNamespace(rec_vars_outputs=states)
        with host.running(), size_tags.using_lengths(emit.lens):
            return self.config_class(output=output, rec_previous_layer=previous, **options)

    def sub_node(self, ctx: PlanContext, name: str) -> Optional[Node]:
        """Return a layer or output inside of the layer of ours that a base of the class computes, or None."""
        for own in self.plan.own_layers:
            found = own.layer.sub_node(PlanContext(own, ctx.planner), name)
            if found is None and name in own.sub_outputs:
                found = ctx.planner.sub_output(own, name)
            if found is not None:
                return found
        return None

    def _known(self, name: str) -> Node:
        return self.plan.known.nodes[name]

    def _output_of(self, node: Node, instance: Any) -> DataView:
        view = getattr(instance, "output", None)
        if not isinstance(view, DataView):
            raise CodeError("%s.__init__ has to call super().__init__(**kwargs)." % _name(self))
        value = view.placeholder
        if value is None:
            raise CodeError("%s.__init__ has to set self.output.placeholder." % _name(self))
        view.placeholder = value = tf.convert_to_tensor(value)
        shape = view.template.static_shape
        if not value.shape.is_compatible_with(shape):
            raise CodeError(
                "%s: self.output.placeholder has the shape %s, but the output was declared as %s. Change "
                "get_out_data_from_opts, or the axes of self.output." % (_name(self), value.shape, view.template)
            )
        missing = [key for key in node.loop_states if key not in instance.rec_vars_outputs]
        if missing:
            raise CodeError("%s.__init__ has to set self.rec_vars_outputs[%r]." % (_name(self), missing[0]))
        return view

    # --- emitting ---

    def emit(self, ctx: EmitContext) -> Any:
        """Run `__init__` of the class."""
        known = self.plan.known
        own = KnownOwnLayers(self.plan.own_layers, self.plan.own_templates)
        host = Host(ctx, _Parameters(ctx), lambda name: known.nodes["target " + name], own)
        instance = self._instance(ctx, host, known, self._known)
        view = self._output_of(ctx.node, instance)
        for key in self.node.loop_states:
            ctx.set_loop_state(key, tf.convert_to_tensor(instance.rec_vars_outputs[key]))
        for axis, dim in self.plan.own.items():
            lengths = view.own_lengths[view.template.dims[axis]]
            ctx.define_lens(dim, lengths, size=tf.shape(view.placeholder)[axis])
        before = instance.output_before_activation
        if before is not None:
            ctx.set_aux(self.node, PRE_ACTIVATION, PreActivation(before.x, before.act_func))
        if instance.output_loss is not None:
            ctx.set_aux(self.node, OUTPUT_LOSS, instance.output_loss)
        return view.placeholder


class _Parameters:
    """The parameters of a layer whose ops are emitted, by their names in the layer."""

    def __init__(self, ctx: EmitContext) -> None:
        self._ctx = ctx

    def __call__(self, name: str, **options: Any) -> Any:
        """Return the variable; its value where the layer has noise on its parameters, or is in a loop."""
        spec = self._ctx.node.params.get(name)
        if spec is None:
            raise CodeError(
                "the variable %r was not created while the network was planned. Create it in every mode." % name
            )
        layer = self._ctx.node.layer
        noisy = layer.param_variational_noise or layer.param_dropout
        if isinstance(spec, ParamSpec) and not noisy and self._ctx.lowering.loop.index is None:
            return self._ctx.readable(spec)
        return self._ctx.param(name)


def own_class_of(config_class: Any) -> Optional[type[Layer]]:
    """Return the layer class of ours that a class in a config derives from, or None."""
    return config_class.own_class if issubclass(config_class, SpecificLayer) else None


class _errors_of_user:
    """Turns exceptions of the user's code into a `ConfigError` with the line."""

    def __init__(self, ctx: PlanContext) -> None:
        self._ctx = ctx

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, exc: Optional[BaseException], trace: Any) -> None:
        if isinstance(exc, Exception) and not isinstance(exc, ConfigError):
            place = error_in_config(exc)
            raise CodeError(place or "%s: %s" % (type(exc).__name__, exc)) from exc


def _by_name(nodes: Any) -> dict[str, Node]:
    """Return layers by the last part of their paths; with an apostrophe added where a name is taken."""
    result: dict[str, Node] = {}
    for node in nodes:
        name = node.path.rpartition("/")[2]
        while name in result and result[name] is not node:
            name += "'"
        result[name] = node
    return result


def _name(layer: ConfigLayer) -> str:
    return str(layer.config_class.__name__)
