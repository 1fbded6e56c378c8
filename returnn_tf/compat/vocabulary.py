"""``from returnn.datasets.generating import Vocabulary``: the labels of a vocabulary file, for functions of configs."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.config.compat_modules import register_compat
from returnn_tf.datasets.label_file import vocab_labels

register_compat(__name__, "returnn.datasets.generating", "GeneratingDataset")
register_compat(__name__, "returnn.datasets.util.vocabulary")


class Vocabulary:
    """Labels by index. ``labels`` is the list, ``num_labels`` their number.

    :param vocab_file: pickled or literal dict from label to index, or a text file with one label per line
    :param labels: the labels themselves, or a function which returns them
    :param unknown_label: stands for words which are not in the vocabulary
    :param others: further options of vocabularies, which do not affect the labels
    :raises ConfigError: the file holds no vocabulary
    """

    def __init__(
        self, vocab_file: Optional[str] = None, labels: Any = None, unknown_label: Optional[str] = None, **others: Any
    ) -> None:
        self.labels: list[str] = vocab_labels("vocabulary", {"vocab_file": vocab_file, "labels": labels})
        self.num_labels = len(self.labels)
        self.unknown_label = unknown_label
        self._index = {label: index for index, label in enumerate(self.labels)}

    @classmethod
    def create_vocab(cls, **options: Any) -> Vocabulary:
        """Create one from the options of a vocabulary in a config, including ``class``."""
        return cls(**{key: value for key, value in options.items() if key != "class"})

    def label_to_id(self, label: str) -> int:
        """Return the index of a label, or that of the unknown label."""
        if label not in self._index and self.unknown_label is not None:
            label = self.unknown_label
        return self._index[label]

    def id_to_label(self, index: int) -> str:
        """Return the label of an index."""
        return self.labels[index]

    def get_seq(self, sentence: str) -> list[int]:
        """Return the indices of the words of a text."""
        return [self.label_to_id(word) for word in sentence.split()]

    def get_seq_labels(self, seq: Any) -> str:
        """Return the text of a sequence of indices."""
        return " ".join(self.labels[index] for index in seq)
