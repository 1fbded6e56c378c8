"""A network that computes block by block what it computes for whole sequences."""

from __future__ import annotations

import math
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.listen.outputs import StreamOutputs, Values
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
#: Bytes of states that grow with the frames.
_MOST_KEPT = 1 << 30


class BlockNetwork:
    """Computes layers block by block.

    :param net: the network
    :param outputs: the layers
    :param key: of the data
    :param frame_seconds: between frames of the data; None: unknown
    :param block: frames of a block; None: about 0.1 seconds
    :raises ConfigError: a layer depends on frames after the block; names it
    """

    def __init__(
        self,
        net: Network,
        outputs: StreamOutputs,
        key: str,
        frame_seconds: Optional[float],
        block: Optional[int] = None,
    ) -> None:
        self._outputs, self._input = outputs, graph_name(key)
        try:
            self.model = StreamingModel(net, outputs.paths, further=outputs.further)
        except ConfigError as exc:
            raise _refused(str(exc)) from exc
        self._graph = self.model.trace()
        infos = self.model.input_infos
        self._growing = [name for name in self.model.states if 0 in infos[name].first_shape]
        #: Frames of the data that are one of the outputs.
        self.ratio = self._find_ratio(_PROBE if block is None else 8 * block)
        #: Frames of a block.
        self.block = block or self._default_block(frame_seconds)
        fault = stream_fault(self.model, self.block)
        if fault is not None:
            raise _refused(
                "%s Blocks have %d frames of features (a layer that works by chunks needs multiples of those: "
                "--block N)." % (fault, self.block)
            )

    def _find_ratio(self, frames: int) -> float:
        spec = self.model.inputs[self._input]
        shape = [size or 1 for size in spec.shape[2:]]
        try:
            found, _ = self.step(np.zeros([frames, *shape], spec.dtype.as_numpy_dtype), self.begin())
        except StepError as exc:
            raise _refused("%s. A layer that works by chunks needs their number of frames: --block N." % exc) from exc
        return input_frames(frames, self._outputs.frames(found))

    def _default_block(self, frame_seconds: Optional[float]) -> int:
        ratio = max(1, round(self.ratio))
        return ratio * max(1, round(_SECONDS / (ratio * (frame_seconds or 0.01))))

    @property
    def held_back(self) -> int:
        """Return the frames that have to wait for others or the end: those of one frame of the outputs, or none."""
        return math.ceil(self.ratio) if self.model.waits_for_end else 0

    def begin(self) -> Values:
        """Return the states before the first block of a sequence."""
        return {name: tf.constant(value) for name, value in self.model.zero_states(1).items()}

    def step(self, frames: NDArray[Any], states: Values, *, ends: bool = False) -> tuple[Values, Values]:
        """Compute a block; may be called by several threads at once.

        :param frames: [frames, ...]; a multiple of `block`, unless they are the last ones
        :param states: after the block before
        :param ends: whether these frames are the last ones
        :return: tensors by name, and the states after the block
        :raises DataError: an op fails, or states have grown too large
        """
        lens = np.array([len(frames)], "int32")
        given = {self._input: tf.constant(frames[None]), self._input + "_size0": tf.constant(lens)}
        try:
            found = self._graph(**given, **(self.model.at_end(states) if ends else states))
        except tf.errors.OpError as exc:
            raise StepError(
                "layer %r: a block of %d frames failed: %s" % (self._outputs.paths[0], len(frames), reason(exc))
            ) from exc
        after = {name: found[after] for name, after in self.model.states.items()}
        self._check_size(after)
        return found, after

    def _check_size(self, states: Values) -> None:
        """Check that what layers keep of all frames so far is not too much.

        :raises DataError: it is
        """
        kept = sum(states[name].shape.num_elements() * states[name].dtype.size for name in self._growing)
        if kept > _MOST_KEPT:
            info = self.model.input_infos[self._growing[0]]
            frames = states[info.name].shape[info.first_shape.index(0)]
            raise StepError(
                "layer %r keeps all frames so far, since attention may go to all of them. After %d frames, such layers "
                "have more than %.3g GB. Let them see windows, or hear the audio in pieces"
                % (info.layer, frames, _MOST_KEPT / 2**30)
            )


def _refused(fault: str) -> SearchError:
    return SearchError(
        "listen: the model can't recognise audio while it comes: %s Layers that only look back, as LSTMs from left to "
        "right, can; or recognise whole files: returnn-tf transcribe" % fault
    )
