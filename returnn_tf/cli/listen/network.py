"""A network that computes block by block what it computes for whole sequences."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import ConfigError, SearchError, StepError
from returnn_tf.engine.search.times import input_frames
from returnn_tf.engine.support.step_errors import reason
from returnn_tf.export.streaming import StreamingModel
from returnn_tf.export.streaming_exporter import stream_fault
from returnn_tf.export.tensor_info import graph_name
from returnn_tf.util.lazy_tf import tf

#: Seconds of a block, if they are not chosen: a compromise of delay and computing time.
_SECONDS = 0.1
#: Frames from which is seen how many of them are one of the output; a multiple of all usual ratios.
_PROBE = 240

States = dict[str, Any]


class BlockNetwork:
    """Computes one layer block by block.

    :param net: the network
    :param path: of a layer [batch, time, labels]
    :param key: of the data
    :param frame_seconds: between frames of the data; None: unknown
    :param block: frames of a block; None: about 0.1 seconds
    :raises ConfigError: the layer depends on frames after the block; names what does
    """

    def __init__(
        self, net: Network, path: str, key: str, frame_seconds: Optional[float], block: Optional[int] = None
    ) -> None:
        self._path, self._input = path, graph_name(key)
        try:
            self._model = StreamingModel(net, [path])
        except ConfigError as exc:
            raise _refused(str(exc)) from exc
        info = self._model.outputs[graph_name(path)]
        self._feature, (self._lens,) = info.axes.index("F"), info.lengths.values()
        self._graph = self._model.trace()
        #: Frames of the data that are one of the output.
        self.ratio = self._find_ratio(_PROBE if block is None else 8 * block)
        #: Frames of a block.
        self.block = block or self._default_block(frame_seconds)
        fault = stream_fault(self._model, self.block)
        if fault is not None:
            raise _refused(
                "%s Blocks have %d frames of features (a layer that works by chunks needs multiples of those: "
                "--block N)." % (fault, self.block)
            )

    def _find_ratio(self, frames: int) -> float:
        spec = self._model.inputs[self._input]
        shape = [size or 1 for size in spec.shape[2:]]
        try:
            values, _ = self.step(np.zeros([frames, *shape], spec.dtype.as_numpy_dtype), self.begin())
        except StepError as exc:
            raise _refused("%s. A layer that works by chunks needs their number of frames: --block N." % exc) from exc
        return input_frames(frames, len(values))

    def _default_block(self, frame_seconds: Optional[float]) -> int:
        ratio = max(1, round(self.ratio))
        return ratio * max(1, round(_SECONDS / (ratio * (frame_seconds or 0.01))))

    def begin(self) -> States:
        """Return the state before the first block of a sequence."""
        return {name: tf.constant(value) for name, value in self._model.zero_states(1).items()}

    def step(self, frames: NDArray[Any], states: States) -> tuple[NDArray[Any], States]:
        """Compute a block; may be called by several threads at once.

        :param frames: [frames, ...]; a multiple of `block`, unless they are the last ones
        :param states: after the block before
        :return: values [frames, labels], and the states after the block
        :raises DataError: an op fails
        """
        lens = np.array([len(frames)], "int32")
        given = {self._input: tf.constant(frames[None]), self._input + "_size0": tf.constant(lens)}
        try:
            found = self._graph(**given, **states)
        except tf.errors.OpError as exc:
            raise StepError(
                "layer %r: a block of %d frames failed: %s" % (self._path, len(frames), reason(exc))
            ) from exc
        values = np.moveaxis(found[graph_name(self._path)].numpy(), self._feature, -1)
        count = int(found[self._lens].numpy()[0])
        return values[0, :count], {name: found[after] for name, after in self._model.states.items()}


def _refused(fault: str) -> SearchError:
    return SearchError(
        "listen: the model can't recognise audio while it comes: %s Layers that only look back, as LSTMs from left to "
        "right, can; or recognise whole files: returnn-tf transcribe" % fault
    )
