"""Facts about the data of a model for other programs: names of labels, and the options of audio features."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.config.options import from_options
from returnn_tf.config.settings.data import DataSettings
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.datasets.audio.features import AudioOptions
from returnn_tf.datasets.config import NamesOfConfig, dataset_from_config
from returnn_tf.datasets.core.base import parse_dataset_spec
from returnn_tf.datasets.vocabulary import Vocabulary, vocab_labels
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.tensor_info import VALUE, graph_name
from returnn_tf.graph.same_labels import SameLabels
from returnn_tf.logging.log import log
from returnn_tf.tensor import Dim

#: Options of datasets that hold a vocabulary.
_VOCABULARIES = ("targets", "orth_vocab", "vocab")


def label_facts(model: InferenceModel, folder: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Describe the labels of inputs and outputs, see `LabelNames.facts`.

    :param folder: of the export
    :return: "inputs" and "outputs" -> name -> entries of the side file
    """
    names, extern_data = LabelNames(model.net.plan, model.net.config, folder), model.net.extern_data
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


class LabelNames:
    """The labels of the axes of a network, and their names.

    Axes number their labels alike if a layer or loss says so (`Layer.same_labels`), or if one was declared to
    replace the other (`Dim.labels_of`). If their sizes differ, the larger one has further labels at the end.

    :param config: that of the plan
    :param folder: where files with the names are written
    """

    def __init__(self, plan: Plan, config: Config, folder: str) -> None:
        self._plan, self._config, self._folder = plan, config, folder
        self._alike: dict[Dim, dict[Dim, None]] = {}
        self._blanks: dict[Dim, int] = {}
        self._files: dict[str, str] = {}
        for node in plan.all_nodes():
            self._link(node.layer.same_labels())
            sparse = node.output.sparse_dim
            if sparse is not None and sparse.labels_of is not None:
                self._link([SameLabels(sparse, sparse.labels_of)])
        for loss in plan.losses:
            self._link(loss.loss.same_labels(loss))

    def _link(self, found: Iterable[SameLabels]) -> None:
        for one, other, blank in found:
            self._alike.setdefault(one, {})[other] = None
            self._alike.setdefault(other, {})[one] = None
            if blank is not None:
                self._blanks.setdefault(one, blank)

    def _nearest(self, dim: Dim, *, same_size: bool) -> Iterator[Dim]:
        """Yield an axis, and those that number their labels alike, those first that have the most direct relation."""
        seen, todo = {dim: None}, collections.deque([dim])
        while todo:
            dim = todo.popleft()
            yield dim
            near = [*self._alike.get(dim, ()), *([] if dim.labels_of is None else [dim.labels_of])]
            for other in near:
                if other not in seen and (not same_size or other.size == dim.size):
                    seen[other] = None
                    todo.append(other)

    def facts(self, dim: Optional[Dim]) -> dict[str, Any]:
        """Describe the labels of an axis.

        The names are those of the option ``vocab`` of a data key, else of the training dataset. They are written, one a
        line, to ``vocab.<key>.txt``.

        :param dim: the axis of posteriors, or what labels are indices of
        :return: "vocabulary": the file; "blank": the index of the blank of CTC and transducers; each if it is known
        """
        found: dict[str, Any] = {}
        if dim is None or dim.size is None:
            return found
        keys = [key for near in self._nearest(dim, same_size=False) for key in self._keys_of(near)]
        target = NetworkSettings(self._config).target
        data = self._plan.extern_data.get(target)
        if target and data is not None and data.sparse_dim is not None and data.sparse_dim.size == dim.size:
            keys.append(target)
        file = next(filter(None, map(self._file, keys)), "")
        if file:
            found["vocabulary"] = file
        blank = next((self._blanks[each] for each in self._nearest(dim, same_size=True) if each in self._blanks), None)
        if blank is not None:
            found["blank"] = blank
        return found

    def _keys_of(self, dim: Dim) -> list[str]:
        return [key for key, data in self._plan.extern_data.items() if data.sparse_dim is dim]

    def _file(self, key: str) -> str:
        """Return the file with the names of the labels of a data key; "" if they are not known."""
        if key not in self._files:
            labels = self._labels(key)
            self._files[key] = "vocab.%s.txt" % graph_name(key) if labels else ""
            if labels:
                with open(os.path.join(self._folder, self._files[key]), "w", encoding="utf8") as file:
                    file.write("".join("%s\n" % _line(label) for label in labels))
        return self._files[key]

    def _labels(self, key: str) -> Sequence[str]:
        data = self._plan.extern_data[key]
        size = 0 if data.sparse_dim is None else data.sparse_dim.size or 0
        vocab = self._of_vocabulary(key, data.vocab, size)
        if vocab:
            return vocab
        if key in self._of_dataset and len(self._of_dataset[key]) <= size:  # a network may have more labels
            return self._of_dataset[key]
        if not self._of_dataset:  # its files may be on another machine
            for options in _train_options(self._config):
                for name in _VOCABULARIES:
                    given = options.get(name)
                    labels = self._of_vocabulary(key, given, size) if isinstance(given, (Mapping, Vocabulary)) else []
                    if labels:
                        return labels
        return []

    @staticmethod
    def _of_vocabulary(key: str, vocab: Any, size: int) -> Sequence[str]:
        """Return the labels of a vocabulary; none without one, and if it has another size."""
        if vocab is None:
            return []
        try:
            labels = vocab_labels(key, vocab)
        except (ConfigError, DataError) as exc:
            log.warn("The labels of %r are not written: %s" % (key, exc))
            return []
        return labels if len(labels) == size else []

    @functools.cached_property
    def _of_dataset(self) -> Mapping[str, list[str]]:
        """The names of the labels of the training dataset by data key; empty if it can't be opened."""
        try:
            dataset = dataset_from_config(self._config, "train")
            if dataset is None:
                return {}
            with contextlib.closing(dataset):
                return dataset.label_names
        except (ConfigError, DataError, OSError) as exc:
            log.write(3, "The names of labels are not taken from the training dataset: %s" % exc)
            return {}


def _line(label: str) -> str:
    return label.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def feature_settings(config: Config) -> Optional[dict[str, Any]]:
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
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return "function %s" % getattr(value, "__name__", type(value).__name__)


def _train_options(config: Config) -> Iterator[Mapping[str, Any]]:
    """Yield the options of the training dataset, and of those inside it."""
    given = DataSettings(config).train
    if given is None:
        return
    try:
        _, options = parse_dataset_spec(given, NamesOfConfig(config))
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
