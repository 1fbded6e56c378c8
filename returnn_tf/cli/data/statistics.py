"""Statistics of one data key over the sequences of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.datasets.core.data_spec import DataSpec, num_frames
from returnn_tf.logging.text import printable

_COUNTED_TOGETHER = 1 << 20  # labels or values

#: How vocabularies call a word that is not in them.
UNKNOWN = ("<unk>", "<UNK>", "UNK", "unk", "[UNKNOWN]", "[unknown]", "[UNK]")


def unknown_labels(options: Any) -> list[str]:
    """Return the labels of unknown words: those that the options of a dataset name, and the usual ones."""
    found = [getattr(options, name, None) for name in ("unknown_label", "unknown_symbol")]
    for name in ("targets", "orth_vocab", "vocab", "bpe", "chars"):
        vocabulary = getattr(options, name, None)
        if isinstance(vocabulary, Mapping):
            found.append(vocabulary.get("unknown_label"))
    flat = [label for entry in found for label in (entry.values() if isinstance(entry, Mapping) else [entry])]
    return list(dict.fromkeys([*(label for label in flat if isinstance(label, str)), *UNKNOWN]))


def known_labels(spec: DataSpec) -> tuple[str, ...]:
    """Return the names of the labels; empty if absent, or only a placeholder as in some HDF files."""
    return spec.labels if spec.labels and len(spec.labels) == spec.dim else ()


class KeyStatistics:
    """Collects lengths, frequencies of labels, and moments of values.

    :param key: the data key
    :param spec: its format
    :param unknown: labels that stand for words outside of the vocabulary
    """

    def __init__(self, key: str, spec: DataSpec, unknown: Iterable[str] = UNKNOWN) -> None:
        self.key = key
        self.spec = spec
        self._unknown = list(unknown)
        #: frames of each sequence
        self.lengths: list[int] = []
        self.has_time = spec.ndim > 0
        self._counts: dict[int, int] = {}  # by label; the dim may be larger than memory
        self._waiting: list[NDArray[Any]] = []  # labels that are not counted yet
        self._num_waiting = 0
        self._moments = np.zeros(3)  # number, sum and sum of squares of the finite values
        self._range = np.array([np.inf, -np.inf])
        self._not_finite = 0

    def add(self, value: NDArray[Any]) -> None:
        """Count a sequence, [time, ...] or []."""
        self.lengths.append(num_frames(value))
        if not value.size or value.dtype.kind not in "iufb":
            return
        if self.holds_text:
            return
        flat = value.reshape(-1)
        for start in range(0, len(flat), _COUNTED_TOGETHER):
            part = flat[start : start + _COUNTED_TOGETHER]
            if self.spec.sparse:
                self._add_labels(part.astype(np.int64))
            else:
                self._add_values(part.astype(np.float64))

    def _add_labels(self, labels: NDArray[Any]) -> None:
        self._waiting.append(labels)
        self._num_waiting += len(labels)
        if self._num_waiting >= _COUNTED_TOGETHER:
            self._count_labels()

    def _count_labels(self) -> None:
        """Count the labels that are waiting."""
        if self._waiting:
            labels, counts = np.unique(np.concatenate(self._waiting), return_counts=True)
            for label, count in zip(labels.tolist(), counts.tolist()):
                self._counts[label] = self._counts.get(label, 0) + count
        self._waiting, self._num_waiting = [], 0

    def _add_values(self, values: NDArray[Any]) -> None:
        finite = values[np.isfinite(values)]
        self._not_finite += len(values) - len(finite)
        if len(finite):
            self._moments += (len(finite), finite.sum(), np.square(finite).sum())
            self._range = np.array([min(self._range[0], finite.min()), max(self._range[1], finite.max())])

    @property
    def holds_text(self) -> bool:
        """Return whether it holds strings, or bytes in UTF-8, such as the key "orth" of corpora of speech."""
        spec = self.spec
        return spec.is_text or (spec.dtype == "uint8" and spec.ndim == 1 and spec.dim == 256)

    def row(self) -> tuple[str, ...]:
        """Return the cells of a table: key, form, dim, dtype, frames; shortest, mean, median and longest sequence."""
        spec = self.spec
        form = "text" if self.holds_text else "labels" if spec.sparse and spec.dim else "values"
        axes = ["T"] * self.has_time + [str(size) if size is not None else "?" for size in spec.shape]
        cells = [printable(self.key), "%s [%s]" % (form, ", ".join(axes)), str(spec.dim or "-")]
        cells += ["string" if spec.is_text else spec.dtype, str(sum(self.lengths))]
        if not self.has_time:
            return (*cells, "-", "-", "-", "-")
        lengths = np.array(self.lengths)
        middle = ["%.1f" % lengths.mean(), "%g" % np.median(lengths)]
        return (*cells, str(lengths.min()), *middle, str(lengths.max()))

    def details(self, most_frequent: int) -> Iterator[str]:
        """Yield lines on the labels or values.

        :param most_frequent: how many labels to show
        """
        self._count_labels()
        if self._counts:
            yield from self._label_lines(most_frequent)
        if self._moments[0]:
            number, total, squares = self._moments
            mean = total / number
            deviation = np.sqrt(max(squares / number - mean**2, 0.0))
            text = "\nvalues of %r: mean %.4g, standard deviation %.4g, from %.4g to %.4g"
            yield text % (self.key, mean, deviation, *self._range)
        if self._not_finite:
            yield "  %d values of %r are NaN or infinite" % (self._not_finite, self.key)

    def _label_lines(self, most_frequent: int) -> Iterator[str]:
        names, dim = known_labels(self.spec), self.spec.dim
        counts = {label: count for label, count in self._counts.items() if label >= 0}
        total = sum(counts.values())
        unused = dim - sum(label < dim for label in counts)
        yield "\nmost frequent labels of %r, of %d (%d do not occur):" % (self.key, dim, unused)
        for label, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most_frequent]:
            name = repr(names[label]) if label < len(names) else ""
            yield ("  %6d  %6.2f %%  %9d  %s" % (label, 100 * count / total, count, name)).rstrip()
        for name in self._unknown:
            if name in names:
                unknown = counts.get(names.index(name), 0)
                share = 100 * unknown / max(total, 1)
                yield "  out of vocabulary (%r): %d of %d, %.2f %%" % (name, unknown, total, share)
        outside = sum(count for label, count in self._counts.items() if label < 0 or label >= dim > 0)
        if outside:
            yield "  %d labels are outside of 0 to %d" % (outside, self.spec.dim - 1)
