"""Values of one layer for whole datasets, without losses or training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config.errors import SettingError
from returnn_tf.engine.passes.split_step import announce, halves, why_whole
from returnn_tf.graph.layer import Node
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.util.lazy_tf import tf


class ForwardResult(NamedTuple):
    """The values of a batch: batch axis first, then the axes with lengths, then the others."""

    value: NDArray[Any]
    lengths: dict[int, NDArray[Any]]  # axis, not counting batch -> int32 [batch]
    sinks: dict[str, Any] = {}  # path -> tensors that the layer passes on after the step


def forwarded_node(plan: Plan, layer: str) -> Node:
    """Return a layer of a plan, whose values per sequence can be written.

    :raises ConfigError: no such layer, or its output has no batch axis, or several hypotheses of a search
    """
    (node,) = plan.find_nodes([layer])
    if node.output.beam is not None:
        raise SettingError(
            "Layer %r has the output %s with %i hypotheses of each sequence. Forward a 'decide' layer, which keeps "
            "the best one, or a layer after it." % (layer, node.output, node.output.beam.size)
        )
    if node.output.batch_axis is None:
        raise SettingError(
            "Layer %r has the output %s without batch axis, so no values per sequence." % (layer, node.output)
        )
    return node


class Forwarder:
    """Traced function from a batch to the output of a layer.

    :param layer: path of the layer
    :raises ConfigError: no such layer, or its output has no batch axis, or several hypotheses of a search
    """

    def __init__(self, net: Network, layer: str) -> None:
        self.net = net
        self._node = forwarded_node(net.plan, layer)
        self.output = self._node.output
        self.layer = layer
        batch = cast("int", self.output.batch_axis)
        self._dynamic: list[int] = list(self.output.dynamic_axes)
        others = [axis for axis in range(self.output.rank) if axis != batch and axis not in self._dynamic]
        #: the axes of the output in the order of the values
        self.order: list[int] = [batch] + self._dynamic + others
        self._nodes = list(dict.fromkeys([self._node, *net.sink_nodes()]))
        self.used_data_keys: list[str] = net.data_keys(self._nodes, with_losses=False)
        self._function = net.feed_function(self._emit, self.used_data_keys)

    def tensors(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of a feed which the layer needs, as tensors."""
        return self._function.tensors(feed)

    def run(self, feed: Mapping[str, Any]) -> ForwardResult:
        """Return the values for one batch, computed in two halves if it does not fit into memory.

        :param feed: feed key -> array or tensor, batch axis first
        """
        tensors = self._function.tensors(feed)
        try:
            return self._run(tensors)
        except tf.errors.ResourceExhaustedError:
            why = why_whole(self.net, tensors)
            announce("Forwarding", self.net, tensors, why)
            if why:
                raise
            return _joined([self._run(half) for half in halves(self.net, tensors)])

    def _run(self, tensors: Mapping[str, Any]) -> ForwardResult:
        value, lengths, sinks = self._function(tensors)
        return ForwardResult(value.numpy(), {axis: lens.numpy() for axis, lens in enumerate(lengths)}, sinks)

    def _emit(self, feed: dict[str, Any]) -> Any:
        graph = self.net.lower(feed, train=False, outputs=self._nodes, with_losses=False)
        value = transpose(graph.values[self._node.path], self.order)
        lens = graph.lens_by_axis(self.output)
        batch = tf.shape(value)[:1]
        graph.run_updates()
        return value, [tf.broadcast_to(lens[axis], batch) for axis in self._dynamic], graph.sinks


def _joined(parts: list[ForwardResult]) -> ForwardResult:
    """Return the values of all sequences of some batches; what one has less in an axis is filled by zeros."""
    sizes = np.max([part.value.shape[1:] for part in parts], axis=0, initial=0)
    filled = []
    for part in parts:
        more = [(0, 0), *((0, int(size) - own) for size, own in zip(sizes, part.value.shape[1:]))]
        filled.append(np.pad(part.value, more))
    lengths = {axis: np.concatenate([part.lengths[axis] for part in parts]) for axis in parts[0].lengths}
    return ForwardResult(np.concatenate(filled), lengths)
