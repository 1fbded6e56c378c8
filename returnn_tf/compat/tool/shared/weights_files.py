"""Files with the attention weights of sequences: numpy, pictures, or HDF."""

from __future__ import annotations

import os
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.data.dump import file_name
from returnn_tf.config import DataError
from returnn_tf.datasets import HDFWriter
from returnn_tf.engine.monitoring.pictures import check_matplotlib, new_figure
from returnn_tf.engine.support.atomic_files import staging


class SeqWeights(NamedTuple):
    """What is written of a sequence.

    :param weights: layer -> [labels, frames, ...]
    :param output: labels [labels]
    :param encoder_len: frames of the encoder
    """

    tag: str
    weights: dict[str, NDArray[Any]]
    output: NDArray[Any]
    encoder_len: int


class NumpyFiles:
    """Writes ``<folder>/<tag>.npy`` for each sequence: a pickled dict, to be loaded with ``allow_pickle``.

    Its keys are tag, output, output_len, encoder_len and ``rec_<layer>``.
    """

    def __init__(self, folder: str) -> None:
        self.place = folder

    def add(self, sequence: SeqWeights) -> None:
        """Write the file of a sequence."""
        _make(self.place)
        content = {
            "tag": sequence.tag,
            "output": sequence.output,
            "output_len": len(sequence.output),
            "encoder_len": sequence.encoder_len,
            **{"rec_" + name: value for name, value in sequence.weights.items()},
        }
        name = file_name(sequence.tag) + ".npy"
        with staging(self.place, name) as temp:
            np.save(os.path.join(temp, name), np.array(content, dtype=object))
            os.replace(os.path.join(temp, name), os.path.join(self.place, name))

    def close(self, *, complete: bool) -> None:
        """Complete the output."""


class Pictures:
    """Draws ``<folder>/<tag>.<layer>.png`` for each sequence: labels from top to bottom, frames from left to right."""

    def __init__(self, folder: str) -> None:
        check_matplotlib("--output_format npy")
        self.place = folder

    def add(self, sequence: SeqWeights) -> None:
        """Draw a sequence: a panel for each head."""
        _make(self.place)
        for name, value in sequence.weights.items():
            heads = value.reshape(*value.shape[:2], -1)
            count = heads.shape[2]
            figure = new_figure(8, 3 * count)
            for head, panel in enumerate(figure.subplots(count, 1, squeeze=False)[:, 0]):
                image = panel.imshow(heads[:, :, head], aspect="auto", interpolation="nearest", cmap="magma", vmin=0)
                panel.set_ylabel("label" if count == 1 else "label, head %d" % head)
                figure.colorbar(image, ax=panel, pad=0.01)
            panel.set_xlabel("frame")
            figure.suptitle("%s: %s" % (sequence.tag, name))
            figure.savefig(os.path.join(self.place, "%s.%s.png" % (file_name(sequence.tag), file_name(name))))

    def close(self, *, complete: bool) -> None:
        """Complete the output."""


class HDFOutput:
    """Writes an HDF file: each sequence has the weights [labels * frames, ...] of one layer, and "sizes"."""

    def __init__(self, path: str) -> None:
        self.place = path
        self._writer: Optional[HDFWriter] = None

    def add(self, sequence: SeqWeights) -> None:
        """Append a sequence."""
        ((_, value),) = sequence.weights.items()
        value = value.reshape(*value.shape[:2], -1)
        if self._writer is None:
            self._writer = HDFWriter(self.place, dim=value.shape[2], ndim=3, replace=True)
        lengths = {0: [value.shape[0]], 1: [value.shape[1]]}
        self._writer.insert_batch(value[None], lengths, [sequence.tag], {"output": sequence.output[None]})

    def close(self, *, complete: bool) -> None:
        """Complete the file, or remove what was written of it."""
        if self._writer is not None:
            self._writer.close() if complete else self._writer.abort()


def _make(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as exc:
        raise DataError("the folder %r can't be made: %s" % (folder, exc.strerror)) from exc
