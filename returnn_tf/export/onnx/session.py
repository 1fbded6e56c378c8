"""A model in onnxruntime, as a program in Python runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ExportDataError
from returnn_tf.export.onnx.packages import packages, quiet


class Session:
    """A model in onnxruntime.

    :param model: path of the file
    :raises DataError: onnxruntime can't load it
    """

    def __init__(self, model: str) -> None:
        self._runtime = packages().runtime
        options = self._runtime.SessionOptions()
        options.log_severity_level = 4  # errors come as exceptions
        try:
            with quiet():
                self._session = self._runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as exc:  # of many classes, which are not public
            raise ExportDataError("onnxruntime can't load %s: %s" % (model, " ".join(str(exc).split()))) from exc
        self.inputs = [x.name for x in self._session.get_inputs()]
        self.outputs = [x.name for x in self._session.get_outputs()]

    @property
    def metadata(self) -> dict[str, str]:
        """Return the metadata of the model."""
        return dict(self._session.get_modelmeta().custom_metadata_map)

    def run(self, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the outputs by name.

        :param feed: arrays by name; what the model has no input for is ignored
        :raises DataError: onnxruntime can't run it
        """
        try:
            with quiet():
                values = self._session.run(None, {name: _text(feed[name]) for name in self.inputs})
        except Exception as exc:  # of many classes, which are not public
            raise ExportDataError("onnxruntime can't run the model: %s" % " ".join(str(exc).split())) from exc
        return dict(zip(self.outputs, map(_bytes, values)))


def _text(value: Any) -> NDArray[Any]:
    """Return an array as onnxruntime takes it: strings as text, not as bytes."""
    array = np.asarray(value)
    return np.char.decode(array.astype("S"), "utf8").astype(object) if array.dtype.kind in "OS" else array


def _bytes(value: NDArray[Any]) -> NDArray[Any]:
    """Return an array of onnxruntime as TensorFlow gives it: strings as bytes."""
    return np.char.encode(value.astype(str), "utf8").astype(object) if value.dtype.kind == "O" else value
