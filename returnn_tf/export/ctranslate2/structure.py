"""Finds a Transformer in a plan by its structure: which layers are its embeddings, sublayers and projections.

A sublayer is an addition of a trunk and a branch; the branch ends with a linear projection of an attention or of a
wider layer. A normalisation is before each branch (pre-norm), or behind each addition (post-norm). Names do not count.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.config.errors import ExportError
from returnn_tf.graph.layer import Node
from returnn_tf.layers.attention.generic_attention import GenericAttentionLayer
from returnn_tf.layers.attention.positional_encoding import PositionalEncodingLayer
from returnn_tf.layers.attention.relative_positional_encoding import RelativePositionalEncodingLayer
from returnn_tf.layers.attention.self_attention import SelfAttentionLayer
from returnn_tf.layers.math.activation import ActivationLayer
from returnn_tf.layers.math.combine import CombineLayer
from returnn_tf.layers.math.copy import CopyLayer
from returnn_tf.layers.math.dot import DotLayer
from returnn_tf.layers.math.eval import EvalLayer
from returnn_tf.layers.math.linear import LinearLayer
from returnn_tf.layers.math.norm import LayerNormLayer
from returnn_tf.layers.math.spatial_softmax import SoftmaxOverSpatialLayer
from returnn_tf.layers.shape.merge_dims import MergeDimsLayer
from returnn_tf.layers.shape.split_dims import SplitDimsLayer


class Unfit(ExportError):
    """A layer that is not the one which a Transformer has in its place."""

    def __init__(self, node: Node, text: str) -> None:
        super().__init__(
            "export to ctranslate2: the layer %r (class %r) %s. CTranslate2 has Transformers of Vaswani et al. alone, "
            "also with distances by Shaw et al.: export to another target, or change the network."
            % (node.path, node.layer.class_name, text)
        )


@dataclass(frozen=True)
class Embedding:
    """Labels as vectors.

    :param words: the lookup
    :param labels: its source
    :param scale: factor of the vectors
    :param positions: adds sinusoids of the positions; None: the attention knows distances
    """

    words: Node
    labels: Node
    scale: float
    positions: Optional[Node]


@dataclass(frozen=True)
class FeedForward:
    """Two linear layers.

    :param inner: the wide one
    :param activation: behind it
    """

    inner: Node
    activation: str


@dataclass(frozen=True)
class SelfAttention:
    """Attention to frames of the same stack.

    :param heads: the layer that has the matrix of queries, keys and values
    :param distances: the layer whose vectors of distances are added to keys
    """

    heads: Node
    distances: Optional[Node]


@dataclass(frozen=True)
class CrossAttention:
    """Attention to the encoder.

    :param query, key, value: linear layers
    :param memory: what keys and values are computed of
    :param num_heads: number of heads
    :param scale: factor of the energies
    """

    query: Node
    key: Node
    value: Node
    memory: Node
    num_heads: int
    scale: float


@dataclass(frozen=True)
class Sublayer:
    """A branch with a residual connection.

    :param body: what the branch computes
    :param out: its last projection
    :param norm: before the branch, or behind the addition
    """

    body: Any
    out: Node
    norm: Node


@dataclass(frozen=True)
class Stack:
    """An encoder or a decoder.

    :param embedding: its input
    :param sublayers: in the order of their computation
    :param pre_norm: whether the normalisations are before the branches
    :param last_norm: with ``pre_norm``: behind the last sublayer
    """

    embedding: Embedding
    sublayers: Sequence[Sublayer]
    pre_norm: bool
    last_norm: Optional[Node]

    @property
    def is_relative(self) -> bool:
        """Return whether the attention knows distances."""
        return self.embedding.positions is None

    def check_positions(self) -> None:
        """Check that either the embedding has positions, or all attention has distances.

        :raises ConfigError: names the layer that has both, or none
        """
        for sublayer in self.sublayers:
            body = sublayer.body
            if isinstance(body, SelfAttention) and (body.distances is not None) != self.is_relative:
                raise Unfit(
                    body.heads,
                    "has no key_shift, and there is no positional_encoding" if self.is_relative
                    else "has a key_shift, beside positions that the layer %r adds" % (
                        "" if self.embedding.positions is None else self.embedding.positions.path
                    ),
                )  # fmt: skip


def stack_of(node: Node) -> Stack:
    """Return the stack whose output a layer is.

    :raises ConfigError: it is not the output of one; names the first layer that does not fit
    """
    node = behind_copies(node)
    outer = node if isinstance(node.layer, LayerNormLayer) else None
    below = _source(outer) if outer is not None else node
    found: list[Sublayer] = []
    pre_norm: Optional[bool] = None
    while isinstance(below.layer, CombineLayer):
        sublayer, trunk, is_pre = _sublayer(below, outer)
        if pre_norm not in (None, is_pre):
            raise Unfit(below, "has its normalisation %s, unlike those above it" % ("before" if is_pre else "behind"))
        pre_norm = is_pre
        found.append(sublayer)
        if is_pre:
            below = trunk
        elif isinstance(trunk.layer, LayerNormLayer):
            outer, below = trunk, _source(trunk)
        else:
            below = trunk
    if pre_norm is None:
        raise Unfit(below, "is no addition of a sublayer and its input")
    last = node if pre_norm and isinstance(node.layer, LayerNormLayer) else None
    stack = Stack(_embedding(below), found[::-1], pre_norm, last)
    stack.check_positions()
    return stack


def _sublayer(node: Node, norm_behind: Optional[Node]) -> tuple[Sublayer, Node, bool]:
    """Return the sublayer of an addition, its trunk, and whether its normalisation is before the branch.

    :param norm_behind: the normalisation of the addition, if there is one
    """
    layer = node.layer
    assert isinstance(layer, CombineLayer)
    if layer.kind not in ("add", "+") or layer.activation is not None or layer.with_bias or len(node.sources) != 2:
        raise Unfit(node, "is no plain addition of two layers")
    errors = []
    # the source that ends with a projection first: its fault is the one to tell
    sources = sorted(map(behind_copies, node.sources), key=lambda each: isinstance(each.layer, LinearLayer))
    for trunk, branch in (sources, sources[::-1]):
        try:
            body, out, source = _branch(branch)
        except Unfit as exc:
            errors.append(exc)
            continue
        if source is trunk:
            if norm_behind is None:
                raise Unfit(node, "has no layer_norm behind it, nor one before the branch")
            return Sublayer(body, out, norm_behind), trunk, False
        if isinstance(source.layer, LayerNormLayer) and _source(source) is trunk:
            return Sublayer(body, out, source), trunk, True
        errors.append(Unfit(source, "is neither the other source of the addition %r nor its layer_norm" % node.path))
    raise errors[0]


def _branch(out: Node) -> tuple[Any, Node, Node]:
    """Return the body of a branch, its last projection, and its input."""
    _linear(out, None)
    node = _source(out)
    layer = node.layer
    if isinstance(layer, SelfAttentionLayer):
        if layer.initial_state is not None:
            raise Unfit(node, "has the option initial_state")
        distances = None if layer.key_shift is None else _node(layer.key_shift)
        if distances is not None:
            shift = distances.layer
            if not isinstance(shift, RelativePositionalEncodingLayer) or shift.query_offset is not None:
                raise Unfit(distances, "is no relative_positional_encoding of distances from 0")
        return SelfAttention(node, distances), out, _source(node)
    if isinstance(layer, MergeDimsLayer):
        cross, source = _cross_attention(node)
        return cross, out, source
    activation = None
    if isinstance(layer, ActivationLayer):
        activation, node = layer.activation, _source(node)
    if not isinstance(node.layer, LinearLayer):
        raise Unfit(node, "is no attention and no linear layer before the projection %r" % out.path)
    if activation is None:
        activation = node.layer.activation
    else:
        _linear(node, None)
    if not isinstance(activation, str):
        raise Unfit(node, "has no activation by name")
    return FeedForward(node, activation), out, _source(node)


def _cross_attention(merged: Node) -> tuple[CrossAttention, Node]:
    """Return the attention whose heads a layer joins, and its input."""
    heads = _source(merged)
    if not isinstance(heads.layer, GenericAttentionLayer):
        raise Unfit(heads, "is no generic_attention with a head in each axis that %r joins" % merged.path)
    weights = behind_copies(_node(heads.layer.weights))
    if not isinstance(weights.layer, SoftmaxOverSpatialLayer) or weights.layer.log_space:
        raise Unfit(weights, "is no softmax_over_spatial")
    for option in ("start", "window_start", "window_size"):
        if getattr(weights.layer, option) is not None:
            raise Unfit(weights, "has the option %s" % option)
    energy = _source(weights)
    if not isinstance(energy.layer, DotLayer):
        raise Unfit(energy, "is no dot product of keys and queries")
    parts = [_heads(behind_copies(node)) for node in energy.sources]
    value, num_heads, memory = _heads(behind_copies(_node(heads.layer.base)))
    keys = [part for part in parts if part[2] is memory]
    queries = [part for part in parts if part[2] is not memory]
    if len(keys) != 1 or len(queries) != 1:
        raise Unfit(energy, "has no keys of the layer of the values, %r" % memory.path)
    (key, key_heads, _), (query, query_heads, source) = keys[0], queries[0]
    if not key_heads == query_heads == num_heads:
        raise Unfit(energy, "has other numbers of heads than the values")
    scale = weights.layer.energy_factor
    return CrossAttention(query, key, value, memory, num_heads, 1.0 if scale is None else float(scale)), source


def _heads(node: Node) -> tuple[Node, int, Node]:
    """Return the linear layer that is split into heads, their number, and its source."""
    if not isinstance(node.layer, SplitDimsLayer):
        raise Unfit(node, "does not split the features of a linear layer into heads")
    linear = _source(node)
    _linear(linear, None)
    sizes = [dim.size for dim in node.output.dims if dim.size is not None]
    if len(sizes) != 2 or node.output.feature_dim is None or node.output.feature_dim.size != sizes[-1]:
        raise Unfit(node, "does not split into [heads, features of a head]")
    assert sizes[0] is not None
    return linear, sizes[0], _source(linear)


def _embedding(node: Node) -> Embedding:
    """Return the embedding whose output a layer is."""
    layer, words, scale = node.layer, node, 1.0
    positions = None if isinstance(layer, (EvalLayer, LinearLayer)) else node
    if positions is not None:
        if not isinstance(layer, PositionalEncodingLayer) or not layer.add_to_input:
            raise Unfit(node, "is no sublayer, and no positional_encoding with add_to_input")
        if layer.constant >= 0 or layer.offset is not None:
            raise Unfit(node, "has other positions than 0, 1, 2, ...")
        words = _source(node)
    if isinstance(words.layer, EvalLayer):
        scale = _factor(words)
        words = _source(words)
    _linear(words, None)
    if words.input is None or words.input.sparse_dim is None:
        raise Unfit(words, "looks no labels up")
    return Embedding(words, words.sources[0], scale, positions)


def _factor(node: Node) -> float:
    """Return the number by which code multiplies: ``source(0) * 16.0``."""
    layer = node.layer
    assert isinstance(layer, EvalLayer)
    tree = None
    if isinstance(layer.eval, str) and layer.activation is None and not layer.eval_locals:
        tree = ast.parse(layer.eval.strip(), mode="eval").body
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult):
        sides = [tree.left, tree.right]
        values = [side.value for side in sides if isinstance(side, ast.Constant)]
        numbers = [float(value) for value in values if isinstance(value, (int, float))]
        if numbers and any(ast.unparse(side) == "source(0)" for side in sides):
            return numbers[0]
    raise Unfit(node, "does not multiply by a number, as 'source(0) * 16.0' does")


def _linear(node: Node, activation: Optional[str]) -> None:
    """Check that a layer is linear, with this activation."""
    layer = node.layer
    if not isinstance(layer, LinearLayer):
        raise Unfit(node, "is no linear layer")
    if layer.activation not in (activation, *([] if activation else ["identity", "linear", "none"])):
        raise Unfit(node, "has the activation %r" % (layer.activation,))


def _source(node: Node) -> Node:
    """Return the one source of a layer, behind copies."""
    if len(node.sources) != 1:
        raise Unfit(node, "has %d sources" % len(node.sources))
    return behind_copies(node.sources[0])


def behind_copies(node: Node) -> Node:
    """Return the layer whose values layers pass on, such as dropout, which only training does, also into a loop."""
    while True:
        if node.passes_on is not None:
            node = node.passes_on
        elif (node.layer.is_connector or isinstance(node.layer, CopyLayer)) and len(node.sources) == 1:
            node = node.sources[0]
        else:
            return node


def _node(ref: Any) -> Node:
    assert isinstance(ref, Node)
    return ref
