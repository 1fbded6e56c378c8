"""Facts about the data of a model for other programs: names of labels, and the options of audio features."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.options import from_options
from returnn_tf.datasets.audio.features import AudioOptions
from returnn_tf.datasets.config import nested_options
from returnn_tf.engine.data.label_names import LabelNames
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.tensor_info import VALUE, graph_name
from returnn_tf.tensor import Dim


def label_facts(model: InferenceModel, folder: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Describe the labels of inputs and outputs, see `LabelFiles.facts`.

    :param folder: of the export
    :return: "inputs" and "outputs" -> name -> entries of the side file
    """
    names, extern_data = LabelFiles(model.net.plan, model.net.config, folder), model.net.extern_data
    keys = {name: model.feed_keys.get(name, "") for name in model.input_infos}
    dims = {name: extern_data[key].sparse_dim for name, key in keys.items() if key in extern_data}
    nodes = {graph_name(node.path): node.output for node in model.nodes}
    outputs = {name: nodes[name] for name, info in model.outputs.items() if info.kind == VALUE}
    return {
        "inputs": {name: names.facts(dim) for name, dim in dims.items()},
        "outputs": {
            name: names.facts(data.feature_dim if data.sparse_dim is None else data.sparse_dim)
            for name, data in outputs.items()
        },
    }


class LabelFiles:
    """Writes the names of labels, one a line, to ``vocab.<key>.txt``.

    :param config: that of the plan
    :param folder: where
    """

    def __init__(self, plan: Plan, config: Config, folder: str) -> None:
        self._names, self._folder = LabelNames(plan, config), folder

    def facts(self, dim: Optional[Dim]) -> dict[str, Any]:
        """Describe the labels of an axis, and write their names.

        :param dim: the axis of posteriors, or what labels are indices of
        :return: "vocabulary": the file; "blank": the index of the blank of CTC and transducers; each if it is known
        """
        found: dict[str, Any] = {}
        if dim is None or dim.size is None:
            return found
        key, blank = self._names.key(dim), self._names.blank(dim)
        if key is not None:
            found["vocabulary"] = "vocab.%s.txt" % graph_name(key)
            with open(os.path.join(self._folder, found["vocabulary"]), "w", encoding="utf8") as file:
                file.write("".join("%s\n" % _line(label) for label in self._names.of_key(key)))
        if blank is not None:
            found["blank"] = blank
        return found


def _line(label: str) -> str:
    return label.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def feature_settings(config: Config) -> Optional[dict[str, Any]]:
    """Return the options ``audio`` of the training dataset, defaults included; None without features of audio."""
    for options in nested_options(config, "train"):
        audio = options.get("audio")
        if isinstance(audio, Mapping):
            found = from_options(AudioOptions, dict(audio), where="train: audio")
            return {field.name: _plain(getattr(found, field.name)) for field in dataclasses.fields(found)}
    return None


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold: functions by their names."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return "function %s" % getattr(value, "__name__", type(value).__name__)
