"""`InferenceModel`: a network as a function of named, batch-major tensors, which all exporters write."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional

from numpy.typing import NDArray

from returnn_tf.compiler.feed import batch_major_order, feed_layout
from returnn_tf.compiler.lower import Lowered
from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import DataError, ExportDataError, ExportError
from returnn_tf.engine.support.step_errors import reason
from returnn_tf.export.graph_ops import op_types
from returnn_tf.export.sample import random_batch
from returnn_tf.export.tensor_info import LENGTHS, SCORES, VALUE, TensorInfo, graph_name, input_infos, output_infos
from returnn_tf.graph.carried_state import CarriedState, NoCarriedState
from returnn_tf.graph.layer import Node
from returnn_tf.graph.lowering import Lowering
from returnn_tf.layers.search.decide import scores_of
from returnn_tf.ops.frames.empty_axes import at_least_one
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.util.lazy_tf import tf


class InferenceModel:
    """A network without losses and dropout, as a function of tensors.

    Names are those of data keys and layers, with "_" in place of all but letters, digits and "_": inputs ``data``,
    ``data_size0`` (int32 [batch], the lengths of the first axis after batch); outputs ``<layer>``, ``<layer>_size<i>``,
    and ``<layer>_scores`` [batch, beam] of a search, in which the batch axis of the others is [batch * beam].

    :param net: the network, planned with or without search
    :param outputs: paths of layers; default: the outputs of the network
    :param nodes: any layers, in place of ``outputs``: the inputs are what they need; outputs are not described
    :param further: emits tensors from the graph, by name, which are outputs, too
    :raises ConfigError: there is no such layer, or there are no outputs
    """

    def __init__(
        self,
        net: Network,
        outputs: Sequence[str] = (),
        *,
        nodes: Optional[Sequence[Node]] = None,
        further: Optional[Callable[[Lowered], dict[str, Any]]] = None,
    ) -> None:
        self.net = net
        #: The layers whose values are outputs.
        self.nodes: list[Node] = list(self._find(net, outputs) if nodes is None else nodes)
        #: The data keys that the outputs need.
        self.keys: list[str] = net.data_keys(self.nodes, with_losses=False)
        #: Inputs and outputs by name.
        self.input_infos: dict[str, TensorInfo] = input_infos(net.extern_data, self.keys)
        self.outputs: dict[str, TensorInfo] = output_infos(self.nodes) if nodes is None else {}
        self._further = further
        self._graph: Optional[Any] = None
        self._step = int(net.global_step)
        #: Of a format whose ops need entries in all axes: layers are computed for a frame of padding if no sequence has
        #: frames, and outputs are cut then.
        self.pads_empty = False
        #: Name of an input -> its name in the feed of `Network.run`.
        self.feed_keys = {graph_name(key): key for key in self.keys}
        for key in self.keys:
            for i in feed_layout(net.extern_data[key])[1]:
                self.feed_keys["%s_size%d" % (graph_name(key), i)] = "%s/size%d" % (key, i)

    def widen_integers(self) -> None:
        """Let labels and lengths be int64, in inputs and outputs."""
        self._graph = None
        for infos in (self.input_infos, self.outputs):
            for name, info in infos.items():
                if info.kind == LENGTHS or (info.kind == VALUE and info.labels is not None):
                    infos[name] = dataclasses.replace(info, dtype="int64")

    @staticmethod
    def _find(net: Network, outputs: Sequence[str]) -> Sequence[Node]:
        if outputs:
            return list(dict.fromkeys(net.plan.find_nodes(outputs, "outputs")))
        if not net.plan.outputs:
            raise ExportError('Export: the network has no layer "output", and none has is_output_layer. Name outputs.')
        return list(net.plan.outputs.values())

    @property
    def inputs(self) -> dict[str, Any]:
        """Return the `tf.TensorSpec` of each input by name."""
        return {name: tf.TensorSpec(info.shape, info.dtype, name=name) for name, info in self.input_infos.items()}

    def feed_names(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return inputs under the names of `Network.run`: ``data/size0`` for ``data_size0``.

        :raises ConfigError: one is missing
        """
        lacking = [name for name in self.feed_keys if name not in inputs]
        if lacking:
            raise ExportError("Export: the inputs lack %r." % lacking[0])
        return {feed: inputs[name] for name, feed in self.feed_keys.items()}

    def emit(
        self,
        inputs: Mapping[str, Any],
        variables: Optional[Mapping[str, Any]] = None,
        states: Optional[CarriedState] = None,
    ) -> dict[str, Any]:
        """Emit the ops; call it while any graph is traced. Within `portable_ops`, they need no library.

        :param inputs: tensors by input name
        :param variables: parameter name -> anything that becomes a tensor; default: the variables of the network
        :param states: holds the states that layers carry from call to call; default: each call begins with the first
            frame. Other updates, e.g. of running means, are left out
        :return: tensors by output name
        """
        graph = self._lower(inputs, variables, states)
        found = {name: tensor for node in self.nodes for name, tensor in self.tensors_of(graph, node).items()}
        if self.pads_empty:
            self._fit_outputs(inputs, found)
        tensors = {
            name: tf.identity(tf.cast(found[name], info.dtype) if info.dtype == "int64" else found[name], name=name)
            for name, info in self.outputs.items()
            if name in found
        }
        return tensors if self._further is None else {**tensors, **self._further(graph)}

    def _dynamic_axes(self, inputs: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
        """Yield name and axis of the inputs whose axes may have no entries."""
        for name, info in self.input_infos.items():
            if name in inputs:
                yield from ((name, axis) for axis in info.lengths if inputs[name].shape[axis] is None)

    def _fit_outputs(self, inputs: Mapping[str, Any], found: dict[str, Any]) -> None:
        """Cut outputs at the largest of their lengths, if an input had no frames."""
        empty = [tf.equal(tf.shape(inputs[name])[axis], 0) for name, axis in self._dynamic_axes(inputs)]
        places = [(name, axis, lens) for name, info in self.outputs.items() for axis, lens in info.lengths.items()]
        for name, axis, lens in places if empty else ():
            longest = tf.reduce_max(tf.concat([tf.reshape(found[lens], [-1]), [0]], axis=0))
            end = tf.where(tf.reduce_any(tf.stack(empty)), longest, tf.shape(found[name])[axis])
            found[name] = found[name][(*[slice(None)] * axis, slice(0, end))]

    def _lower(
        self, inputs: Mapping[str, Any], variables: Optional[Mapping[str, Any]], states: Optional[CarriedState]
    ) -> Lowered:
        given = dict(inputs)
        for name, info in self.input_infos.items():
            if info.dtype == "int64" and name in given:
                key = self.feed_keys.get(name, "")
                given[name] = tf.cast(given[name], self.net.extern_data[key].dtype if info.kind == VALUE else "int32")
        for name, axis in self._dynamic_axes(given) if self.pads_empty else ():
            given[name] = at_least_one(given[name], axis)
        return self.net.lower(
            self.feed_names(given),
            train=False,
            step=tf.constant(self._step, tf.int64),
            outputs=self.nodes,
            with_losses=False,
            variables=variables,
            carried=NoCarriedState() if states is None else states,
        )

    def lowering(self, inputs: Mapping[str, Any]) -> Lowering:
        """Emit the layers for tensors by input name, and return the values by node, with the lengths."""
        return self._lower(inputs, None, None).lowering

    def tensors_of(self, graph: Lowered, node: Node) -> dict[str, Any]:
        """Return the tensors of an output by their names: value, lengths and scores."""
        data, base = node.output, graph_name(node.path)
        order, offset = batch_major_order(data), 0 if data.batch_axis is None else 1
        value = transpose(graph.lowering.values.outputs[node], order)
        if value.shape.rank is None:
            value = tf.ensure_shape(value, [data.dims[axis].size for axis in order])
        found = {base: value}
        for axis, lens in graph.lens_by_axis(data).items():
            if not lens.shape.rank:
                lens = tf.fill([tf.shape(value)[0] if offset else 1], lens)
            found["%s_size%d" % (base, order.index(int(axis)) - offset)] = lens
        if base + "_scores" in self.outputs:
            scores = scores_of(graph.lowering, node)
            assert scores is not None, "layer %r has no scores" % node.path
            found[base + "_scores"] = scores
        return found

    def sample(self, seed: int = 1, *, batch: int = 3, frames: int = 13) -> dict[str, NDArray[Any]]:
        """Return a ragged batch of random numbers as inputs.

        :param batch: number of sequences
        :param frames: length of the longest one
        """
        return self._random(seed, batch, frames, **({"shorter": 0} if self._needs_equal_lengths else {}))

    def _random(self, seed: int, batch: int, frames: int, **options: int) -> dict[str, NDArray[Any]]:
        feed = random_batch(self.net.extern_data, self.keys, seed=seed, batch=batch, frames=frames, **options)
        return {
            name: feed[key].astype("int64") if self.input_infos[name].dtype == "int64" else feed[key]
            for name, key in self.feed_keys.items()
        }

    @functools.cached_property
    def of_whole_sequences(self) -> InferenceModel:
        """The network as a function of whole sequences, without states, with the same outputs."""
        return InferenceModel(self.net, [node.path for node in self.nodes])

    @functools.cached_property
    def _needs_equal_lengths(self) -> bool:
        """Whether the network only takes sequences of the same lengths for all inputs, as for labels of all frames."""
        if len({self.input_infos[name].lengths.get(1) for name in self.input_infos} - {None}) < 2:
            return False
        plain = self.of_whole_sequences
        try:
            plain.expected(plain._random(1, 2, 13))
        except DataError as exc:
            return isinstance(exc.__cause__, tf.errors.InvalidArgumentError)
        return False

    def expected(self, sample: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the outputs of the network itself for inputs: as `Network.run`, without losses.

        :param sample: arrays by input name
        :raises DataError: a layer refuses them, e.g. labels that do not fit together
        """
        if self._graph is None:
            self._graph = self.trace()
        inputs = {name: tf.constant(sample[name], info.dtype) for name, info in self.input_infos.items()}
        before = [(variable, variable.numpy()) for variable in self._assigned()]
        try:
            found = {name: value.numpy() for name, value in self._graph(**inputs).items()}
        except tf.errors.OpError as exc:
            raise ExportDataError(
                "Export: the network can't compute the random batch on which exports are compared: %s" % reason(exc)
            ) from exc
        for variable, value in before:
            variable.assign(value)
        return found

    def _assigned(self) -> list[Any]:
        """Return the variables if some layer assigns one, as `variable_assign` does; else none."""
        assert self._graph is not None
        types = op_types(self._graph.graph.as_graph_def())
        return list(self._graph.variables) if any(kind.startswith("Assign") for kind in types) else []

    def trace(self) -> Any:
        """Return a concrete function of the inputs by name, which returns the outputs by name."""
        function = tf.function(lambda **inputs: self.emit(inputs), autograph=False)
        return function.get_concrete_function(**self.inputs)

    def lengths_of(self, name: str) -> dict[int, str]:
        """Return the axes of an output that have lengths: axis -> name of the output with them."""
        info = self.outputs[name]
        return {} if info.kind in (LENGTHS, SCORES) else dict(info.lengths)
