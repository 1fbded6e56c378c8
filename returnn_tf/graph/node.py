"""A layer at its place in a planned network, and the parameters that it owns."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional

from returnn_tf.graph.carried_state import KeptSpec
from returnn_tf.graph.layer_base import LayerBase
from returnn_tf.graph.layer_plan import BatchNorm, HiddenState, LayerPlan
from returnn_tf.graph.sealing import Sealable, default_factories, read_only
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.html import paragraph, table


@dataclasses.dataclass(eq=False)
class ParamSpec(Sealable):
    """One parameter, known before any TF op exists.

    :param name: full name as in checkpoints, e.g. "output/W"
    :param shape: static sizes
    :param init: function (shape, numpy Generator) -> array
    :param trainable: whether the optimizer updates it
    :param layer_path: the layer that owns it
    :param updater_opts: the layer option of this name
    :param device: where the variable lives, e.g. "CPU"; None: TensorFlow decides
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    init: Any
    trainable: bool
    layer_path: str
    updater_opts: Optional[dict[str, Any]] = None
    device: Optional[str] = None

    @property
    def size(self) -> int:
        """Return the number of entries."""
        result = 1
        for s in self.shape:
            result *= s
        return result


@dataclasses.dataclass(eq=False, init=False)
class Node(Sealable):
    """One layer of a plan. Once it is planned, neither the node nor its layer changes.

    :param path: full path, e.g. "encoder/lstm0"; "data:<key>" for inputs
    :param layer: options, template inference and emission
    :param scope: the scope of its parameters
    :param sources: the nodes in ``from``
    :param deps: all nodes it needs: sources, layers named in options, inner layers
    :param param_deps: nodes of which it needs only parameters, see `returnn_tf.graph.params.reuse`
    :param output: the template; set when the node is planned
    :param found: what the layer found when it was planned; None before, and the output alone while a loop guesses it
    :param input: the sources side by side, if the layer joins them
    :param sub_outputs: templates of further outputs by name, which configs reach as ``path/name``
    :param params: own and shared parameters by their name in the layer
    :param owned: the parameters that this layer creates
    :param extern_key: for inputs: the data key
    :param in_search: whether its network searches
    """

    path: str
    layer: LayerBase
    scope: str
    sources: list[Node] = dataclasses.field(default_factory=list)
    deps: list[Node] = dataclasses.field(default_factory=list)
    _output: Optional[Data] = None
    found: Optional[LayerPlan] = None
    input: Optional[Data] = None
    #: The template in which the layer emits its value, where the output has declared dims instead of inferred ones.
    own_output: Optional[Data] = None
    #: Inferred dims -> the declared ones that replace them, see `returnn_tf.tensor.dim_binding`.
    replaced_dims: dict[Dim, Dim] = dataclasses.field(default_factory=dict)
    sub_outputs: dict[str, Data] = dataclasses.field(default_factory=dict)
    params: dict[str, Any] = dataclasses.field(default_factory=dict)
    owned: list[ParamSpec] = dataclasses.field(default_factory=list)
    extern_key: Optional[str] = None
    in_search: bool = False
    #: In a loop: state -> (template, function returning the initial value); see `PlanContext.loop_state`.
    loop_states: dict[str, Any] = dataclasses.field(default_factory=dict)
    #: State -> what is kept of it from batch to batch, see `PlanContext.keep`.
    kept: dict[str, KeptSpec] = dataclasses.field(default_factory=dict)
    #: What the layer found for further outputs, by their names.
    sub_plans: dict[str, Any] = dataclasses.field(default_factory=dict)
    #: The layer whose output this one passes on, such as the layer "output" of a subnetwork.
    passes_on: Optional[Node] = None
    #: The state after the last frame that other layers may ask for.
    hidden_state: Optional[HiddenState] = None
    #: Of the value of a layer of a loop as seen from outside: plans a layer with its state after the last step.
    plan_state: Optional[Callable[[], Node]] = None
    #: Of a step network: the layers whose values are wanted for all steps, by name.
    exits: dict[str, Node] = dataclasses.field(default_factory=dict)
    #: The batch normalisation that the layer is, or that the option ``batch_norm`` asks for.
    batch_norm: Optional[BatchNorm] = None
    #: Of a layer with a history in a loop: the masks that select the steps in it, see `masked_computation`.
    history_masks: list[Node] = dataclasses.field(default_factory=list)
    #: Of a loop: the layers of one step, in order.
    inner: list[Node] = dataclasses.field(default_factory=list)
    param_deps: list[Node] = dataclasses.field(default_factory=list)

    def __init__(self, path: str, layer: LayerBase, scope: str, *, extern_key: Optional[str] = None) -> None:
        vars(self).update((name, make()) for name, make in default_factories(Node))
        vars(self).update(path=path, layer=layer, scope=scope, extern_key=extern_key)
        layer.node = self

    def seal(self, place: str = "") -> None:
        """Forbid all further changes of the node, its layer and its parameters."""
        values = vars(self)
        for name, _ in default_factories(Node):
            values[name] = read_only(values[name])
        self.seal_layer()
        for spec in self.owned:
            spec.seal("Parameter %r" % spec.name)
        super().seal(place or "Layer %r" % self.path)

    def seal_layer(self) -> None:
        """Forbid to change the layer, whose options are set."""
        self.layer.seal("Layer %r (class %r)" % (self.path, self.layer.class_name))

    @property
    def output(self) -> Data:
        """Return the template of the output."""
        assert self._output is not None, "layer %s is not planned yet" % self.path
        return self._output

    @output.setter
    def output(self, value: Data) -> None:
        self._output = value

    @property
    def plan(self) -> LayerPlan:
        """What the layer found when it was planned."""
        assert self.found is not None, "layer %s is not planned yet" % self.path
        return self.found

    @property
    def planned(self) -> bool:
        """Return whether the template is known."""
        return self._output is not None

    def depend(self, node: Node) -> None:
        """Add a node that must be emitted before this one."""
        if node not in self.deps:
            self.deps.append(node)

    def all_deps(self) -> set[Node]:
        """Return the nodes that it needs, directly or through others."""
        found: set[Node] = set()
        todo = list(self.deps)
        while todo:
            node = todo.pop()
            if node not in found:
                found.add(node)
                todo += node.deps
        return found

    def __repr__(self) -> str:
        return "<%s %r>" % (type(self).__name__, self.path)

    def _repr_html_(self) -> str:
        title = "%s (%s)" % (self.path, "data" if self.extern_key is not None else self.layer.class_name)
        sources = [("from", ", ".join(source.path for source in self.sources))] if self.sources else []
        params = [("parameter %s" % spec.name, "%s %s" % (list(spec.shape), spec.dtype)) for spec in self.owned]
        rows = [("output", self.output if self.planned else "not planned yet"), *sources, *params]
        return paragraph(title) + table((), rows)


@dataclasses.dataclass(frozen=True)
class LayerAsParam:
    """``reuse_params`` with ``layer_output``: another layer's output replaces a parameter.

    :param node: the other layer
    :param dims: the axes in the order of the parameter
    """

    node: Node
    dims: tuple[Dim, ...]
