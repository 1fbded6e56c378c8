"""``model.json`` beside every export: the facts that a program needs to load it. No TensorFlow."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from returnn_tf._version import __version__
from returnn_tf.config.errors import ExportDataError
from returnn_tf.datasets.core.safe_files import open_regular
from returnn_tf.export.data_facts import feature_settings, label_facts
from returnn_tf.export.exporters import Exporter
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.streaming import StreamingModel
from returnn_tf.export.tensor_info import TensorInfo, as_dict

NAME = "model.json"
_FORMAT = 1
_STRING = r'"(?:[^"\\]|\\.)*"'
#: A string, which stays as it is whatever is in it, or a list without lists and dicts.
_PART = re.compile(r'%s|\[\s+(?P<items>(?:%s|[^\[\]{}"])*?)\s+\]' % (_STRING, _STRING))


def write_side_file(folder: str, exporter: Exporter, model: InferenceModel) -> None:
    """Write the side file of an export whose model is written, and the vocabularies that it names."""
    fed, found = exporter.input_tensors, exporter.output_tensors
    labels = label_facts(model, folder)
    features = feature_settings(model.net.config)
    content = {
        "format": _FORMAT,
        "target": exporter.class_name,
        "returnn_tf": __version__,
        "search": model.net.search,
        "inputs": {name: _entry(info, fed, labels["inputs"]) for name, info in model.input_infos.items()},
        "outputs": {name: _entry(info, found, labels["outputs"]) for name, info in model.outputs.items()},
        **({} if features is None else {"features": features}),
        **({"states": _states(model)} if isinstance(model, StreamingModel) else {}),
        **exporter.facts,
    }
    with open(os.path.join(folder, NAME), "w", encoding="utf8") as file:
        file.write(text_of(content) + "\n")


def text_of(content: Any) -> str:
    """Return the JSON text, with lists of numbers and names in one line."""
    return _PART.sub(_in_one_line, json.dumps(content, indent=2, ensure_ascii=False))


def _in_one_line(part: re.Match[str]) -> str:
    items = part["items"]
    return part[0] if items is None else "[%s]" % re.sub(r",\s*\n\s*", ", ", items)


def _states(model: StreamingModel) -> dict[str, Any]:
    """Describe the states by the names of their inputs.

    "next" is the output to feed in the next call. "first_shape" is the shape of the zeros that begin a sequence: null
    is the number of sequences, an axis that grows is 0.
    """
    infos = model.input_infos
    return {
        name: {
            "next": after,
            "layer": infos[name].layer,
            "shape": list(infos[name].shape),
            "first_shape": list(infos[name].first_shape),
            "dtype": infos[name].dtype,
        }
        for name, after in model.states.items()
    }


def _entry(info: TensorInfo, tensors: Mapping[str, str], labels: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    entry = {**as_dict(info), **labels.get(info.name, {})}
    return {"tensor": tensors[info.name], **entry} if info.name in tensors else entry


def read_side_file(folder: str) -> dict[str, Any]:
    """Return the content of the side file of an export.

    :raises DataError: there is none, or it is not one
    """
    path = os.path.join(folder, NAME)
    try:
        with open_regular(path) as file:
            content = json.load(file)
    except (OSError, ValueError, RecursionError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else exc
        raise ExportDataError("%s can't be read as the side file of an export: %s" % (path, reason)) from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ExportDataError("%s is not the side file of an export of this version of returnn_tf." % path)
    return content
