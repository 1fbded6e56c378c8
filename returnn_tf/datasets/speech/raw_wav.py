"""RawWavDataset: overlapping frames of the samples of wav files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileDataError
from returnn_tf.config.options import at_least, option
from returnn_tf.datasets.audio.decode import missing_wav_bytes
from returnn_tf.datasets.audio.packages import optional_package
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.safe_files import check_regular, open_regular, read_text


@register_dataset()
class RawWavDataset(Dataset):
    """Frames of integer samples of mono wav files, as float32 [frames, frameLength]; there are no targets."""

    @dataclass
    class Options(Dataset.Options):
        listFile: str = option(help="text file with one wav file per line")
        frameLength: int = option(help="samples per frame", check=at_least(1))
        frameShift: int = option(help="samples from the begin of a frame to that of the next", check=at_least(1))
        num_outputs: int = option(help="dim of targets, of which there are none")

    def setup(self) -> None:
        """Read the list."""
        with self._wanted_by("listFile"):
            lines = [line.strip() for line in read_text(self.opts.listFile).splitlines() if line.strip()]
        folder = os.path.dirname(self.opts.listFile)
        self._files = [line if os.path.exists(line) else os.path.join(folder, line) for line in lines]
        dim = self.opts.frameLength
        spec = DataSpec(dim=dim, ndim=2, dtype="float32", shape=(dim,))
        self.data_specs = self.windowed({"data": spec})

    @property
    def num_outputs(self) -> dict[str, tuple[int, int]]:
        """Return the declared dim of targets."""
        return {"classes": (self.opts.num_outputs, 2)}

    @property
    def num_inputs(self) -> int:
        """Return the number of samples per frame."""
        return int(self.opts.frameLength)

    @property
    def num_seqs(self) -> int:
        """Return the number of files."""
        return len(self._files)

    def file_of(self, index: int) -> str:
        """Return the wav file."""
        return self._files[index]

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Read one file, and cut it into frames, the last one with zeros at its end."""
        path = self._files[index]
        with optional_package("to decode audio"):
            import soundfile
        try:
            check_regular(path)
            samples, _ = soundfile.read(path, dtype="int16")
            with open_regular(path) as content:
                missing = missing_wav_bytes(content, path)
        except (OSError, RuntimeError) as exc:
            raise FileDataError("file %r cannot be read: %s" % (path, getattr(exc, "strerror", None) or exc)) from None
        if missing:
            raise FileDataError("file %r is incomplete: %d bytes of it are missing" % (path, missing))
        if samples.ndim != 1 or not len(samples):
            raise FileDataError("file %r must have one channel and some samples, but has %s" % (path, samples.shape))
        length, shift = self.opts.frameLength, self.opts.frameShift
        count = max(-(-(len(samples) - length) // shift), 0) + 1
        padded = np.zeros((count - 1) * shift + length, np.float32)
        padded[: len(samples)] = samples[: len(padded)]
        return {"data": np.lib.stride_tricks.sliding_window_view(padded, length)[::shift].copy()}
