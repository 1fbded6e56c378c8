"""`CTranslate2Exporter`: a Transformer as CTranslate2 loads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.compiler.requested import with_outputs
from returnn_tf.config.errors import ExportDataError, ExportError
from returnn_tf.config.options import at_least, option
from returnn_tf.engine.data.label_names import LabelNames
from returnn_tf.engine.decoding.posteriors import log_posteriors
from returnn_tf.engine.search.end_labels import end_labels
from returnn_tf.export.ctranslate2.labels import WHERE, tokens_of, unknown_of
from returnn_tf.export.ctranslate2.language_model import LanguageModel, save
from returnn_tf.export.ctranslate2.packages import package
from returnn_tf.export.ctranslate2.spec import SpecBuilder
from returnn_tf.export.ctranslate2.structure import CrossAttention, Stack, Unfit, stack_of
from returnn_tf.export.exporters import Exporter, register_exporter
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.tensor_info import VALUE, graph_name
from returnn_tf.graph.layer import Node
from returnn_tf.layers.math.linear import SoftmaxLayer
from returnn_tf.layers.search.choice import ChoiceLayer
from returnn_tf.layers.search.decide import DecideLayer
from returnn_tf.layers.shape.reinterpret import ReinterpretDataLayer
from returnn_tf.loops.nodes import PrevLayer
from returnn_tf.ops.frames.positions import sinusoids
from returnn_tf.util.lazy_tf import tf

#: Options of `choice` that change which hypotheses win, with the values that CTranslate2's search has.
_SEARCH = {
    "prob_scale": 1.0, "base_beam_score_scale": 1.0, "random_sample_scale": 0.0, "custom_score_combine": None,
    "recombine": None, "cheating": False,
}  # fmt: skip
#: Sequences of the check: lengths of source and target.
_LENGTHS = ((7, 6), (2, 9), (11, 3))


@dataclass(frozen=True)
class _Model:
    """What a Transformer is in the plan.

    :param source: data key
    :param start, end: labels before the first word, and behind the last one
    """

    choice: Node
    projection: Node
    encoder: Stack
    decoder: Stack
    source: str
    start: int
    end: int


@register_exporter("ctranslate2")
class CTranslate2Exporter(Exporter):
    """CTranslate2: a Transformer for translation, or as a language model, fast on CPUs and GPUs."""

    forms = {}

    positions: int = option(1000, check=at_least(1), help="largest number of words of a source or a translation")
    end: Optional[str] = option(None, help="for a language model: the label that ends a text")

    @property
    def searches(self) -> bool:
        """Return whether the network is exported as it searches: all but language models."""
        return self.end is None

    @property
    def outputs_of_search(self) -> bool:
        """Return whether the network searches."""
        return self.searches

    def model(self, net: Network) -> InferenceModel:
        """Return the model, with the best hypothesis, all of the beam, or the posteriors of words as its output.

        :raises ConfigError: the network is no Transformer that CTranslate2 has; names the layer that differs
        """
        self._language_model = None if self.end is None else LanguageModel(net, self.outputs, self.end)
        if self._language_model is not None:
            return self._language_model.model
        nodes = InferenceModel(net, self.outputs).nodes
        nodes = [node for node in nodes if node.output.beam is not None or isinstance(node.layer, DecideLayer)]
        nodes.sort(key=lambda node: not isinstance(node.layer, DecideLayer))
        if not nodes:
            raise ExportError(WHERE + "no output has the labels of a search. Name another layer by --outputs.")
        self._found = _find(net, nodes[0])
        names = LabelNames(net.plan, net.config)
        source = net.extern_data[self._found.source].sparse_dim
        self._source = tokens_of(names, source, self._found.source)
        self._target = tokens_of(names, self._found.projection.output.feature_dim, self._found.choice.path)
        model = InferenceModel(net, [nodes[0].path])
        self._outputs = model.outputs
        return model

    def write(self, model: InferenceModel, folder: str) -> None:
        """Write ``model.bin``, ``config.json`` and the vocabularies."""
        if self._language_model is not None:
            self._language_model.write(folder, self._sinusoids(self._language_model.size))
            return
        found, specs = self._found, package().specs
        size = found.encoder.embedding.words.output.dim
        assert size is not None
        spec = SpecBuilder(specs, model.net.get_param_values(), self._sinusoids(size)).transformer(
            found.encoder, found.decoder, found.projection
        )
        spec.register_source_vocabulary(self._source)
        spec.register_target_vocabulary(self._target)
        start, end = self._target[found.start], self._target[found.end]
        unknown = unknown_of(self._target, end)
        settings = {"decoder_start_token": start, "bos_token": start, "eos_token": end, "unk_token": unknown}
        for name, value in settings.items():
            spec.config.add_attribute(name, value)
        save(spec, folder)
        self.facts.update(**self._search())

    def _sinusoids(self, size: int) -> NDArray[np.float32]:
        """Return the encodings of all positions, [positions, size]."""
        found: NDArray[np.float32] = sinusoids(tf.range(self.positions), size, "float32").numpy()
        return found

    def _search(self) -> dict[str, Any]:
        """Return the options of the package's search that are nearest to ours.

        By default it ends with as many ended hypotheses as the beam has, however bad they are; ours goes on.
        """
        layer = self._found.choice.layer
        assert isinstance(layer, ChoiceLayer)
        penalty = layer.length_normalization_exponent if layer.length_normalization else 0.0
        return {
            "beam_size": layer.beam_size, "length_penalty": float(penalty), "min_decoding_length": 0, "patience": 4.0,
        }  # fmt: skip

    def run(self, folder: str, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Translate by the package, and return the hypotheses of each sequence, without their ends; or posteriors."""
        if self._language_model is not None:
            return self._language_model.run(folder, feed)
        key = graph_name(self._found.source)
        sources = _cut(feed[key], feed[key + "_size0"])
        ((name, beam),) = ((name, info.beam or 1) for name, info in self._outputs.items() if info.kind == VALUE)
        results = _translator(folder).translate_batch(
            [[self._source[label] for label in labels] for labels in sources],
            num_hypotheses=beam, return_scores=True, max_decoding_length=self.positions, **self._search(),
        )  # fmt: skip
        index = {token: label for label, token in enumerate(self._target)}
        scores = np.full([len(results), beam], -np.inf, "float32")
        hypotheses: list[list[int]] = []
        for row, result in zip(scores, results):
            row[: len(result.scores)] = result.scores
            found = [[index[token] for token in tokens] for tokens in result.hypotheses]
            hypotheses += found + [[]] * (beam - len(found))
        lengths = np.array(list(map(len, hypotheses)), "int32")
        labels = np.zeros([len(hypotheses), lengths.max(initial=0)], "int32")
        for target, hypothesis in zip(labels, hypotheses):
            target[: len(hypothesis)] = hypothesis
        return {name: labels, name + "_size0": lengths, name + "_scores": scores}

    def check(self, model: InferenceModel, folder: str) -> None:
        """Compare the scores of words of random translations, or texts, with those of the network.

        :raises DataError: they differ
        """
        if self._language_model is not None:
            self._language_model.check(folder)
            return
        found, rng = self._found, np.random.RandomState(1)
        words = [label for label in range(len(self._target)) if label != found.end]
        sources = [rng.randint(0, len(self._source), length) for length, _ in _LENGTHS]
        given = [rng.choice(words, length) for _, length in _LENGTHS]
        targets, expected = self._scores(model.net, sources, given)
        results = _translator(folder).score_batch(
            [[self._source[label] for label in labels] for labels in sources],
            [[self._target[label] for label in labels[:-1]] for labels in targets],
        )
        for number, (wanted, result) in enumerate(zip(expected, results)):
            got = np.asarray(result.log_probs, "float32")
            if got.shape != wanted.shape or not np.allclose(got, wanted, rtol=1e-3, atol=1e-3):
                raise ExportDataError(
                    "The export to ctranslate2 does not compute what the network does, so nothing was written: the log "
                    "probabilities of the words of translation %d are %s, but %s is right." % (number, got, wanted)
                )

    def _scores(
        self, net: Network, sources: Sequence[NDArray[Any]], words: Sequence[NDArray[Any]]
    ) -> tuple[list[NDArray[Any]], list[NDArray[np.float32]]]:
        """Return translations with their ends, and the log probabilities of their labels by the network.

        :param words: the translations without
        :raises ConfigError: the network needs other data than source and target
        """
        found = self._found
        config = with_outputs(net.config, [found.projection.path])
        plain = Network(plan_from_config(config), config, seed=net.seed)
        plain.set_param_values({name: v for name, v in net.get_param_values().items() if name in plain.params})
        # without search, the choice follows the target: a data key, or a layer that adds the end to one
        ((target,),) = (node.deps for node in plain.plan.all_nodes() if isinstance(node.layer, ChoiceLayer))
        while isinstance(target.layer, ReinterpretDataLayer):
            (target,) = target.sources
        is_key = target.extern_key is not None
        paths = [found.projection.path, *([] if is_key else [target.path])]
        model = InferenceModel(plain, paths)
        others = [key for key in model.keys if key != found.source]
        if len(others) != 1:
            raise Unfit(found.projection, "needs the data %s beside the source" % ", ".join(map(repr, others)))
        targets = [np.append(seq, found.end) for seq in words]
        feed: dict[str, NDArray[Any]] = {}
        for key, seqs in ((found.source, sources), (others[0], targets if is_key else words)):
            lengths = np.array(list(map(len, seqs)), "int32")
            feed[graph_name(key)] = np.stack([np.pad(seq, (0, max(lengths) - len(seq))) for seq in seqs])
            feed[graph_name(key) + "_size0"] = lengths
        values = model.expected(feed)
        if not is_key:
            name = graph_name(target.path)
            targets = _cut(values[name], values[name + "_size0"])
            if any(len(seq) < 1 or seq[-1] != found.end for seq in targets):
                raise Unfit(found.choice, "has a target that does not end with label %d" % found.end)
        where = "Layer %r" % found.projection.path
        rows = [log_posteriors(row[: len(seq)], where) for row, seq in zip(values[graph_name(paths[0])], targets)]
        return targets, [np.take_along_axis(row, seq[:, None], axis=1)[:, 0] for row, seq in zip(rows, targets)]


def _find(net: Network, best: Node) -> _Model:
    """Find the Transformer in a plan.

    :param best: the layer with the best hypothesis
    :raises ConfigError: names the layer that does not fit
    """
    choices = [node for node in net.plan.all_nodes() if isinstance(node.layer, ChoiceLayer)]
    if len(choices) != 1:
        raise ExportError(WHERE + "the network has %d layers of class 'choice', but needs one." % len(choices))
    (choice,) = choices
    layer = choice.layer
    assert isinstance(layer, ChoiceLayer)
    changed = [name for name, value in _SEARCH.items() if getattr(layer, name) != value]
    if changed or len(choice.sources) != 1:
        raise Unfit(choice, "has the option %s" % changed[0] if changed else "has several sources")
    (projection,) = choice.sources
    if not isinstance(projection.layer, SoftmaxLayer) or len(projection.sources) != 1:
        raise Unfit(projection, "is no softmax over labels, of one source")
    decoder = stack_of(projection.sources[0])
    if not isinstance(decoder.embedding.labels.layer, PrevLayer):
        raise Unfit(decoder.embedding.labels, "is not the label before, such as 'prev:output'")
    memories = {each.body.memory: None for each in decoder.sublayers if isinstance(each.body, CrossAttention)}
    if len(memories) != 1:
        raise Unfit(projection, "comes from a decoder with attention to %d encoders" % len(memories))
    encoder = stack_of(next(iter(memories)))
    source = encoder.embedding.labels.extern_key
    if source is None:
        raise Unfit(encoder.embedding.labels, "is no input of the network")
    start = 0 if layer.initial_output in (None, "zeros") else layer.initial_output
    ends = sorted(end_labels(net.plan, best, choice.output))
    if not isinstance(start, int) or len(ends) != 1:
        raise Unfit(choice, "has no label of its own for %s" % ("the end" if isinstance(start, int) else "the start"))
    return _Model(choice, projection, encoder, decoder, source, start, ends[0])


def _cut(value: NDArray[Any], lengths: NDArray[Any]) -> list[NDArray[Any]]:
    return [row[:length] for row, length in zip(value, lengths)]


def _translator(folder: str) -> Any:
    return package().Translator(folder, device="cpu", compute_type="float32")
