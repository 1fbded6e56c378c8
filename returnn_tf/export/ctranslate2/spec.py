"""The parameters of a Transformer, as the specification of CTranslate2 orders them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ExportError
from returnn_tf.export.ctranslate2.structure import (
    CrossAttention,
    FeedForward,
    SelfAttention,
    Stack,
    Sublayer,
    Unfit,
)
from returnn_tf.graph.layer import Node
from returnn_tf.layers.attention.relative_positional_encoding import RelativePositionalEncodingLayer
from returnn_tf.layers.attention.self_attention import SelfAttentionLayer
from returnn_tf.layers.math.linear import LinearLayer
from returnn_tf.layers.math.norm import LayerNormLayer
from returnn_tf.ops.frames.positions import sinusoids
from returnn_tf.util.lazy_tf import tf

#: Our activations -> those of CTranslate2.
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "swish": "SWISH", "silu": "SWISH", "tanh": "Tanh", "sigmoid": "Sigmoid"}
#: The sublayers of a layer without attention to an encoder.
_ALONE = (SelfAttention, FeedForward)
Floats = NDArray[np.float32]


class SpecBuilder:
    """Fills a specification.

    :param specs: the module ``ctranslate2.specs``
    :param params: all parameters of the network by name
    :param positions: [positions, features], added to embeddings
    """

    def __init__(self, specs: Any, params: Mapping[str, NDArray[Any]], positions: Floats) -> None:
        self._specs, self._params, self._positions = specs, params, positions
        self._epsilons: dict[float, Node] = {}

    def transformer(self, encoder: Stack, decoder: Stack, projection: Node) -> Any:
        """Return the specification of an encoder, a decoder, and the projection to labels.

        :raises ConfigError: CTranslate2 has no place for a difference; names the layer
        """
        encoder_bodies, decoder_bodies = _ALONE, (SelfAttention, CrossAttention, FeedForward)
        encoder_layers, decoder_layers = _layers(encoder, encoder_bodies), _layers(decoder, decoder_bodies)
        if encoder.pre_norm != decoder.pre_norm:
            raise Unfit(decoder.sublayers[0].norm, "is placed otherwise than in the encoder")
        options = {"activation": self._activation(encoder, decoder)}
        heads = _num_heads([*encoder.sublayers, *decoder.sublayers])
        made = self._specs.TransformerSpec(
            self._specs.TransformerEncoderSpec(len(encoder_layers), heads, **_options(encoder), **options),
            self._specs.TransformerDecoderSpec(len(decoder_layers), heads, **_options(decoder), **options),
        )
        for stack, layers, spec, embeddings in (
            (encoder, encoder_layers, made.encoder, made.encoder.embeddings[0]),
            (decoder, decoder_layers, made.decoder, made.decoder.embeddings),
        ):
            self._stack(stack, layers, spec, embeddings)
        self._linear(made.decoder.projection, [projection])
        made.config.layer_norm_epsilon = self._epsilon()
        return made

    def language_model(self, decoder: Stack, projection: Node) -> Any:
        """Return the specification of a decoder without encoder, and the projection to labels.

        :raises ConfigError: as `transformer`
        """
        layers = _layers(decoder, _ALONE)
        made = self._specs.TransformerDecoderModelSpec(
            self._specs.TransformerDecoderSpec(
                len(layers), _num_heads(decoder.sublayers), with_encoder_attention=False,
                activation=self._activation(decoder), **_options(decoder),
            )
        )  # fmt: skip
        self._stack(decoder, layers, made.decoder, made.decoder.embeddings)
        self._linear(made.decoder.projection, [projection])
        made.config.layer_norm_epsilon = self._epsilon()
        return made

    def _stack(self, stack: Stack, layers: Sequence[Sequence[Sublayer]], spec: Any, embeddings: Any) -> None:
        words = stack.embedding.words
        weight, bias = self._weight(words).T, self._bias(words)
        embeddings.weight = np.ascontiguousarray((weight if bias is None else weight + bias) * stack.embedding.scale)
        spec.scale_embeddings = False
        if not stack.is_relative:
            spec.position_encodings.encodings = self._positions
        if stack.last_norm is not None:
            self._norm(spec.layer_norm, stack.last_norm)
        for sublayers, part in zip(layers, spec.layer):
            for sublayer in sublayers:
                if isinstance(sublayer.body, FeedForward):
                    self._norm(part.ffn.layer_norm, sublayer.norm)
                    self._linear(part.ffn.linear_0, [sublayer.body.inner])
                    self._linear(part.ffn.linear_1, [sublayer.out])
                elif isinstance(sublayer.body, SelfAttention):
                    self._norm(part.self_attention.layer_norm, sublayer.norm)
                    self._self_attention(part.self_attention, sublayer.body)
                    self._linear(part.self_attention.linear[1], [sublayer.out])
                else:
                    self._norm(part.attention.layer_norm, sublayer.norm)
                    self._cross_attention(part.attention, sublayer.body)
                    self._linear(part.attention.linear[2], [sublayer.out])

    def _self_attention(self, spec: Any, attention: SelfAttention) -> None:
        node, layer = attention.heads, attention.heads.layer
        assert isinstance(layer, SelfAttentionLayer)
        size, out = layer.total_key_dim, node.output.dim
        inputs = self._param(node, "QKV")
        if not size == out == len(inputs):
            raise Unfit(node, "has keys of %d, values of %s and inputs of %d features, not the same" % (
                size, out, len(inputs)))  # fmt: skip
        by_head = inputs.reshape(size, layer.num_heads, 3, size // layer.num_heads)
        spec.linear[0].weight = np.ascontiguousarray(by_head.transpose(2, 1, 3, 0).reshape(3 * size, size))

        if attention.distances is not None:
            spec.relative_position_keys = table = self._distances(attention.distances)
            spec.relative_position_values = np.zeros_like(table)

    def _distances(self, node: Node) -> Floats:
        """Return the vectors of distances, [2 clipping + 1, features of a head]."""
        layer = node.layer
        assert isinstance(layer, RelativePositionalEncodingLayer)
        if not layer.fixed:
            return self._param(node, "encoding_matrix")
        size = node.output.dim
        assert size is not None
        found: Floats = sinusoids(tf.range(2 * layer.clipping + 1), size, "float32").numpy()
        return found

    def _cross_attention(self, spec: Any, attention: CrossAttention) -> None:
        self._linear(spec.linear[0], [attention.query])
        self._linear(spec.linear[1], [attention.key, attention.value])
        size = attention.query.output.dim
        assert size is not None
        if abs(attention.scale - (size / attention.num_heads) ** -0.5) > 1e-6:
            spec.queries_scale = np.dtype("float32").type(attention.scale)

    def _linear(self, spec: Any, nodes: Sequence[Node]) -> None:
        """Set the matrix [outputs, inputs] and the bias of linear layers side by side."""
        spec.weight = np.ascontiguousarray(np.concatenate([self._weight(node) for node in nodes]))
        biases = [self._bias(node) for node in nodes]
        if any(bias is not None for bias in biases):
            sizes = [len(self._weight(node)) for node in nodes]
            spec.bias = np.concatenate(
                [np.zeros(n, "float32") if bias is None else bias for n, bias in zip(sizes, biases)]
            )

    def _norm(self, spec: Any, node: Node) -> None:
        layer = node.layer
        assert isinstance(layer, LayerNormLayer)
        self._epsilons.setdefault(layer.epsilon, node)
        spec.gamma, spec.beta = self._param(node, "scale"), self._param(node, "bias")

    def _epsilon(self) -> float:
        if len(self._epsilons) > 1:
            (_, first), (epsilon, other), *_ = self._epsilons.items()
            raise Unfit(other, "has the epsilon %g, another one than the layer %r" % (epsilon, first.path))
        return next(iter(self._epsilons))

    def _activation(self, *stacks: Stack) -> Any:
        """Return the value of the package for the activation of all stacks."""
        bodies = [each.body for stack in stacks for each in stack.sublayers if isinstance(each.body, FeedForward)]
        for body in bodies:
            if body.activation not in _ACTIVATIONS or body.activation != bodies[0].activation:
                raise Unfit(body.inner, "has the activation %r; all must have the same, one of %s" % (
                    body.activation, ", ".join(_ACTIVATIONS)))  # fmt: skip
        return getattr(self._specs.Activation, _ACTIVATIONS[bodies[0].activation])

    def _weight(self, node: Node) -> Floats:
        """Return the matrix of a linear layer, [outputs, inputs]."""
        layer, weight = node.layer, self._param(node, "W")
        assert isinstance(layer, LinearLayer)
        return weight if layer.use_transposed_weights else np.ascontiguousarray(weight.T)

    def _bias(self, node: Node) -> Optional[Floats]:
        assert isinstance(node.layer, LinearLayer)
        return self._param(node, "b") if node.layer.with_bias else None

    def _param(self, node: Node, name: str) -> Floats:
        return np.asarray(self._params[node.params[name].name], "float32")


def _options(stack: Stack) -> dict[str, Any]:
    """Return options of the specification of a stack."""
    return {
        "pre_norm": stack.pre_norm, "no_final_norm": stack.last_norm is None, "relative_position": stack.is_relative,
    }  # fmt: skip


def _layers(stack: Stack, bodies: Sequence[type]) -> list[Sequence[Sublayer]]:
    """Return the sublayers of each layer of a stack.

    :param bodies: their kinds in order
    """
    for index, sublayer in enumerate(stack.sublayers):
        if not isinstance(sublayer.body, bodies[index % len(bodies)]):
            order = "self-attention, attention to the encoder" if CrossAttention in bodies else "self-attention"
            raise Unfit(sublayer.out, "ends a sublayer in another order than %s, feed-forward" % order)
    if len(stack.sublayers) % len(bodies):
        raise Unfit(stack.sublayers[-1].out, "ends the last sublayer, but the last layer is not whole")
    return [stack.sublayers[i : i + len(bodies)] for i in range(0, len(stack.sublayers), len(bodies))]


def _num_heads(sublayers: Sequence[Sublayer]) -> int:
    numbers: dict[int, Node] = {}
    for sublayer in sublayers:
        if isinstance(sublayer.body, CrossAttention):
            numbers.setdefault(sublayer.body.num_heads, sublayer.body.query)
        elif isinstance(sublayer.body, SelfAttention):
            layer = sublayer.body.heads.layer
            assert isinstance(layer, SelfAttentionLayer)
            numbers.setdefault(layer.num_heads, sublayer.body.heads)
    if len(numbers) > 1:
        (_, first), (number, other), *_ = numbers.items()
        raise Unfit(other, "has %d heads, another number than the layer %r" % (number, first.path))
    if not numbers:
        raise ExportError("export to ctranslate2: the network has no attention.")
    return next(iter(numbers))
