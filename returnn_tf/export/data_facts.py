"""What a program must know of the data of a model: names of labels, and how features of audio are computed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any, Optional

import numpy

from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.config.options import from_options
from returnn_tf.config.settings import DataSettings, NetworkSettings
from returnn_tf.datasets.audio.options import AudioOptions
from returnn_tf.datasets.config import NamesOfConfig
from returnn_tf.datasets.core.spec import parse_dataset_spec
from returnn_tf.datasets.vocabulary import Vocabulary, vocab_labels
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.tensor_info import VALUE, graph_name
from returnn_tf.logging.log import log
from returnn_tf.tensor import Data

#: Options of datasets that hold a vocabulary.
_VOCABULARIES = ("targets", "orth_vocab", "vocab")


def write_vocabularies(model: InferenceModel, folder: str) -> dict[str, dict[str, str]]:
    """Write ``vocab.<key>.txt``, one label a line, for each data key whose labels are inputs or outputs.

    The names are those of the option ``vocab`` of the data key, else of a vocabulary of the same size in the training
    dataset.

    :param folder: of the export
    :return: "inputs" and "outputs" -> name -> file
    """
    extern_data = model.net.extern_data
    values = [("inputs", name, _key_of_input(model, name)) for name in model.input_infos]
    values += [("outputs", name, _key_of_output(model, name)) for name, i in model.outputs.items() if i.kind == VALUE]
    found: dict[str, dict[str, str]] = {"inputs": {}, "outputs": {}}
    files: dict[str, str] = {}
    for part, name, key in values:
        if key is None:
            continue
        if key not in files:
            labels = _labels(key, extern_data[key], model.net.plan.config)
            files[key] = "vocab.%s.txt" % graph_name(key) if labels else ""
            if labels:
                with open(os.path.join(folder, files[key]), "w", encoding="utf8") as file:
                    file.write("".join("%s\n" % _line(label) for label in labels))
        if files[key]:
            found[part][name] = files[key]
    return found


def _key_of_input(model: InferenceModel, name: str) -> Optional[str]:
    """Return the data key of an input that has labels."""
    key, extern_data = model.feed_keys.get(name, ""), model.net.extern_data
    return key if key in extern_data and extern_data[key].sparse_dim is not None else None


def _key_of_output(model: InferenceModel, name: str) -> Optional[str]:
    """Return the data key whose labels an output has, or for which it has an entry per label."""
    extern_data = model.net.extern_data
    node = next(node for node in model.nodes if graph_name(node.path) == name)
    dim = node.output.sparse_dim
    same = [key for key, data in extern_data.items() if dim is not None and data.sparse_dim is dim]
    config = model.net.plan.config
    targets = [] if config is None else [NetworkSettings(config).target]
    for loss in model.net.plan.losses:
        if loss.owner is node and loss.target is not None and loss.target.extern_key is not None:
            targets.insert(0, loss.target.extern_key)
    size = node.output.dim
    same += [key for key in targets if key in extern_data and _size(extern_data[key]) == size and size is not None]
    return same[0] if same else None


def _size(data: Data) -> Optional[int]:
    return None if data.sparse_dim is None else data.sparse_dim.size


def _labels(key: str, data: Data, config: Optional[Config]) -> list[str]:
    """Return the names of the labels of a data key; none if the config does not name them."""
    candidates = [] if data.vocab is None else [data.vocab]
    for options in _train_options(config):
        candidates += [options[name] for name in _VOCABULARIES if isinstance(options.get(name), (Mapping, Vocabulary))]
    for vocab in candidates:
        try:
            labels = vocab_labels(key, vocab)
        except (ConfigError, DataError) as exc:
            log.warn("The labels of %r are not written: %s" % (key, exc))
            continue
        if len(labels) == _size(data):
            return labels
    return []


def _line(label: str) -> str:
    return label.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def feature_settings(config: Optional[Config]) -> Optional[dict[str, Any]]:
    """Return the options ``audio`` of the training dataset, defaults included; None without features of audio."""
    for options in _train_options(config):
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
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        return value.tolist()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return "function %s" % getattr(value, "__name__", type(value).__name__)


def _train_options(config: Optional[Config]) -> Iterator[Mapping[str, Any]]:
    """Yield the options of the training dataset, and of those inside it."""
    given = None if config is None else DataSettings(config).train
    if given is None:
        return
    try:
        _, options = parse_dataset_spec(given, {} if config is None else NamesOfConfig(config))
    except ConfigError:
        return  # a dataset of another machine: what tasks report, and no matter of the graph
    yield from _with_inner(options)


def _with_inner(options: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(options, Mapping):
        yield options
        for value in options.values():
            yield from _with_inner(value)
    elif isinstance(options, (list, tuple)):
        for value in options:
            yield from _with_inner(value)
