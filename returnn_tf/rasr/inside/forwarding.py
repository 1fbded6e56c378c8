"""The posteriors of a network for features of RASR, and the scores of its feature scorer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import Config
from returnn_tf.config.errors import RasrDataError, RasrError
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.datasets.core import safe_files
from returnn_tf.engine.passes.forwarder import Forwarder
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.rasr.inside.training import fed_dataset
from returnn_tf.rasr.settings import RasrSettings
from returnn_tf.tensor import SEQ_TAG


class ForwardingInRasr:
    """The network of a config with the parameters of a checkpoint.

    :param config: with the task forward, and ``epoch`` or ``load``
    :raises ConfigError: there is no such layer, or it does not give a vector for each frame
    """

    def __init__(self, config: Config):
        self.dataset = fed_dataset(config)
        net, _ = load_network(config)
        self.forwarder = Forwarder(net, TaskSettings(config).forward_output_layer)
        output = self.forwarder.output
        if output.rank != 3 or len(output.dynamic_axes) != 1 or output.dim is None:
            raise RasrError(
                "RASR needs a vector for each frame, but layer %r gives %s" % (self.forwarder.layer, output)
            )
        self.output_dim = int(output.dim)
        other = [key for key in self.forwarder.used_data_keys if key not in ("data", SEQ_TAG)]
        if other:
            raise RasrError(
                "layer %r needs the data key %r, but RASR gives only features" % (self.forwarder.layer, other[0])
            )

    def check_dims(self, input_dim: int, output_dim: int) -> None:
        """Compare the dims of RASR with those of the network.

        :raises ConfigError: they differ
        """
        expected = self.dataset.opts.input_dim, self.output_dim
        if input_dim != expected[0] or (output_dim > 0 and output_dim != expected[1]):
            raise RasrError(
                "RASR has %d features and %d outputs, but the network has %d and %d"
                % (input_dim, output_dim, *expected)
            )

    def posteriors(self, tag: str, features: Any) -> NDArray[Any]:
        """Return the values of the layer, float32 [time, outputs], for features [dim, time].

        :raises DataError: other features than the network has, or values that are not finite
        """
        data = self.dataset.with_window(self.dataset.data_of(tag, features, {}))["data"]
        feed = {"data": data[None], "data/size0": np.array([len(data)], np.int32), SEQ_TAG: np.array([tag], object)}
        values = np.asarray(self.forwarder.run(feed).value[0], np.float32)
        if not np.isfinite(values).all():
            raise RasrDataError("sequence %r: layer %r has values that are not finite" % (tag, self.forwarder.layer))
        return values


class FeatureScorer:
    """Scores of frames: ``-log(posteriors) + prior_scale * log(priors)``; RASR hands over whole segments.

    :param config: see `ForwardingInRasr`; with ``prior_scale``, and ``prior_file`` unless that is 0
    :raises ConfigError: prior_scale is missing, or there are not as many priors as outputs
    """

    def __init__(self, config: Config):
        settings = RasrSettings(config)
        if settings.prior_scale is None:
            raise RasrError("a feature scorer needs prior_scale; 0 = no priors")
        self._forwarding = ForwardingInRasr(config)
        self._bias: Any = 0.0
        if settings.prior_scale:
            self._bias = settings.prior_scale * read_priors(settings.prior_file, self._forwarding.output_dim)
        self._features: list[NDArray[Any]] = []
        self._scores = np.zeros((0, 0), np.float32)
        self._num_segments = 0

    def init(self, input_dim: int, output_dim: int, **_: Any) -> None:
        """Compare the dims."""
        self._forwarding.check_dims(input_dim, output_dim)

    def get_feature_buffer_size(self, **_: Any) -> int:
        """Return -1: all frames of a segment are needed at once."""
        return -1

    def add_feature(self, feature: Any, time: int = 0, **_: Any) -> None:
        """Add the features [dim] of the next frame."""
        self._features.append(np.array(feature, np.float32))

    def compute(self, num_frames: int, **_: Any) -> None:
        """Compute the scores of the frames.

        :raises DataError: there are not as many frames as RASR says, or the network gives another number
        """
        tag = "unknown-seq-name-%d" % self._num_segments
        if num_frames != len(self._features):
            raise RasrDataError(
                "sequence %r: RASR says %d frames, but has given %d" % (tag, num_frames, len(self._features))
            )
        posteriors = self._forwarding.posteriors(tag, np.stack(self._features, axis=1))
        if len(posteriors) != num_frames:
            raise RasrDataError(
                "sequence %r: the network gives %d frames for %d of RASR; a feature scorer needs one for each"
                % (tag, len(posteriors), num_frames)
            )
        with np.errstate(divide="ignore"):
            self._scores = np.asarray(-np.log(posteriors) + self._bias, np.float32)
        if not np.isfinite(self._scores).all():
            self._scores = np.minimum(self._scores, np.finfo(np.float32).max)  # a posterior of 0

    def get_scores(self, time: int, **_: Any) -> NDArray[Any]:
        """Return the scores [outputs] of a frame."""
        scores: NDArray[Any] = self._scores[time]
        return scores

    def reset(self, num_frames: int = 0, **_: Any) -> None:
        """End a segment."""
        self._features.clear()
        self._num_segments += 1

    def exit(self, **_: Any) -> None:
        """Do nothing."""


def read_priors(path: str, count: int) -> NDArray[Any]:
    """Read log priors [count]: one per line; lines that begin with "<" are no numbers, as in vectors of RASR.

    :raises ConfigError: no path
    :raises DataError: the file is missing, or does not have as many numbers
    """
    if not path:
        raise RasrError("prior_scale needs prior_file, a text file with the log prior of each class")
    lines = [line.strip() for line in safe_files.read_text(path).splitlines()]
    words = [line for line in lines if line and not line.startswith("<")]
    try:
        priors = np.array([float(word) for word in words], np.float32)
    except ValueError as exc:
        raise RasrDataError("prior_file %r must have one number per line: %s" % (path, exc)) from None
    if len(priors) != count:
        raise RasrDataError("prior_file %r has %d numbers, but the network has %d outputs" % (path, len(priors), count))
    return priors
