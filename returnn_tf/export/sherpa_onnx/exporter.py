"""`SherpaOnnxExporter`: a model of CTC that sherpa-onnx loads and feeds with features of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import ExportDataError, ExportError
from returnn_tf.config.options import option
from returnn_tf.engine.data.label_names import LabelNames
from returnn_tf.engine.decoding.greedy import GreedyDecoder
from returnn_tf.engine.decoding.posteriors import log_posteriors
from returnn_tf.engine.search.times import input_frames
from returnn_tf.export.exporters import Exporter, register_exporter
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.onnx.exporter import FILE, OPSETS
from returnn_tf.export.onnx.packages import packages
from returnn_tf.export.onnx.session import Session
from returnn_tf.export.onnx.write import write_network
from returnn_tf.export.sherpa_onnx.features import ServerFeatures
from returnn_tf.export.sherpa_onnx.process import recognise
from returnn_tf.export.sherpa_onnx.tokens import token_symbols, write_tokens
from returnn_tf.export.tensor_info import graph_name
from returnn_tf.graph.layer import Node
from returnn_tf.ops.activations import safe_log

TOKENS = "tokens.txt"
_WHERE = "export to sherpa-onnx: "
_INPUTS, _OUTPUTS = ("x", "x_lens"), ("log_probs", "log_probs_len")
#: Sequences of noise of which the check takes those whose labels are the clearest, and seconds of each.
_CANDIDATES, _CHECKED, _SECONDS = 8, 2, 2.0


@register_exporter("sherpa-onnx")
class SherpaOnnxExporter(Exporter):
    """sherpa-onnx: a model of CTC as its "WeNet CTC", with tokens.txt, for its servers and apps."""

    forms = {}

    opset: int = option(17, help="version of the operators: %d to %d" % (OPSETS[0], OPSETS[-1]), choices=OPSETS)

    def model(self, net: Network) -> InferenceModel:
        """Return the model, with posteriors of CTC as its output.

        :raises ConfigError: there is no such layer or several, or the network has not features as its one input
        """
        self._features = ServerFeatures.of(net.config)
        self._names = LabelNames(net.plan, net.config)
        nodes = InferenceModel(net, self.outputs).nodes
        found = [node for node in nodes if self._blank(node) is not None]
        if len(found) != 1:
            raise ExportError(
                "%s%s. Name one by --outputs." % (
                    _WHERE,
                    "the layers %s all have posteriors of CTC" % ", ".join(repr(node.path) for node in found) if found
                    else "none of the layers %s has posteriors [B, T, labels] of a loss of CTC with a blank"
                    % ", ".join(repr(node.path) for node in nodes),
                )
            )  # fmt: skip
        model = InferenceModel(net, [found[0].path])
        dim = net.extern_data[model.keys[0]].feature_dim if len(model.keys) == 1 else None
        if dim is None or dim.size != self._features.audio.dim or len(model.input_infos) != 2:
            raise ExportError(
                "%sthe network must have the %d features of the dataset as its only input, but the layer %r needs %s."
                % (_WHERE, self._features.audio.dim, found[0].path, ", ".join(map(repr, model.keys)) or "nothing")
            )
        model.widen_integers()
        return model

    def _blank(self, node: Node) -> Any:
        """Return the index of the blank if these are posteriors by frame, or None."""
        data = node.output
        if data.sparse or data.feature_dim is None or data.rank != 3 or data.time_dim is None or data.beam is not None:
            return None
        return self._names.blank(data.feature_dim)

    def write(self, model: InferenceModel, folder: str) -> None:
        """Write the model and the symbols."""
        packages()
        (node,) = model.nodes
        blank, dim = self._blank(node), node.output.feature_dim
        assert blank is not None and dim is not None and dim.size is not None
        self._symbols = token_symbols(self._names.names(dim), dim.size, blank)
        write_tokens(os.path.join(folder, TOKENS), self._symbols)
        sample = model.sample(batch=1, frames=960)
        (feature_name, length_name), value = list(model.input_infos), graph_name(node.path)
        expected = model.expected(sample)
        # decided as for every decoder: from the values
        log_posteriors(expected[value][0], "Layer %r" % node.path)
        self._is_log = bool(expected[value].min() < 0)
        ratio = input_frames(960, int(expected[value + "_size0"][0]))
        if ratio != int(ratio):
            raise ExportError(
                "%sa frame of the layer %r has to stand for a whole number of frames of the input, but 960 frames give "
                "%d." % (_WHERE, node.path, expected[value + "_size0"][0])
            )
        self._names_in_file = dict(zip([feature_name, length_name, value, value + "_size0"], _INPUTS + _OUTPUTS))

        def emit(inputs: Mapping[str, Any]) -> dict[str, Any]:
            values = model.emit({**inputs, feature_name: self._features.of_network(inputs[feature_name])})
            return values if self._is_log else {**values, value: safe_log(values[value])}

        metadata = {"model_type": "wenet_ctc", "version": 1, "subsampling_factor": int(ratio), "vocab_size": dim.size}
        write_network(
            model, os.path.join(folder, FILE), opset=self.opset, names=self._names_in_file, metadata=metadata, emit=emit
        )
        self.input_tensors = {name: self._names_in_file[name] for name in model.input_infos}
        self.output_tensors = {name: self._names_in_file[name] for name in model.outputs}
        self.facts.update(
            graph=FILE, opset=self.opset, tokens=TOKENS, sample_rate=self._features.sample_rate,
            feature_dim=self._features.audio.dim, metadata=metadata,
        )  # fmt: skip

    def largest_difference(self) -> float:
        """Return the tolerance: larger, as features that are converted in the graph are rounded once more."""
        return 1e-4

    def samples(self, model: InferenceModel) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield inputs of two sizes, as a converter may take a size of the first for a constant."""
        for sample in (model.sample(), model.sample(seed=2, batch=2, frames=21)):
            feature_name = next(iter(model.input_infos))
            yield {**sample, feature_name: self._features.possible(sample[feature_name])}

    def run(self, folder: str, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the file by onnxruntime on inputs of the network; return values as it computes them."""
        names = self._names_in_file
        given = {names[name]: value for name, value in feed.items()}
        given["x"] = self._features.of_server(given["x"])
        got = Session(os.path.join(folder, FILE)).run(given)
        values = {name: got[tensor] for name, tensor in self.output_tensors.items()}
        if not self._is_log:
            value = next(name for name, tensor in self.output_tensors.items() if tensor == "log_probs")
            values[value] = np.exp(values[value])
        return values

    def check(self, model: InferenceModel, folder: str) -> None:
        """Compare the file with the network, and what sherpa-onnx recognises in audio with the labels of the network.

        :raises DataError: they differ
        """
        super().check(model, folder)
        samples, expected = self._clear_audio(model)
        found = recognise(folder, samples, self._features.sample_rate, self._features.audio.dim)
        wanted = [[_shown(self._symbols[label]) for label in labels] for labels in expected]
        if [list(map(_shown, symbols)) for symbols in found] != wanted:
            raise ExportDataError(
                "The export to sherpa-onnx does not recognise what the network does, so nothing was written: %r, but "
                "%r is right." % (found, wanted)
            )

    def _clear_audio(self, model: InferenceModel) -> tuple[list[NDArray[np.float32]], list[list[int]]]:
        """Return audio for which the network's best labels are far from the second best ones, and its labels."""
        (node,) = model.nodes
        value, rate = graph_name(node.path), self._features.sample_rate
        feature_name, length_name = model.input_infos
        ranked = []
        for seed in range(_CANDIDATES):
            rng = np.random.RandomState(seed)
            audio = _sound(rng, int(_SECONDS * rate), rate)
            features = self._features.audio.extract(audio, rate, rng=rng, seq_name="check")
            outputs = model.expected({feature_name: features[None], length_name: np.array([len(features)])})
            scores = log_posteriors(outputs[value][0, : outputs[value + "_size0"][0]], "Layer %r" % node.path)
            best = np.sort(scores, axis=1)
            labels = list(GreedyDecoder(scores.shape[1], self._blank(node)).decode(scores)[0].labels)
            ranked.append((bool(labels), float((best[:, -1] - best[:, -2]).min()), seed, audio, labels))
        ranked.sort(key=lambda entry: entry[:3], reverse=True)
        return [entry[3] for entry in ranked[:_CHECKED]], [entry[4] for entry in ranked[:_CHECKED]]


def _shown(symbol: str) -> str:
    return symbol.replace("\u2581", " ")


def _sound(rng: np.random.RandomState, count: int, rate: int) -> NDArray[np.float32]:
    """Return harmonics of a gliding pitch whose loudness varies, with noise: [samples] from -1 to 1."""
    time = np.arange(count) / rate
    phase = (
        2 * np.pi * np.cumsum(rng.uniform(90, 250) * (1 + 0.3 * np.sin(2 * np.pi * rng.uniform(0.5, 3) * time))) / rate
    )
    voiced = sum(np.sin(k * phase) * rng.uniform(0, 1) for k in range(1, 12)) * (
        0.5 + 0.5 * np.sin(2 * np.pi * 4 * time)
    )
    result: NDArray[np.float32] = (0.05 * voiced + 0.01 * rng.normal(size=count)).astype("float32")
    return result
