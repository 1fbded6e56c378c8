"""Recognises audio by sherpa-onnx in a process of its own, as the library ends the process where a model is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ExportDataError
from returnn_tf.util.installing import install_command
from returnn_tf.util.python_child import python_command

_MISSING = 3
_CODE = "from returnn_tf.export.sherpa_onnx.process import main\nsys.exit(main(*sys.argv[1:]))"


@dataclass(frozen=True)
class Recognizer:
    """How the package loads a model.

    :param kind: "OfflineRecognizer" or, for streams, "OnlineRecognizer"
    :param make: its method that does
    :param files: its options that are files -> names in the folder of the export
    :param options: further ones, with ``sample_rate``
    """

    kind: str
    make: str
    files: Mapping[str, str]
    options: Mapping[str, Any]

    def recognise(self, folder: str, audio: Sequence[NDArray[np.float32]]) -> list[list[str]]:
        """Return the symbols that the program finds in audio.

        :param folder: of the export
        :param audio: [samples] each
        :raises DataError: the package is missing, or does not take the model
        """
        files = {name: os.path.join(folder, file) for name, file in self.files.items()}
        with tempfile.TemporaryDirectory() as temp:
            path, result = os.path.join(temp, "audio.npz"), os.path.join(temp, "result.json")
            np.savez(path, **{"a%06d" % index: samples for index, samples in enumerate(audio)})
            command = python_command(_CODE, self.kind, self.make, json.dumps({**files, **self.options}), path, result)
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


def main(kind: str, make: str, options: str, audio: str, result: str) -> int:
    """Write the symbols of each sequence as JSON.

    :param options: JSON, of the method ``make``
    :param audio: npz file
    :param result: where
    """
    try:
        import sherpa_onnx
    except ImportError as exc:
        sys.stderr.write("%s\n" % exc)
        return _MISSING
    given = json.loads(options)
    recognizer: Any = getattr(getattr(sherpa_onnx, kind), make)(**given)
    streams = []
    with np.load(audio, allow_pickle=False) as arrays:
        for name in sorted(arrays):
            stream = recognizer.create_stream()
            stream.accept_waveform(given["sample_rate"], arrays[name])
            streams.append(stream)
    if kind == "OnlineRecognizer":
        found = [_end(recognizer, stream) for stream in streams]
    else:
        recognizer.decode_streams(streams)
        found = [stream.result.tokens for stream in streams]
    with open(result, "w", encoding="utf8") as file:
        json.dump(found, file)
    return 0


def _end(recognizer: Any, stream: Any) -> list[str]:
    """Return the symbols of a stream that has all of its audio."""
    stream.input_finished()
    while recognizer.is_ready(stream):
        recognizer.decode_stream(stream)
    tokens: list[str] = recognizer.tokens(stream)
    return tokens
