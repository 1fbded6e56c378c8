"""A transducer as sherpa-onnx has those of icefall: encoder, predictor of the last labels, joiner."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import ExportError
from returnn_tf.engine.data.label_names import LabelNames
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.onnx.session import Session
from returnn_tf.export.onnx.stateful.check import step_graphs
from returnn_tf.export.onnx.stateful.emission import StepFunctions
from returnn_tf.export.onnx.stateful.model import steps_network
from returnn_tf.export.onnx.write import write_function
from returnn_tf.export.sherpa_onnx.features import ServerFeatures
from returnn_tf.export.sherpa_onnx.predictor import TransducerSteps
from returnn_tf.export.sherpa_onnx.process import Recognizer
from returnn_tf.export.sherpa_onnx.served import (
    TOKENS,
    WHERE,
    Served,
    check_close,
    check_features,
    feed_of,
    frames_of_output,
)
from returnn_tf.export.sherpa_onnx.streams import BlockModel, blocks_of
from returnn_tf.export.sherpa_onnx.tokens import token_symbols
from returnn_tf.export.tensor_info import VALUE, graph_name
from returnn_tf.layers.search.choice import ChoiceLayer
from returnn_tf.layers.search.decide import DecideLayer
from returnn_tf.util.lazy_tf import tf

ENCODER, PREDICTOR, JOINER = "encoder.onnx", "decoder.onnx", "joiner.onnx"
#: Symbols that the program's search never chooses, and those written in their place.
_SYMBOLS = {"<unk>": "<UNK>"}
#: Options of `choice` that change which hypotheses win, with the values that the program's search has.
_SEARCH = {
    "prob_scale": 1.0, "base_beam_score_scale": 1.0, "random_sample_scale": 0.0, "custom_score_combine": None,
    "cheating": False,
}  # fmt: skip


class ServedTransducer(Served):
    """A transducer for whole recordings.

    In the files, the blank is label 0, as the program wants it; the others follow in their order.

    :param net: planned for search
    :param outputs: path of the layer of class `decide` with what the search finds; default: the one among the outputs
    :param layer: path of the loop
    :raises ConfigError: the network is no such transducer; names the layer that differs
    """

    def __init__(self, net: Network, outputs: Sequence[str], layer: str) -> None:
        super().__init__(ServerFeatures.of(net.config, integers=False))
        nodes = [node for node in InferenceModel(net, outputs).nodes if isinstance(node.layer, DecideLayer)]
        if len(nodes) != 1:
            raise ExportError(
                "%stransducer: %d outputs are of class 'decide'. Name the one with the labels by --outputs."
                % (WHERE, len(nodes))
            )
        where = "%stransducer %r" % (WHERE, layer)
        steps = steps_network(net, layer, where)
        names = LabelNames(net.plan, net.config)
        given = (steps.plan, steps.config, steps.stored_params, layer)
        self._whole = StepFunctions(*given, where=where, split=False)
        choice = self._whole.choice
        dim = next(node for node in net.plan.all_nodes() if node.path == choice.path).output.sparse_dim
        blank = None if dim is None else names.blank(dim)
        if dim is None or blank is None:
            raise ExportError("%s: the blank of layer %r is not known. Set its recombine_blank." % (where, choice.path))
        assert isinstance(choice.layer, ChoiceLayer)
        changed = [name for name, value in _SEARCH.items() if getattr(choice.layer, name) != value]
        if changed:
            raise ExportError(
                "%s: the layer %r has the option %s, which the program's search lacks. Remove it."
                % (where, choice.path, changed[0])
            )
        self._beam = choice.layer.beam_size
        self._steps = TransducerSteps(*given, where=where, blank=blank)
        self._order = [blank, *(label for label in range(self._steps.labels) if label != blank)]
        self._all_names = names.names(dim)
        self.model = InferenceModel(net, [nodes[0].path])
        self._encoder = InferenceModel(steps, [node.path for node in self._steps.packing.nodes])
        check_features(self._encoder, self.features, self._encoder.nodes[-1])
        self._ratio = frames_of_output(self._encoder, self._encoder.nodes[-1])

    # --- the files ---

    def write(self, folder: str, opset: int) -> dict[str, Any]:
        """Write the three models and the symbols."""
        steps, plan = self._steps, self._steps.parts.step.plan
        symbols = token_symbols(self._all_names, steps.labels, steps.blank)
        self.symbols = [_SYMBOLS.get(symbols[label], symbols[label]) for label in self._order]
        self.write_tokens(folder)
        order = np.array(self._order, "int32")
        width, size = steps.packing.width, steps.predicted_size

        def predict(y: Any) -> dict[str, Any]:
            return {
                "decoder_out": steps.predict(tf.gather(order, tf.maximum(y, 0)))
            }  # -1 stands before the first label

        def join(frame: Any, predicted: Any) -> dict[str, Any]:
            return {"logit": tf.gather(steps.join(frame, predicted), order, axis=1)}

        labels = {"context_size": steps.context, "vocab_size": steps.labels}
        vectors = [
            tf.TensorSpec([None, width], tf.float32, name="encoder_out"),
            tf.TensorSpec([None, size], tf.float32, name="decoder_out"),
        ]
        specs = [tf.TensorSpec([None, steps.context], tf.int64, name="y")]
        axes = {name: ["N", ""] for name in ("y", "encoder_out", "decoder_out", "logit")}
        options: dict[str, Any] = {"plan": plan, "opset": opset, "axes": axes}
        write_function(predict, specs, os.path.join(folder, PREDICTOR), metadata=labels, **options)
        write_function(join, vectors, os.path.join(folder, JOINER), metadata={"joiner_dim": width}, **options)
        metadata = self._write_encoder(os.path.join(folder, ENCODER), opset)
        files = {"encoder": ENCODER, "decoder": PREDICTOR, "joiner": JOINER}
        return self.facts({**metadata, **labels}, graphs=files, opset=opset, max_active_paths=self._beam)

    def _write_encoder(self, path: str, opset: int) -> dict[str, Any]:
        """Write the encoder, and return its metadata."""
        model = self._encoder
        model.pads_empty = True

        def encode(x: Any, x_lens: Any) -> dict[str, Any]:
            inputs = dict(zip(model.input_infos, (self.features.of_network(x), tf.cast(x_lens, tf.int32))))
            value, lengths = self._side_by_side(model.emit(inputs))
            return {"encoder_out": value, "encoder_out_lens": tf.cast(lengths, tf.int64)}

        specs = [
            tf.TensorSpec([None, None, self.features.audio.dim], tf.float32, name="x"),
            tf.TensorSpec([None], tf.int64, name="x_lens"),
        ]
        metadata = {"model_type": "conformer", "version": 1, "subsampling_factor": self._ratio}
        axes = {"x": ["N", "T", ""], "x_lens": ["N"], "encoder_out": ["N", "T_out", ""], "encoder_out_lens": ["N"]}
        plan = self._steps.parts.step.plan
        write_function(encode, specs, path, plan=plan, opset=opset, metadata=metadata, axes=axes)
        return metadata

    def _side_by_side(self, found: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the values of the encoder's layers, [batch, time, size], and their lengths, [batch]."""
        names = [graph_name(node.path) for node in self._encoder.nodes]
        values = [found[name] for name in names]
        return tf.concat(values, axis=2) if len(values) > 1 else values[0], found[names[0] + "_size0"]

    # --- running them ---

    def run(self, folder: str, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Search by onnxruntime as the program does, with the beam of the network."""
        search = _Search(folder, self._steps.context)
        found = [search.run(frames, self._beam) for frames in self._encoded(folder, feed)]
        lengths = np.array([len(labels) for labels, _ in found], "int32")
        labels = np.zeros([len(found), lengths.max(initial=0)], "int32")
        for row, (entries, _) in zip(labels, found):
            row[: len(entries)] = [self._order[entry] for entry in entries]
        ((name, _),) = ((name, info) for name, info in self.model.outputs.items() if info.kind == VALUE)
        scores = np.array([[score] for _, score in found], "float32")
        return {name: labels, name + "_size0": lengths, name + "_scores": scores}

    def _encoded(self, folder: str, feed: Mapping[str, NDArray[Any]]) -> Iterator[NDArray[np.float32]]:
        """Yield what the encoder gives for each sequence of a feed, [time, size]."""
        feature_name, length_name = self._encoder.input_infos
        given = {"x": self.features.of_server(feed[feature_name]), "x_lens": feed[length_name].astype("int64")}
        got = Session(os.path.join(folder, ENCODER)).run(given)
        for row, length in zip(got["encoder_out"], got["encoder_out_lens"]):
            yield row[:length]

    def _samples(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield inputs of two sizes, as a converter may take a size of the first for a constant."""
        yield self._encoder.sample()
        yield self._encoder.sample(seed=2, batch=2, frames=21)

    def check_numbers(self, folder: str) -> None:
        """Compare the encoder, and the scores of steps with random labels, with those of the network."""
        name, rng = next(iter(self._encoder.input_infos)), np.random.RandomState(1)
        begin, go_on = self._graphs
        search, blank = _Search(folder, self._steps.context), self._steps.blank
        for sample in self._samples():
            feed = {**sample, name: self.features.possible(sample[name])}
            right, lengths = map(np.asarray, self._side_by_side(self._encoder.expected(feed)))
            for row, length, got in zip(right, lengths, self._encoded(folder, feed)):
                check_close("the output of the encoder", got, row[:length])
            frames = right[0, : lengths[0]]
            given = [tf.constant(frames[None]), tf.constant(lengths[:1])]
            states = begin(*given)
            history: tuple[int, ...] = ()
            for step, frame in enumerate(frames):
                got = search.scores(frame, [history])[0]
                check_close("the score of step %d" % step, got, self._whole.scores(states).numpy()[0][self._order])
                label = blank if rng.randint(2) else rng.randint(self._steps.labels)
                history = history if label == blank else (*history, self._order.index(label))
                states = go_on(tf.constant([label], tf.int32), states, *given)

    @functools.cached_property
    def _graphs(self) -> tuple[Any, Any]:
        """Return the first step of the network and the step after a label as graphs."""
        return step_graphs(self._whole)

    @property
    def recognizer(self) -> Recognizer:
        """Return the recogniser of whole recordings."""
        return Recognizer("OfflineRecognizer", "from_transducer", _FILES, self._options)

    def best(self, features: NDArray[np.float32]) -> tuple[list[int], float]:
        """Return the labels of a search with a beam of 1, by the steps of the network."""
        values, lengths = self._side_by_side(self._encoder.expected(feed_of(self._encoder, features)))
        begin, go_on = self._graphs
        found, margin, states = [], np.inf, begin(values, lengths)
        for step in range(int(lengths[0])):
            scores = self._whole.scores(states).numpy()[0]
            best, label = np.sort(scores), int(scores.argmax())
            margin = min(margin, float(best[-1] - best[-2]))
            found += [] if label == self._steps.blank else [self._order.index(label)]
            if step < lengths[0] - 1:
                states = go_on(tf.constant([label], tf.int32), states, values, lengths)
        return found, margin


_FILES = {"encoder": ENCODER, "decoder": PREDICTOR, "joiner": JOINER, "tokens": TOKENS}


class ServedStreamingTransducer(ServedTransducer):
    """A transducer for streams, in the layout of icefall's LSTMs, all states of which are of a fixed size.

    All states are one tensor, which the program keeps as the outputs of one layer; its cells are not used.

    :param block: frames of the encoder in a block
    """

    def __init__(self, net: Network, outputs: Sequence[str], layer: str, block: int) -> None:
        super().__init__(net, outputs, layer)
        paths = [node.path for node in self._encoder.nodes]
        self._blocks = BlockModel(self._encoder.net, paths, block * self._ratio)

    def _write_encoder(self, path: str, opset: int) -> dict[str, Any]:
        blocks = self._blocks

        def encode(x: Any, states: Any, cells: Any) -> dict[str, Any]:
            value, after = blocks.emit(self.features.of_network(x), states[0])
            return {"encoder_out": value, "next_state0": after[None], "next_state1": tf.identity(cells)}

        specs = [
            tf.TensorSpec([None, blocks.frames, self.features.audio.dim], tf.float32, name="x"),
            tf.TensorSpec([1, None, blocks.size], tf.float32, name="state0"),
            tf.TensorSpec([1, None, 1], tf.float32, name="state1"),
        ]
        metadata = {
            "model_type": "lstm", "version": 1, "num_encoder_layers": 1, "d_model": blocks.size, "rnn_hidden_size": 1,
            "T": blocks.frames, "decode_chunk_len": blocks.frames, "subsampling_factor": self._ratio,
        }  # fmt: skip
        states = {name: ["", "N", ""] for name in ("state0", "state1", "next_state0", "next_state1")}
        axes = {"x": ["N", "", ""], "encoder_out": ["N", "T_out", ""], **states}
        plan = self._steps.parts.step.plan
        write_function(encode, specs, path, plan=plan, opset=opset, metadata=metadata, axes=axes)
        return metadata

    def _encoded(self, folder: str, feed: Mapping[str, NDArray[Any]]) -> Iterator[NDArray[np.float32]]:
        session = Session(os.path.join(folder, ENCODER))
        feature_name, length_name = self._encoder.input_infos
        for features, length in zip(feed[feature_name], feed[length_name]):
            state: NDArray[Any] = np.zeros([1, 1, self._blocks.size], "float32")
            values = [np.zeros([0, self._steps.packing.width], "float32")]
            for block in blocks_of(features[:length], self._blocks.frames):
                x = self.features.of_server(block)[None]
                got = session.run({"x": x, "state0": state, "state1": np.zeros([1, 1, 1], "float32")})
                state = got["next_state0"]
                values.append(got["encoder_out"][0])
            yield np.concatenate(values)[: -(-int(length) // self._ratio)]

    def _samples(self) -> Iterator[dict[str, NDArray[Any]]]:
        yield self._encoder.sample(batch=1, frames=3 * self._blocks.frames)
        yield self._encoder.sample(seed=2, batch=1, frames=2 * self._blocks.frames)

    @property
    def recognizer(self) -> Recognizer:
        """Return the recogniser of streams."""
        return Recognizer("OnlineRecognizer", "from_transducer", _FILES, self._options)

    def best(self, features: NDArray[np.float32]) -> tuple[list[int], float]:
        """Return the labels for whole blocks with a frame behind, as the program waits for one."""
        frames = self._blocks.frames
        return super().best(features[: (len(features) - 1) // frames * frames])


class _Search:
    """The program's search over frames of the encoder: a label or a blank per frame.

    Hypotheses with the same labels are one, with the sum of their probabilities. The best one in the end has the best
    score per label, where the labels before the first one count.

    :param context: labels that the predictor is given
    """

    def __init__(self, folder: str, context: int) -> None:
        self._predictor, self._joiner = (Session(os.path.join(folder, name)) for name in (PREDICTOR, JOINER))
        self._context = context
        self._known: dict[tuple[int, ...], NDArray[Any]] = {}

    def scores(self, frame: NDArray[Any], histories: Sequence[tuple[int, ...]]) -> NDArray[Any]:
        """Return the log probabilities of labels, [histories, labels].

        :param histories: of labels but blanks, in the order of the files
        """
        predicted = []
        for history in histories:
            last = (*[-1] * (self._context - 1), 0, *history)[-self._context :]
            if last not in self._known:
                self._known[last] = self._predictor.run({"y": np.array([last], "int64")})["decoder_out"]
            predicted.append(self._known[last])
        frames = np.repeat(frame[None], len(histories), axis=0)
        return self._joiner.run({"encoder_out": frames, "decoder_out": np.concatenate(predicted)})["logit"]

    def run(self, frames: NDArray[Any], beam: int) -> tuple[tuple[int, ...], float]:
        """Return the labels of the best hypothesis, and its score."""
        hypotheses: dict[tuple[int, ...], float] = {(): 0.0}
        for frame in frames:
            histories = list(hypotheses)
            scores = self.scores(frame, histories) + np.array(list(hypotheses.values()), "float32")[:, None]
            places = np.argsort(-scores, axis=None, kind="stable")[:beam]
            hypotheses = {}
            for row, label in zip(*np.unravel_index(places, scores.shape)):
                labels = (*histories[row], int(label)) if label else histories[row]
                hypotheses[labels] = float(np.logaddexp(hypotheses.get(labels, -np.inf), scores[row, label]))
        best = max(hypotheses, key=lambda labels: hypotheses[labels] / (len(labels) + self._context))
        return best, hypotheses[best]
