"""`Served`: a network as the files, the features and the symbols of one of the kinds of models that sherpa-onnx has."""

from __future__ import annotations

import abc
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ExportDataError, ExportError
from returnn_tf.engine.search.times import input_frames
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.sherpa_onnx.features import ServerFeatures
from returnn_tf.export.sherpa_onnx.process import Recognizer
from returnn_tf.export.sherpa_onnx.tokens import shown, write_tokens
from returnn_tf.export.tensor_info import graph_name
from returnn_tf.graph.layer import Node

TOKENS = "tokens.txt"
WHERE = "export to sherpa-onnx: "
#: Of numbers, relative to the largest one or to 1: features that are converted in the graph are rounded once more.
TOLERANCE = 1e-4
#: Sequences of noise of which the check takes those whose labels are the clearest, and seconds of each.
_CANDIDATES, _CHECKED, _SECONDS = 8, 2, 2.0


class Served(abc.ABC):
    """What is written, run and checked.

    :param features: that the server computes
    """

    #: The network, with the outputs by which error rates are compared.
    model: InferenceModel
    #: Of the labels, in the order of the program.
    symbols: Sequence[str]

    def __init__(self, features: ServerFeatures) -> None:
        self.features = features
        #: Tensors in the files by the names of the model's inputs and outputs, set by `write`.
        self.input_tensors: dict[str, str] = {}
        self.output_tensors: dict[str, str] = {}

    @abc.abstractmethod
    def write(self, folder: str, opset: int) -> dict[str, Any]:
        """Write the files, and return what the side file says about them.

        :raises ConfigError: ONNX can't express a layer
        """

    @abc.abstractmethod
    def run(self, folder: str, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the files by onnxruntime on inputs of the network; return its outputs."""

    @abc.abstractmethod
    def check_numbers(self, folder: str) -> None:
        """Compare the files with the network.

        :raises DataError: they differ
        """

    @property
    @abc.abstractmethod
    def recognizer(self) -> Recognizer:
        """Return how the package loads the files."""

    @abc.abstractmethod
    def best(self, features: NDArray[np.float32]) -> tuple[list[int], float]:
        """Return what the program has to find by the network, and by how much the labels of frames are the best ones.

        :param features: of the network, [time, feature]
        :return: entries of `symbols`; the least difference of log probabilities of the best and the next label
        """

    def write_tokens(self, folder: str) -> None:
        """Write the symbols."""
        write_tokens(os.path.join(folder, TOKENS), self.symbols)

    def check_audio(self, folder: str) -> None:
        """Compare what sherpa-onnx recognises in audio with the labels of the network.

        :raises DataError: they differ, or the package is missing
        """
        audio, expected = self._clear_audio()
        found = self.recognizer.recognise(folder, audio)
        wanted = [[shown(self.symbols[label]) for label in labels] for labels in expected]
        if [list(map(shown, symbols)) for symbols in found] != wanted:
            raise ExportDataError(
                "The export to sherpa-onnx does not recognise what the network does, so nothing was written: %r, but "
                "%r is right." % (found, wanted)
            )

    def _clear_audio(self) -> tuple[list[NDArray[np.float32]], list[list[int]]]:
        """Return audio for which the network's best labels are far from the second best ones, and its labels."""
        rate, ranked = self.features.sample_rate, []
        for seed in range(_CANDIDATES):
            rng = np.random.RandomState(seed)
            audio = _sound(rng, int(_SECONDS * rate), rate)
            labels, margin = self.best(self.features.audio.extract(audio, rate, rng=rng, seq_name="check"))
            ranked.append((bool(labels), margin, seed, audio, labels))
        ranked.sort(key=lambda entry: entry[:3], reverse=True)
        return [entry[3] for entry in ranked[:_CHECKED]], [entry[4] for entry in ranked[:_CHECKED]]

    def facts(self, metadata: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """Return entries of the side file."""
        features = {"sample_rate": self.features.sample_rate, "feature_dim": self.features.audio.dim}
        return {**more, "tokens": TOKENS, **features, "metadata": metadata}

    @property
    def _options(self) -> dict[str, Any]:
        """Return options of all recognisers."""
        return {"sample_rate": self.features.sample_rate, "feature_dim": self.features.audio.dim}


def feed_of(model: InferenceModel, features: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """Return the inputs of a model of features for one sequence, [time, feature]."""
    feature_name, length_name = model.input_infos
    return {feature_name: features[None], length_name: np.array([len(features)])}


def check_features(model: InferenceModel, features: ServerFeatures, node: Node) -> None:
    """Check that a layer needs nothing but the features of the server.

    :raises ConfigError: it does
    """
    dim = model.net.extern_data[model.keys[0]].feature_dim if len(model.keys) == 1 else None
    if dim is None or dim.size != features.audio.dim or len(model.input_infos) != 2:
        raise ExportError(
            "%sthe network must have the %d features of the dataset as its only input, but the layer %r needs %s."
            % (WHERE, features.audio.dim, node.path, ", ".join(map(repr, model.keys)) or "nothing")
        )


def frames_of_output(model: InferenceModel, node: Node) -> int:
    """Return how many frames of the input a frame of a layer stands for.

    :raises ConfigError: it is no whole number
    """
    found = int(model.expected(model.sample(batch=1, frames=960))[graph_name(node.path) + "_size0"][0])
    ratio = input_frames(960, found)
    if ratio != int(ratio):
        raise ExportError(
            "%sa frame of the layer %r has to stand for a whole number of frames of the input, but 960 frames give %d."
            % (WHERE, node.path, found)
        )
    return int(ratio)


def check_close(what: str, got: NDArray[Any], right: NDArray[Any]) -> None:
    """Compare numbers of a file with those of the network.

    :raises DataError: they differ by more than `TOLERANCE`
    """
    if got.shape != right.shape:
        text = "has the shape %s, but %s is right" % (list(got.shape), list(right.shape))
    else:
        off = np.abs(got - right)
        if (off <= TOLERANCE * max(1.0, float(np.abs(right).max(initial=0.0)))).all():
            return
        place = np.unravel_index(int(np.argmax(np.nan_to_num(off, nan=np.inf))), off.shape)
        text = "is %s at %s, but %s is right" % (got[place], [int(i) for i in place], right[place])
    raise ExportDataError(
        "The export to sherpa-onnx does not compute what the network does, so nothing was written: %s %s."
        % (what, text)
    )


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
