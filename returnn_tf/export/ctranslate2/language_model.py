"""A language model, a Transformer without encoder, as CTranslate2's `Generator` loads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import ExportDataError, ExportError, did_you_mean
from returnn_tf.engine.data.label_names import LabelNames
from returnn_tf.engine.decoding.posteriors import log_posteriors
from returnn_tf.export.ctranslate2.labels import WHERE, tokens_of, unknown_of
from returnn_tf.export.ctranslate2.packages import package
from returnn_tf.export.ctranslate2.spec import SpecBuilder
from returnn_tf.export.ctranslate2.structure import SelfAttention, Unfit, behind_copies, stack_of
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.tensor_info import graph_name
from returnn_tf.layers.attention.self_attention import SelfAttentionLayer
from returnn_tf.layers.math.linear import SoftmaxLayer

#: Lengths of the sequences of the check.
_LENGTHS = (7, 2, 11)


class LanguageModel:
    """A network that gives the posteriors of the next word for each word of a text.

    :param outputs: the layer with the posteriors; default: the output of the network
    :param end: the name of the label that ends a text
    :raises ConfigError: the network is no such model; names the layer that differs
    """

    def __init__(self, net: Network, outputs: Sequence[str], end: str) -> None:
        nodes = InferenceModel(net, outputs).nodes
        if len(nodes) != 1:
            raise ExportError(
                "%sa language model has one output, not %s. Name it by --outputs."
                % (WHERE, ", ".join(repr(node.path) for node in nodes))
            )
        (self._node,) = nodes
        self._projection = node = behind_copies(self._node)
        if not isinstance(node.layer, SoftmaxLayer) or len(node.sources) != 1 or node.output.beam is not None:
            raise Unfit(node, "is no softmax over labels, of one source")
        self._stack = stack_of(node.sources[0])
        for sublayer in self._stack.sublayers:
            layer = sublayer.body.heads.layer if isinstance(sublayer.body, SelfAttention) else None
            if isinstance(layer, SelfAttentionLayer) and not (layer.attention_left_only or layer.plan.in_loop):
                raise Unfit(sublayer.body.heads, "looks at later words. Set attention_left_only")
        labels = behind_copies(self._stack.embedding.labels)
        if labels.extern_key is None:
            raise Unfit(labels, "is no input of the network")
        self._source = labels.extern_key
        self.model = InferenceModel(net, [self._node.path])
        others = [key for key in self.model.keys if key != self._source]
        if others:
            raise Unfit(node, "needs the data %s beside the words" % ", ".join(map(repr, others)))
        names = LabelNames(net.plan, net.config)
        self._tokens = tokens_of(names, node.output.feature_dim, node.path)
        given = tokens_of(names, net.extern_data[self._source].sparse_dim, self._source)
        if given != self._tokens:
            raise Unfit(node, "gives other labels than those of the input %r" % self._source)
        if end not in self._tokens:
            raise ExportError("%send: there is no label %r. %s" % (WHERE, end, did_you_mean(end, self._tokens)))
        self._end = end

    def write(self, folder: str, positions: NDArray[np.float32]) -> None:
        """Write the model, its settings and the vocabulary.

        :param positions: [positions, features], added to embeddings
        """
        builder = SpecBuilder(package().specs, self.model.net.get_param_values(), positions)
        spec = builder.language_model(self._stack, self._projection)
        spec.register_vocabulary(self._tokens)
        unknown = unknown_of(self._tokens, self._end)
        for name, value in {"bos_token": self._end, "eos_token": self._end, "unk_token": unknown}.items():
            spec.config.add_attribute(name, value)
        save(spec, folder)

    @property
    def size(self) -> int:
        """Return the size of an embedding."""
        size = self._stack.embedding.words.output.dim
        assert size is not None
        return size

    def run(self, folder: str, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the posteriors by the package."""
        key = graph_name(self._source)
        lengths = feed[key + "_size0"]
        # a sequence without words as one with a word, which the lengths leave out
        texts = [[self._tokens[label] for label in row[: max(size, 1)]] for row, size in zip(feed[key], lengths)]
        generator = package().Generator(folder, device="cpu", compute_type="float32")
        logs = np.asarray(generator.forward_batch(texts, return_log_probs=True))
        name = graph_name(self._node.path)
        return {name: np.exp(logs), name + "_size0": lengths}

    def check(self, folder: str) -> None:
        """Compare the posteriors for random texts with those of the network.

        :raises DataError: they differ
        """
        rng, key, name = np.random.RandomState(1), graph_name(self._source), graph_name(self._node.path)
        labels = rng.randint(0, len(self._tokens), [len(_LENGTHS), max(_LENGTHS)]).astype("int32")
        feed = {key: labels, key + "_size0": np.array(_LENGTHS, "int32")}
        got, right = self.run(folder, feed)[name], self.model.expected(feed)[name]
        for number, size in enumerate(_LENGTHS):
            wanted, found = (log_posteriors(each[number, :size], "Layer %r" % self._node.path) for each in (right, got))
            if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=1e-3, atol=1e-3):
                raise ExportDataError(
                    "The export to ctranslate2 does not compute what the network does, so nothing was written: the log "
                    "probabilities of the words of text %d are %s, but %s is right." % (number, found, wanted)
                )


def save(spec: Any, folder: str) -> None:
    """Write a specification.

    :raises DataError: the package refuses it
    """
    try:
        spec.validate()
        spec.save(folder)
    except ValueError as exc:  # e.g. a matrix of another shape than the others imply
        raise ExportDataError(WHERE + "the package refuses the model: %s" % exc) from exc
