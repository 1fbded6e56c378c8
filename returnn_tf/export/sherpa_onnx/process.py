"""Recognises audio by sherpa-onnx in a process of its own, as the library ends the process where a model is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ExportDataError
from returnn_tf.util.installing import install_command
from returnn_tf.util.python_child import python_command

_MISSING = 3
_CODE = "from returnn_tf.export.sherpa_onnx.process import main\nsys.exit(main(*sys.argv[1:]))"


def recognise(folder: str, audio: Sequence[NDArray[np.float32]], sample_rate: int, feature_dim: int) -> list[list[str]]:
    """Return the symbols that the program finds in audio.

    :param folder: with ``model.onnx`` and ``tokens.txt``
    :param audio: [samples] each
    :raises DataError: the package is missing, or does not take the model
    """
    with tempfile.TemporaryDirectory() as temp:
        path, result = os.path.join(temp, "audio.npz"), os.path.join(temp, "result.json")
        np.savez(path, **{"a%06d" % index: samples for index, samples in enumerate(audio)})
        command = python_command(_CODE, folder, path, result, str(sample_rate), str(feature_dim))
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode == _MISSING:
            raise ExportDataError(
                "export to sherpa-onnx needs sherpa-onnx: %s (%s)" % (install_command("sherpa"), _last(done.stderr))
            )
        if done.returncode or not os.path.exists(result):
            raise ExportDataError("sherpa-onnx does not take the model: %s" % _last(done.stderr))
        with open(result, encoding="utf8") as file:
            found: list[list[str]] = json.load(file)
    return found


def _last(text: str) -> str:
    """Return the last line of a log that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")


def main(folder: str, audio: str, result: str, sample_rate: str, feature_dim: str) -> int:
    """Write the symbols of each sequence as JSON.

    :param audio: npz file
    :param result: where
    """
    try:
        import sherpa_onnx
    except ImportError as exc:
        sys.stderr.write("%s\n" % exc)
        return _MISSING
    recognizer: Any = sherpa_onnx.OfflineRecognizer.from_wenet_ctc(
        os.path.join(folder, "model.onnx"),
        os.path.join(folder, "tokens.txt"),
        sample_rate=int(sample_rate),
        feature_dim=int(feature_dim),
    )
    streams = []
    with np.load(audio, allow_pickle=False) as arrays:
        for name in sorted(arrays):
            stream = recognizer.create_stream()
            stream.accept_waveform(int(sample_rate), arrays[name])
            streams.append(stream)
    recognizer.decode_streams(streams)
    with open(result, "w", encoding="utf8") as file:
        json.dump([stream.result.tokens for stream in streams], file)
    return 0
