"""Builds the graph of a plan: placeholders, variables, all layers, and the collections that decoders read.

The order: ``builder = GraphBuilder(plan, config)``; then `emit_network` or, within `GraphBuilder.emitting`, further
ops; then `meta_graph`, which seals it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

from returnn_tf.compiler.feed import batch_major_order
from returnn_tf.compiler.lower import Lowered, lower, needs_second_derivatives
from returnn_tf.compiler.planning.parse import scope_name
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.errors import ExportError
from returnn_tf.config.user_code import using_config
from returnn_tf.export.meta import names
from returnn_tf.export.meta.inputs import Inputs
from returnn_tf.export.meta.names import named, placeholder
from returnn_tf.export.meta.session_graph import like_a_function, session_graph
from returnn_tf.export.meta.states import States, select
from returnn_tf.export.meta.variables import Variables, small_initial_values
from returnn_tf.export.native_libraries import maybe_portable
from returnn_tf.graph.layer import Node
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data
from returnn_tf.util.custom_gradient import remove_equivalent_gradients
from returnn_tf.util.lazy_tf import tf

_ASSIGNMENTS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceScatter")


class GraphBuilder:
    """A graph in the making.

    :param plan: of the network; no checkpoint is needed, as the variables stay variables
    :param config: that of the plan
    :param train: whether dropout etc. are active; None: a placeholder decides, which needs a plan with ``train=True``
    :param losses: whether losses and errors are computed, too
    :param portable: no native ops, so that the graph needs no library
    """

    def __init__(
        self,
        plan: Plan,
        config: Config,
        *,
        train: Optional[bool] = False,
        losses: bool = False,
        portable: bool = False,
    ) -> None:
        self.plan, self._config = plan, config
        self.train, self.losses, self._portable = train, losses, portable
        embedded = small_initial_values(plan, config)
        self.graph: Any = session_graph()
        with self.emitting():
            #: The inputs by their names in `lower`.
            self.inputs = Inputs(plan, config)
            #: The parameters and the global step.
            self.variables = Variables(plan, embedded)
            #: The states that layers keep from run to run.
            self.states = States(plan)
            self.train_flag = self._train_flag() if train is None else None
        #: What other programs run besides the outputs.
        self.side_effects = SideEffects(self.graph)
        #: Layer path -> its tensors and axes.
        self.outputs: dict[str, dict[str, Any]] = {}
        self._scopes: set[str] = set()
        #: The emitted network, where no placeholder decides about ``train``.
        self.lowered: Optional[Lowered] = None
        #: Names of losses and errors -> tensors.
        self.scores: dict[str, Any] = {}
        self._meta_graph: Optional[Any] = None

    @contextlib.contextmanager
    def emitting(self) -> Iterator[None]:
        """Make this the graph in which ops are made, with the config of the plan."""
        with like_a_function(self.graph), using_config(self._config), maybe_portable(self._portable):
            yield

    def _train_flag(self) -> Any:
        return named(placeholder(names.FED_TRAIN_FLAG, tf.bool, []), names.TRAIN_FLAG)

    # --- the network ---

    def lower(self, outputs: Sequence[Node], *, train: Optional[bool] = None, only_if: Any = None) -> Lowered:
        """Emit layers and what they need, within `emitting`; layers with side effects add these to `side_effects`.

        :param outputs: the requested layers
        :param train: default: as the graph
        :param only_if: bool scalar: a condition on updates of running statistics and the like
        """
        train = bool(self.train) if train is None else train
        with self.side_effects.collecting():
            lowered = lower(
                self.plan,
                self.variables.params,
                self.inputs.feed,
                train=train,
                outputs=outputs,
                with_losses=self.losses,
                step=self.variables.global_step.read_value(),
                carried=self.states,
                second_derivatives=needs_second_derivatives(self._config),
            )
            if only_if is None:
                lowered.run_updates()
            elif lowered.updates:
                done = tf.cond(only_if, lambda: _updated(lowered), lambda: tf.constant(0))
                self.side_effects.ops.append(done.op)
        return lowered

    def emit_network(self) -> None:
        """Emit all layers, their outputs, losses and side effects."""
        nodes = list(self.plan.nodes)
        with self.emitting():
            if self.train_flag is None:
                lowered = self.lowered = self.lower(nodes)
                self.states.finish()
                self.name_outputs(lowered)
                self.scores = _scores(lowered)
            else:
                self._emit_both(nodes, self.train_flag)
            self._name_scores()
            self.side_effects.finish(self.states, in_training=self.train is not False)

    def _emit_both(self, nodes: Sequence[Node], flag: Any) -> None:
        """Emit the network as in training and as otherwise; the flag selects the results and the side effects."""
        states = self.states
        with tf.name_scope("training"):
            training = self.lower(nodes, train=True, only_if=flag)
        in_training = states.take_last()
        otherwise = self.lower(nodes, train=False, only_if=tf.logical_not(flag))
        states.select(flag, in_training)
        states.finish()
        self._add_inputs()
        for node in self._named_nodes():
            pair = training.lowering.values.outputs[node], otherwise.lowering.values.outputs[node]
            self._add_output(otherwise, node, select(flag, *pair))
        both = _scores(training), _scores(otherwise)
        self.scores = {name: select(flag, both[0][name], value) for name, value in both[1].items() if name in both[0]}

    def name_outputs(self, lowered: Lowered) -> None:
        """Name the data keys and the outputs of all layers that `lower` has emitted, within `emitting`; once."""
        self._add_inputs()
        values = lowered.lowering.values.outputs
        for node in self._named_nodes():
            if node in values:
                self._add_output(lowered, node, values[node])

    def _add_inputs(self) -> None:
        """Name the data keys like the outputs of layers, also those that no layer uses."""
        feed = self.inputs.feed
        for key, data in self.plan.extern_data.items():
            if data.batch_axis is None or data.time_axis is None:
                continue
            now = batch_major_order(data)
            order = output_order(data)
            lengths = {
                order.index(axis) - 1: feed["%s/size%d" % (key, now.index(axis) - 1)] for axis in data.dynamic_axes
            }
            value = transpose(feed[key], [now.index(axis) for axis in order])
            self._name_output("data:" + key, names.input_scope(key), value, data, lengths)

    def _named_nodes(self) -> list[Node]:
        """Return the layers that users know, once for each path: the outer one of a layer with another inside."""
        nodes = [node for node in self.plan.nodes if not node.layer.is_connector and node.extern_key is None]
        # Where a layer has the scope of another one, by name_scope or in an extra network, that other one has the name.
        return sorted(
            {node.path: node for node in nodes}.values(), key=lambda node: node.scope != _own_scope(node.path)
        )

    def _add_output(self, lowered: Lowered, node: Node, value: Any) -> None:
        """Name the output of a layer with batch and time axis."""
        data = node.output
        if data.batch_axis is None or time_axis(data) is None:
            return
        order = output_order(data)
        value = transpose(value, order)
        lengths = {}
        for axis, lens in lowered.lens_by_axis(data).items():
            if lens.shape.rank == 0:
                lens = tf.fill([tf.shape(value)[0]], lens)
            lengths[order.index(axis) - 1] = lens
        self._name_output(node.path, names.output_scope(node), value, data, lengths)

    def _name_output(self, path: str, scope: str, value: Any, data: Data, lengths: Mapping[int, Any]) -> None:
        """Add ops for an output and its lengths.

        :param value: in the order batch, time, others, features
        :param lengths: by axis, not counting the batch axis
        """
        if scope in self._scopes:  # of another layer: by name_scope, or it is a further output of that one
            scope = names.op_name(_own_scope(path))
        self._scopes.add(scope)
        tensor = named(value, "%s/%s" % (scope, names.OUTPUT))
        sizes = {i: named(lens, "%s/%s" % (scope, names.LENGTHS % i)) for i, lens in sorted(lengths.items())}
        kinds = data.axis_kinds
        self.outputs[path] = {
            "layer": path,
            "tensor": tensor.name,
            "axes": [kinds[axis] for axis in output_order(data)],
            "lengths": {str(i): lens.name for i, lens in sizes.items()},
        }
        tf.compat.v1.add_to_collection(names.LAYER_OUTPUTS, json.dumps(self.outputs[path]))

    def _name_scores(self) -> None:
        """Name losses and errors ``losses/<layer>/loss``, ``.../error`` and ``.../count``."""
        for name, value in self.scores.items():
            self.scores[name] = named(value, "losses/" + names.op_name(name))

    # --- the end ---

    def add_to_collection(self, name: str, items: Iterable[Any]) -> None:
        """Add ops, tensors, variables or texts to a collection; an empty one is left out."""
        for item in items:
            self.graph.add_to_collection(name, item)

    def add_summaries(self, name: str) -> None:
        """Add an op of this name with all summaries: the scores, mean and standard deviation of each parameter."""
        if not name or names.op_name(name) != name:
            raise ExportError("--summaries_tensor_name: %r can't be the name of an op." % name)
        with self.emitting():
            scalars = dict(self.scores)
            for param, var in self.variables.stored.items():
                if var.dtype.is_floating:
                    mean, variance = tf.nn.moments(tf.cast(tf.reshape(var.read_value(), [-1]), tf.float32), [0])
                    scalars[names.op_name(param) + "_mean"] = mean
                    scalars[names.op_name(param) + "_stddev"] = tf.sqrt(variance)
            made = [tf.raw_ops.ScalarSummary(tags=key, values=value) for key, value in scalars.items()]
            named(tf.raw_ops.MergeSummary(inputs=made) if made else tf.constant(b""), name)

    def state_names(self) -> list[str]:
        """Return the names of the variables with states, in the order of their collection."""
        return [var.op.name for var in self.graph.get_collection(names.STATE_VARS)]

    def meta_graph(self) -> Any:
        """Add the saver, and return the `MetaGraphDef`; afterwards the graph can't be changed."""
        if self._meta_graph is None:
            with self.graph.as_default():
                restored = self.variables.restored
                saver = tf.compat.v1.train.Saver(restored, max_to_keep=2**31 - 1, name="save")
                self._meta_graph = tf.compat.v1.train.export_meta_graph(
                    graph=self.graph, saver_def=saver.as_saver_def(), clear_devices=False
                )
                remove_equivalent_gradients(self._meta_graph.graph_def)
            self.graph.finalize()
        return self._meta_graph

    def graph_def(self) -> Any:
        """Return the `GraphDef` alone, without the ops of the saver."""
        graph_def = self.graph.as_graph_def(add_shapes=True)
        remove_equivalent_gradients(graph_def)
        return graph_def


def time_axis(data: Data) -> Optional[int]:
    """Return the time axis; of a layer that was moved out of a loop, the axis of the steps."""
    if data.time_axis is not None:
        return data.time_axis
    return next((axis for axis, dim in enumerate(data.dims) if dim.is_loop), None)


def output_order(data: Data) -> list[int]:
    """Return the axes of a template in the order batch, time, others, features."""
    first = [axis for axis in (data.batch_axis, time_axis(data)) if axis is not None]
    last = [] if data.feature_axis is None or data.feature_axis in first else [data.feature_axis]
    return [*first, *(axis for axis in range(data.rank) if axis not in first + last), *last]


def _own_scope(path: str) -> str:
    """Return the scope that follows from the path of a layer alone."""
    return "/".join(map(scope_name, path.split("/")))


def _updated(lowered: Lowered) -> Any:
    """Emit the updates in a branch; whoever needs its result does them all."""
    lowered.run_updates()
    with tf.control_dependencies(assignments(tf.compat.v1.get_default_graph().get_operations())):
        return tf.constant(0)


def _scores(lowered: Lowered) -> dict[str, Any]:
    kinds = {"loss": lowered.losses, "error": lowered.errors, "count": lowered.counts}
    return {"%s/%s" % (layer, kind): value for kind, values in kinds.items() for layer, value in values.items()}


class SideEffects:
    """The assignments that the layers of a graph have made: running statistics, states of random generators, ...

    Checks and prints of values are no part of it: they run with what they check.
    """

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self.ops: list[Any] = []

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect the assignments that are made within the context."""
        before = len(self._graph.get_operations())
        yield
        self.ops += assignments(self._graph.get_operations()[before:])

    def finish(self, states: States, *, in_training: bool) -> None:
        """Add the op with all side effects and the collection of updates.

        Decoders run the updates of a graph for inference after each word, so that they are the states alone there; in
        training they are all assignments.
        """
        for op in [*(self.ops if in_training else []), *states.updates]:
            self._graph.add_to_collection(names.UPDATE_OPS, op)
        with tf.control_dependencies([*self.ops, *states.updates]):
            tf.no_op(name=names.SIDE_EFFECTS)


def assignments(ops: Iterable[Any]) -> list[Any]:
    """Return the ops that set variables."""
    return [op for op in ops if op.type.startswith(_ASSIGNMENTS)]
