"""The attention weights of a network for single sequences, in the size in which they are drawn.

They are reduced in the graph: those of all heads of many layers, frames by frames, would not fit into memory.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.inner_weights import emit_inner_weights, inner_weights_template
from returnn_tf.compiler.lower import Lowered
from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import CommandError, ConfigError
from returnn_tf.graph.layer import Node
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf

MOST_PIXELS = 400  # along an axis of the mean of the heads
MOST_HEAD_PIXELS = 96  # along an axis of a single head
MOST_WEIGHTS = 2**27  # in a layer, of all heads: 512 MiB


class WeightsLayer(NamedTuple):
    """A layer with attention weights.

    :param template: of the weights; the keys are the last axis
    :param queries: axis; None: one query for all keys
    :param inner: whether the output of the layer is something else
    :param log_space: whether these are logarithms
    """

    path: str
    node: Node
    template: Data
    queries: Optional[int]
    inner: bool
    log_space: bool

    @property
    def of_itself(self) -> bool:
        """Return whether this is self-attention: frames attend to frames of the same sequence."""
        return self.queries is not None and self.template.dims[self.queries] is self.template.dims[-1]

    @property
    def head_axes(self) -> list[int]:
        """Return the axes that are neither batch nor queries nor keys."""
        dims = self.template.dims
        return [i for i in range(len(dims) - 1) if i != self.queries and not dims[i].is_batch]


class SeqWeights(NamedTuple):
    """The attention weights of a layer for a sequence.

    Where there are more queries or keys than pixels, each pixel is the mean of some.

    :param size: (queries, keys)
    :param mean: of the heads [rows, columns]; without rows if there are too many weights
    :param heads: [heads, rows, columns]
    :param keys: the number of keys that each head attends to, exp of the entropy, mean of the queries [heads]
    """

    layer: WeightsLayer
    size: tuple[int, int]
    mean: NDArray[Any]
    heads: NDArray[Any]
    keys: NDArray[Any]


def is_weights(node: Node) -> bool:
    """Return whether the values of a layer are attention weights."""
    return node.layer.gives_attention_weights


def weights_layers(net: Network) -> tuple[list[WeightsLayer], dict[str, str]]:
    """Return the layers whose attention weights can be drawn, and path -> reason of those whose weights can't."""
    found, reasons = [], {}
    outside = net.plan.by_path()
    for node in net.plan.visible_nodes():
        if not is_weights(node) and not node.layer.has_inner_weights:
            continue
        try:
            layer = _weights_layer(net, node, outside.get(node.path))
        except ConfigError as exc:
            reasons[node.path] = str(exc)
        else:
            found.append(layer)
    return found, reasons


def _weights_layer(net: Network, node: Node, shown: Optional[Node]) -> WeightsLayer:
    """Return the weights of a layer that are drawn.

    :param shown: the node with its values outside of a loop
    :raises ConfigError: why nothing is
    """
    if is_weights(node):
        if shown is None:
            raise CommandError("its values are not known outside of its loop")
        template = shown.output
        others = [axis for axis in template.dynamic_axes if axis != template.rank - 1]
        layer = WeightsLayer(node.path, shown, template, max(others, default=None), False, node.layer.in_log_space)
    else:
        template = inner_weights_template(net.plan, node)
        layer = WeightsLayer(node.path, node, template, template.time_axis, True, False)
    if any(template.dims[axis].is_dynamic() for axis in layer.head_axes):
        raise CommandError("it has weights along more than two axes of frames: %s" % template)
    return layer


class WeightsFunction:
    """Traced function from the feed of one sequence to the attention weights of some layers."""

    def __init__(self, net: Network, layers: Sequence[WeightsLayer]) -> None:
        self._net = net
        self._layers = list(layers)
        self._nodes = list(dict.fromkeys(layer.node for layer in layers))
        self._function = net.feed_function(self._emit, net.data_keys(self._nodes, with_losses=False))

    def run(self, feed: Mapping[str, Any]) -> list[SeqWeights]:
        """Return the weights of a sequence, without layers for which it has no queries or keys."""
        found = []
        for layer, values in zip(self._layers, self._function(feed)):
            size, mean, heads, keys = (np.asarray(value) for value in values)
            if size.min() > 0:
                found.append(SeqWeights(layer, (int(size[0]), int(size[1])), mean, heads, keys))
        return found

    def _emit(self, feed: dict[str, Any]) -> Any:
        graph = self._net.lower(feed, train=False, outputs=self._nodes, with_losses=False)
        found = []
        for layer in self._layers:
            lens = graph.lens_by_axis(layer.template)
            if layer.inner:
                sizes = [graph.lowering.dims.get_size(dim) for dim in layer.template.dims]
                found.append(_within_limit(sizes, layer, functools.partial(self._inner, graph, layer, lens)))
            else:
                found.append(_reduced(layer, graph.lowering.values.outputs[layer.node], lens))
        return found

    def _inner(self, graph: Lowered, layer: WeightsLayer, lens: Mapping[int, Any]) -> Any:
        return _reduced(layer, emit_inner_weights(self._net.config, graph, layer.node), lens)


def _within_limit(sizes: Sequence[Any], layer: WeightsLayer, reduced: Callable[[], Any]) -> Any:
    """Return reduced weights of these sizes; empty ones if the weights would not fit into memory."""
    queries = 1 if layer.queries is None else sizes[layer.queries]
    nothing = tf.zeros([0, 0]), tf.zeros([0, 0, 0]), tf.zeros([0])
    count = tf.reduce_prod(tf.cast(tf.stack(sizes), tf.int64))
    return tf.cond(count <= MOST_WEIGHTS, reduced, lambda: (tf.stack([queries, sizes[-1]]), *nothing))


def _reduced(layer: WeightsLayer, value: Any, lens: Mapping[int, Any]) -> tuple[Any, Any, Any, Any]:
    """Return size, mean, heads and keys, see `SeqWeights`, without padding."""
    keys_axis = layer.template.rank - 1
    rows = [] if layer.queries is None else [layer.queries]
    batch = [axis for axis, dim in enumerate(layer.template.dims) if dim.is_batch]
    value = transpose(value, [*batch, *layer.head_axes, *rows, keys_axis])
    value = value[0] if batch else value
    shape = tf.shape(value)
    queries, keys = (shape[-2] if rows else 1), shape[-1]
    value = tf.reshape(value, tf.stack([-1, queries, keys]))
    if layer.queries is not None and layer.queries in lens:
        queries = tf.reduce_max(lens[layer.queries])
    if keys_axis in lens:
        keys = tf.reduce_max(lens[keys_axis])
    value = tf.cast(value[:, :queries, :keys], tf.float32)
    value = tf.exp(value) if layer.log_space else value
    share = tf.math.divide_no_nan(value, tf.reduce_sum(value, axis=-1, keepdims=True))
    entropy = -tf.reduce_sum(tf.math.xlogy(share, share), axis=-1)  # [heads, queries]
    mean = _pooled(tf.reduce_mean(value, axis=0, keepdims=True), MOST_PIXELS)[0]
    heads = _pooled(value, MOST_HEAD_PIXELS)
    return tf.shape(value)[1:], mean, heads, tf.reduce_mean(tf.exp(entropy), axis=-1)


def _pooled(x: Any, most: int) -> Any:
    """Average-pool the last two axes to a maximum number of entries."""
    for axis in (1, 2):
        size = tf.shape(x)[axis]
        block = tf.maximum(-(-size // most), 1)
        count = -(-size // block)
        last = [[0, count * block - size if i == axis else 0] for i in range(3)]
        shape = [tf.shape(x)[i] for i in range(3)]
        blocks = tf.reshape(tf.pad(x, last), tf.stack([*shape[:axis], count, block, *shape[axis + 1 :]]))
        frames = tf.cast(tf.minimum(block, size - tf.range(count) * block), x.dtype)
        x = tf.reduce_sum(blocks, axis=axis + 1) / tf.reshape(frames, [-1, 1] if axis == 1 else [-1])
    return x
