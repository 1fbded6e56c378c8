"""Mean, standard deviation, minimum and maximum over all frames, and the files in which configs expect them."""

from __future__ import annotations

import io
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compat.tool.shared.text_files import write_file
from returnn_tf.config.errors import CommandDataError


class FrameStatistics:
    """Collects statistics of each feature over frames, in float64, by joining those of the sequences.

    :param what: the data, for messages
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.num_seqs = 0
        self.num_frames = 0
        self.lengths = [0, 0]  # of the shortest and the longest sequence
        self._mean: Optional[NDArray[Any]] = None
        self._squares: Any = 0.0  # sum of squared differences from the mean
        self._range: list[NDArray[Any]] = []

    def add(self, value: NDArray[Any]) -> None:
        """Add a sequence.

        :param value: [time, ...], or [] which counts as a frame
        :raises DataError: it has no numbers, or not as many features as those before
        """
        if value.dtype.kind not in "iufb":
            raise CommandDataError("%s holds %s, not numbers, so it has no statistics" % (self.what, value.dtype))
        frames = value.reshape(len(value) if value.ndim else 1, -1).astype(np.float64)
        self._count(len(frames))
        if not len(frames):
            return
        if self._mean is not None and frames.shape[1] != self._mean.shape[0]:
            text = "%s has %d features in a sequence, and %d in those before"
            raise CommandDataError(text % (self.what, frames.shape[1], self._mean.shape[0]))
        mean = frames.mean(axis=0)
        squares = np.square(frames - mean).sum(axis=0)
        if self._mean is None:
            self._mean, self._squares = mean, squares
            self._range = [frames.min(axis=0), frames.max(axis=0)]
        else:
            before, number = self.num_frames - len(frames), len(frames)
            difference = mean - self._mean
            self._mean = self._mean + difference * (number / self.num_frames)
            self._squares = self._squares + squares + np.square(difference) * (before * number / self.num_frames)
            self._range = [
                np.minimum(self._range[0], frames.min(axis=0)),
                np.maximum(self._range[1], frames.max(axis=0)),
            ]

    def _count(self, length: int) -> None:
        self.lengths = [min(self.lengths[0], length), max(self.lengths[1], length)] if self.num_seqs else [length] * 2
        self.num_seqs += 1
        self.num_frames += length

    def values(self) -> dict[str, NDArray[Any]]:
        """Return mean, std_dev (of the population), min and max of each feature: float64 [features].

        :raises DataError: there are no frames
        """
        if self._mean is None:
            raise CommandDataError("%s has no frames, so it has no statistics" % self.what)
        deviation = np.sqrt(self._squares / self.num_frames)
        return {"mean": self._mean, "std_dev": deviation, "min": self._range[0], "max": self._range[1]}

    def write(self, prefix: str) -> list[str]:
        """Write the files ``<prefix>.mean.txt`` etc., a number a line, and ``<prefix>.info.txt``; return their names.

        :raises DataError: there are no frames, or a file can't be written
        """
        contents = {}
        for name, value in self.values().items():
            text = io.StringIO()
            np.savetxt(text, value)  # %.18e
            contents["%s.%s.txt" % (prefix, name)] = text.getvalue()
        facts = {"num_seqs": self.num_seqs, "total_data_len": self.num_frames}
        facts.update(min_seq_len=self.lengths[0], max_seq_len=self.lengths[1])
        contents[prefix + ".info.txt"] = "{\n%s}\n" % "".join("%r: %r,\n" % item for item in facts.items())
        for path, content in contents.items():
            write_file(path, content)
        return list(contents)

    def lines(self) -> list[str]:
        """Return lines for people."""
        text = "%s: %d sequences with %d to %d frames, %d in total"
        lines = [text % (self.what, self.num_seqs, *self.lengths, self.num_frames)]
        with np.printoptions(precision=6, linewidth=120, threshold=200):
            lines += ["  %s: %s" % (name, str(value).replace("\n", "\n    ")) for name, value in self.values().items()]
        return lines
