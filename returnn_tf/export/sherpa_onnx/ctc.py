"""A network with CTC as one of sherpa-onnx' models of WeNet: for whole recordings, or for streams."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import ExportError
from returnn_tf.engine.data.label_names import LabelNames
from returnn_tf.engine.decoding.greedy import GreedyDecoder
from returnn_tf.engine.decoding.posteriors import log_posteriors
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.onnx.session import Session
from returnn_tf.export.onnx.write import write_function, write_network
from returnn_tf.export.sherpa_onnx.features import ServerFeatures
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
from returnn_tf.export.tensor_info import graph_name
from returnn_tf.graph.layer import Node
from returnn_tf.ops.activations import safe_log
from returnn_tf.util.lazy_tf import tf

FILE = "model.onnx"
_INPUTS, _OUTPUTS = ("x", "x_lens"), ("log_probs", "log_probs_len")


class ServedCtc(Served):
    """A network with CTC for whole recordings.

    :param outputs: path of the layer with the posteriors; default: the one that has some
    :raises ConfigError: there is no such layer or several, or the network has not features as its one input
    """

    def __init__(self, net: Network, outputs: Sequence[str]) -> None:
        super().__init__(ServerFeatures.of(net.config, integers=True))
        self._names = LabelNames(net.plan, net.config)
        nodes = InferenceModel(net, outputs).nodes
        found = [node for node in nodes if self._blank(node) is not None]
        if len(found) != 1:
            raise ExportError(
                "%s%s. Name one by --outputs." % (
                    WHERE,
                    "the layers %s all have posteriors of CTC" % ", ".join(repr(node.path) for node in found) if found
                    else "none of the layers %s has posteriors [B, T, labels] of a loss of CTC with a blank"
                    % ", ".join(repr(node.path) for node in nodes),
                )
            )  # fmt: skip
        self._node = found[0]
        self._value = graph_name(self._node.path)
        self.model = InferenceModel(net, [self._node.path])
        check_features(self.model, self.features, self._node)
        self.model.widen_integers()

    def _blank(self, node: Node) -> Optional[int]:
        """Return the index of the blank if these are posteriors by frame, or None."""
        data = node.output
        if data.sparse or data.feature_dim is None or data.rank != 3 or data.time_dim is None or data.beam is not None:
            return None
        return self._names.blank(data.feature_dim)

    def write(self, folder: str, opset: int) -> dict[str, Any]:
        """Write the model and the symbols."""
        blank, dim = self._blank(self._node), self._node.output.feature_dim
        assert blank is not None and dim is not None and dim.size is not None
        self.symbols = token_symbols(self._names.names(dim), dim.size, blank)
        self.write_tokens(folder)
        self._ratio = frames_of_output(self.model, self._node)
        values = self.model.expected(self.model.sample(batch=1))[self._value]
        log_posteriors(values[0], "Layer %r" % self._node.path)  # checks them
        self._is_log = bool(values.min() < 0)
        return self._write(os.path.join(folder, FILE), opset, dim.size)

    def _write(self, path: str, opset: int, labels: int) -> dict[str, Any]:
        (feature_name, length_name), value = list(self.model.input_infos), self._value
        names = dict(zip([feature_name, length_name, value, value + "_size0"], _INPUTS + _OUTPUTS))

        def emit(inputs: Mapping[str, Any]) -> dict[str, Any]:
            values = self.model.emit({**inputs, feature_name: self.features.of_network(inputs[feature_name])})
            return {**values, value: self._logs(values[value])}

        metadata = {"model_type": "wenet_ctc", "version": 1, "subsampling_factor": self._ratio, "vocab_size": labels}
        write_network(self.model, path, opset=opset, names=names, metadata=metadata, emit=emit)
        self.input_tensors = {name: names[name] for name in self.model.input_infos}
        self.output_tensors = {name: names[name] for name in self.model.outputs}
        return self.facts(metadata, graph=FILE, opset=opset)

    def _logs(self, values: Any) -> Any:
        return values if self._is_log else safe_log(values)

    def _as_network(self, logs: NDArray[Any]) -> NDArray[Any]:
        """Return values of the layer for those of the file."""
        return logs if self._is_log else np.exp(logs)

    def run(self, folder: str, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the file on inputs of the network; return values as it computes them."""
        feature_name, length_name = self.model.input_infos
        given = {"x": self.features.of_server(feed[feature_name]), "x_lens": feed[length_name].astype("int64")}
        got = Session(os.path.join(folder, FILE)).run(given)
        return {self._value: self._as_network(got["log_probs"]), self._value + "_size0": got["log_probs_len"]}

    def check_numbers(self, folder: str) -> None:
        """Compare the file with the network, for inputs of two sizes: a converter may take one for a constant."""
        for sample in (self.model.sample(), self.model.sample(seed=2, batch=2, frames=21)):
            name = next(iter(self.model.input_infos))
            feed = {**sample, name: self.features.possible(sample[name])}
            got, right = self.run(folder, feed), self.model.expected(feed)
            lengths = right[self._value + "_size0"]
            check_close("the number of frames", got[self._value + "_size0"], lengths)
            for row, length in enumerate(lengths):
                values = (each[self._value][row, :length] for each in (got, right))
                check_close("the output %r of sequence %d" % (self._value, row), *values)

    @property
    def recognizer(self) -> Recognizer:
        """Return the recogniser of whole recordings."""
        return Recognizer("OfflineRecognizer", "from_wenet_ctc", {"model": FILE, "tokens": TOKENS}, self._options)

    def best(self, features: NDArray[np.float32]) -> tuple[list[int], float]:
        """Return the labels of the best path."""
        outputs = self.model.expected(feed_of(self.model, features))
        values = outputs[self._value][0, : outputs[self._value + "_size0"][0]]
        scores = log_posteriors(values, "Layer %r" % self._node.path)
        ordered = np.sort(scores, axis=1)
        blank = self._blank(self._node)
        assert blank is not None
        labels = GreedyDecoder(scores.shape[1], blank).decode(scores)[0].labels
        return list(labels), float((ordered[:, -1] - ordered[:, -2]).min(initial=np.inf))


class ServedStreamingCtc(ServedCtc):
    """A network with CTC for streams.

    All states are one tensor, which the program keeps as the cache of WeNet's convolutions: that of one layer, whose
    channels are the values, with a kernel of 2. The cache of attention is not used.

    :param block: frames of the posteriors in a block
    """

    def __init__(self, net: Network, outputs: Sequence[str], block: int) -> None:
        super().__init__(net, outputs)
        self._block = block

    def _write(self, path: str, opset: int, labels: int) -> dict[str, Any]:
        frames = self._block * self._ratio
        self._blocks = blocks = BlockModel(self.model.net, [self._node.path], frames)
        size = blocks.size
        metadata = {
            "model_type": "wenet_ctc", "version": 1, "subsampling_factor": self._ratio, "vocab_size": labels, "head": 1,
            "num_blocks": 1, "output_size": size, "cnn_module_kernel": 2, "right_context": self._ratio - 1,
        }  # fmt: skip

        def emit(x: Any, _offset: Any, _cached: Any, attention: Any, states: Any, _mask: Any) -> dict[str, Any]:
            values, after = blocks.emit(self.features.of_network(x), tf.reshape(states, [1, size]))
            return {
                "log_probs": tf.ensure_shape(self._logs(values), [1, self._block, labels]),
                "next_att_cache": tf.identity(attention), "next_conv_cache": tf.reshape(after, [1, 1, size, 1]),
            }  # fmt: skip

        float32 = tf.float32
        specs = [
            tf.TensorSpec([1, frames, self.features.audio.dim], float32, name="x"),
            tf.TensorSpec([1], tf.int64, name="offset"),
            tf.TensorSpec([1], tf.int64, name="required_cache_size"),
            tf.TensorSpec([1, 1, None, None], float32, name="attn_cache"),
            tf.TensorSpec([1, 1, size, 1], float32, name="conv_cache"),
            tf.TensorSpec([1, 1, None], tf.bool, name="attn_mask"),
        ]
        write_function(emit, specs, path, plan=self.model.net.plan, opset=opset, metadata=metadata)
        return self.facts(metadata, graph=FILE, opset=opset, block=self._block)

    def run(self, folder: str, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the file block by block on the features of each sequence."""
        session = Session(os.path.join(folder, FILE))
        feature_name, length_name = self.model.input_infos
        rows = []
        for features, length in zip(feed[feature_name], feed[length_name]):
            states: NDArray[Any] = np.zeros([1, 1, self._blocks.size, 1], "float32")
            values = [np.zeros([0, len(self.symbols)], "float32")]
            for block in blocks_of(features[:length], self._blocks.frames):
                got = session.run({
                    "x": self.features.of_server(block)[None], "conv_cache": states, "offset": np.zeros([1], "int64"),
                    "required_cache_size": np.zeros([1], "int64"), "attn_mask": np.ones([1, 1, self._block], bool),
                    "attn_cache": np.zeros([1, 1, 0, 2], "float32"),
                })  # fmt: skip
                states = got["next_conv_cache"]
                values.append(got["log_probs"][0])
            rows.append(np.concatenate(values)[: -(-int(length) // self._ratio)])
        lengths = np.array(list(map(len, rows)))
        logs = np.stack([np.pad(row, ((0, max(lengths) - len(row)), (0, 0))) for row in rows])
        return {self._value: self._as_network(logs), self._value + "_size0": lengths}

    def check_numbers(self, folder: str) -> None:
        """Compare the file, block by block, with the network for whole sequences."""
        (name, _), frames = self.model.input_infos, self._blocks.frames
        sample = self.model.sample(batch=1, frames=3 * frames)[name][0]
        features = self.features.possible(sample)
        feed = feed_of(self.model, features)
        check_close(
            "the output %r" % self._value, self.run(folder, feed)[self._value], self.model.expected(feed)[self._value]
        )

    @property
    def recognizer(self) -> Recognizer:
        """Return the recogniser of streams."""
        return Recognizer(
            "OnlineRecognizer", "from_wenet_ctc", {"model": FILE, "tokens": TOKENS},
            {**self._options, "chunk_size": self._block, "num_left_chunks": 1},
        )  # fmt: skip

    def best(self, features: NDArray[np.float32]) -> tuple[list[int], float]:
        """Return the labels of the best path, of whole blocks with a frame behind, as the program waits for one."""
        frames = self._blocks.frames
        return super().best(features[: (len(features) - 1) // frames * frames])
