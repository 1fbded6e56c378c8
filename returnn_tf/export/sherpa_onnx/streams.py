"""`BlockModel`: layers as a function of a block of frames and of one tensor with all states, for streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import ExportError
from returnn_tf.export.sherpa_onnx.served import WHERE
from returnn_tf.export.streaming import StreamingModel
from returnn_tf.export.streaming_exporter import check_stream
from returnn_tf.export.tensor_info import graph_name
from returnn_tf.util.lazy_tf import tf


class BlockModel:
    """Layers for blocks of a number of frames of the one input.

    :param paths: of the layers; their values are put side by side
    :param frames: of a block
    :raises ConfigError: a layer can't go on from block to block, or its state grows; names it
    """

    def __init__(self, net: Network, paths: Sequence[str], frames: int) -> None:
        self._model = StreamingModel(net, paths)
        self.frames = frames
        for name in self._model.states:
            info = self._model.input_infos[name]
            if info.axes.count("B") != 1 or info.shape.count(None) != 1 or info.dtype == "string":
                raise ExportError(
                    "%sstreaming: the state of layer %r has the shape %s, but the states of a stream have to be of "
                    "a fixed size. E.g. limit the attention to a window." % (WHERE, info.layer, list(info.shape))
                )
        check_stream(self._model, frames)

    def _shape(self, name: str) -> list[int]:
        """Return the shape of a state of one stream."""
        return [size for size in self._model.input_infos[name].shape if size is not None]

    @property
    def size(self) -> int:
        """Return the number of values of all states of a stream."""
        return sum(int(np.prod(self._shape(name), dtype="int64")) for name in self._model.states)

    def emit(self, features: Any, states: Any) -> tuple[Any, Any]:
        """Emit the layers for a block, [batch, frames, size], and the states after it, [batch, size].

        :param features: of the network, [batch, frames, feature]
        :param states: of the block before, float32 [batch, size]; zeros for the first one
        """
        batch = tf.shape(features)[0]
        feature_name, length_name = list(self._model.input_infos)[:2]
        inputs = {feature_name: features, length_name: tf.fill([batch], self.frames), **self._unpacked(states)}
        found = self._model.emit(inputs)
        values = [found[graph_name(node.path)] for node in self._model.nodes]
        return tf.concat(values, axis=2), self._packed(found, batch)

    def _unpacked(self, states: Any) -> dict[str, Any]:
        found, start = {}, 0
        for name in self._model.states:
            info, shape = self._model.input_infos[name], self._shape(name)
            size = int(np.prod(shape, dtype="int64"))
            value = tf.reshape(states[:, start : start + size], [-1, *shape])
            start += size
            axis = info.axes.index("B")
            rest = range(1, len(info.axes))
            value = tf.transpose(value, [*rest[:axis], 0, *rest[axis:]])
            found[name] = value > 0.5 if info.dtype == "bool" else tf.cast(value, info.dtype)
        return found

    def _packed(self, found: Mapping[str, Any], batch: Any) -> Any:
        parts = []
        for name, after in self._model.states.items():
            info, size = self._model.input_infos[name], int(np.prod(self._shape(name), dtype="int64"))
            axis = info.axes.index("B")
            value = tf.transpose(found[after], [axis, *(i for i in range(len(info.axes)) if i != axis)])
            parts.append(tf.cast(tf.reshape(value, tf.stack([batch, size])), tf.float32))
        return tf.ensure_shape(tf.concat(parts, axis=1), [None, self.size])


def blocks_of(features: NDArray[np.float32], frames: int) -> list[NDArray[np.float32]]:
    """Return features [time, feature] in blocks, the last one with zeros behind."""
    count = -(-len(features) // frames)
    padded = np.pad(features, ((0, count * frames - len(features)), (0, 0)))
    return [padded[start : start + frames] for start in range(0, len(padded), frames)]
