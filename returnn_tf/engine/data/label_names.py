"""The names of the labels of a network's axes, and which of them is a blank, by what plan and config say."""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.datasets.config import dataset_from_config, nested_options
from returnn_tf.datasets.vocabulary import Vocabulary, make_vocabulary, vocab_labels
from returnn_tf.graph.same_labels import SameLabels
from returnn_tf.logging.log import log
from returnn_tf.tensor import Dim

#: Options of datasets that hold a vocabulary.
_VOCABULARIES = ("targets", "orth_vocab", "vocab")


class LabelNames:
    """The labels of the axes of a network, and their names.

    Axes number their labels alike if a layer or loss says so (`Layer.same_labels`), or if one was declared to
    replace the other (`Dim.labels_of`). If their sizes differ, the larger one has further labels at the end.

    :param config: that of the plan
    :param dataset: the one whose vocabulary counts where ``extern_data`` has none
    """

    def __init__(self, plan: Plan, config: Config, dataset: str = "train") -> None:
        self._plan, self._config, self._dataset = plan, config, dataset
        self._alike: dict[Dim, dict[Dim, None]] = {}
        self._blanks: dict[Dim, int] = {}
        self._known: dict[str, Sequence[str]] = {}
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

    def key(self, dim: Dim) -> Optional[str]:
        """Return the data key that has names for the labels of an axis, the one with the most direct relation.

        The names are those of the option ``vocab`` of a data key, else of the dataset. None: they are not known.
        """
        keys = [key for near in self._nearest(dim, same_size=False) for key in self._keys_of(near)]
        target = NetworkSettings(self._config).target
        data = self._plan.extern_data.get(target)
        if target and data is not None and data.sparse_dim is not None and data.sparse_dim.size == dim.size:
            keys.append(target)
        return next((key for key in keys if self.of_key(key)), None)

    def names(self, dim: Dim) -> Sequence[str]:
        """Return the names of the labels of an axis, from the first one; none if they are not known.

        Labels that the network adds behind those of the data, such as an end or a blank, have no name.
        """
        key = self.key(dim)
        return [] if key is None else self.of_key(key)

    def vocabulary(self, dim: Dim) -> Optional[Vocabulary]:
        """Return what splits text into the labels of an axis as the config says; None if it does not.

        :raises ConfigError, DataError: its options or files are wrong
        """
        key = self.key(dim)
        if key is None:
            return None
        of_datasets = [
            options.get(name) for options in nested_options(self._config, self._dataset) for name in _VOCABULARIES
        ]
        for given in (self._plan.extern_data[key].vocab, *of_datasets):
            if not isinstance(given, (Mapping, Vocabulary)) or vocab_labels(key, given) != list(self.of_key(key)):
                continue
            return make_vocabulary(given, owner="labels of %r" % key)
        return None

    def blank(self, dim: Dim) -> Optional[int]:
        """Return the index of the blank of CTC and transducers in an axis, if it is known."""
        return next((self._blanks[each] for each in self._nearest(dim, same_size=True) if each in self._blanks), None)

    def _keys_of(self, dim: Dim) -> list[str]:
        return [key for key, data in self._plan.extern_data.items() if data.sparse_dim is dim]

    def of_key(self, key: str) -> Sequence[str]:
        """Return the names of the labels of a data key; none if they are not known."""
        if key not in self._known:
            self._known[key] = self._labels(key)
        return self._known[key]

    def _labels(self, key: str) -> Sequence[str]:
        data = self._plan.extern_data.get(key)
        if data is None:
            return []
        size = 0 if data.sparse_dim is None else data.sparse_dim.size or 0
        vocab = self._of_vocabulary(key, data.vocab, size)
        if vocab:
            return vocab
        if key in self._of_dataset and len(self._of_dataset[key]) <= size:  # a network may have more labels
            return self._of_dataset[key]
        if not self._of_dataset:  # its files may be on another machine
            for options in nested_options(self._config, self._dataset):
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
            log.warn("The names of the labels of %r are not known: %s" % (key, exc))
            return []
        return labels if len(labels) == size else []

    @functools.cached_property
    def _of_dataset(self) -> Mapping[str, list[str]]:
        """The names of the labels of the dataset by data key; empty if it can't be opened."""
        try:
            dataset = dataset_from_config(self._config, self._dataset)
            if dataset is None:
                return {}
            with contextlib.closing(dataset):
                return dataset.label_names
        except (ConfigError, DataError, OSError) as exc:
            log.write(3, "The names of labels are not taken from the dataset %r: %s" % (self._dataset, exc))
            return {}
