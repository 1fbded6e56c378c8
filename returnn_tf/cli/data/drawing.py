"""Pictures of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.data.statistics import known_labels
from returnn_tf.config.errors import FileError
from returnn_tf.datasets.core.data_spec import DataSpec, Example
from returnn_tf.engine.monitoring.pictures import new_figure
from returnn_tf.engine.support.disk_errors import not_writable

_MOST_NAMES = 80  # more names of labels than that can't be read


def draw_sequence(sequence: Example, keys: list[str], specs: dict[str, DataSpec], path: str) -> None:
    """Draw a panel for each key with a time axis: features as an image, labels and single values as a line.

    :param path: file to write, .png
    :raises ConfigError: matplotlib is missing, or the file can't be written
    """
    shown = [key for key in keys if sequence.data[key].ndim >= 1 and sequence.data[key].dtype.kind in "iufb"]
    if not shown:
        raise FileError("data dump: sequence %r has no values to draw; omit --plot" % sequence.tag)
    figure = new_figure(12, 2.8 * len(shown))
    for panel, key in zip(figure.subplots(len(shown), 1, squeeze=False)[:, 0], shown):
        _draw_key(figure, panel, sequence.data[key], specs[key])
        panel.set_ylabel(key)
    figure.suptitle(sequence.tag)
    try:
        figure.savefig(path)
    except OSError as exc:
        raise not_writable("data dump: %r" % path, exc, topic="data-files") from None


def _draw_key(figure: Any, panel: Any, value: NDArray[Any], spec: DataSpec) -> None:
    features = value.reshape(len(value), -1) if len(value) else np.zeros((0, 1))
    panel.set_xlabel("label" if spec.sparse else "frame")
    if features.shape[1] == 1 or not len(value):
        panel.plot(features[:, 0], drawstyle="steps-mid" if spec.sparse else "default", linewidth=0.8)
        panel.set_xlim(-0.5, max(len(value) - 0.5, 0.5))
        _name_labels(panel, value, known_labels(spec) if spec.sparse else ())
        return
    image = panel.imshow(features.T, origin="lower", aspect="auto", interpolation="nearest", cmap="magma")
    figure.colorbar(image, ax=panel, pad=0.01)


def _name_labels(panel: Any, value: NDArray[Any], names: tuple[str, ...]) -> None:
    """Write the names of the labels below the line, if there are few."""
    if not names or value.ndim != 1 or len(value) > _MOST_NAMES:
        return
    shown = [names[index] if 0 <= index < len(names) else str(index) for index in map(int, value)]
    panel.set_xticks(range(len(value)), [name.replace("$", r"\$") for name in shown], rotation=90, fontsize=7)
