"""What every decoder of scores per frame takes and returns."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import CtcDataError


@dataclass(frozen=True)
class Decoded:
    """One hypothesis of a sequence.

    :param labels: indices, without blanks
    :param frames: of each label: its first frame, and the one past its last, on the best path of these labels; None:
        they were not wanted
    :param words: from a lexicon; None without one
    :param word_labels: of each word: its first label, and the one past its last; labels between words, as silence,
        belong to none
    :param score: log score, all parts weighted and summed
    :param parts: the weighted parts by name, as "acoustic", "lm"
    """

    labels: tuple[int, ...]
    frames: Optional[tuple[tuple[int, int], ...]]
    score: float
    parts: Mapping[str, float] = field(default_factory=dict)
    words: Optional[tuple[str, ...]] = None
    word_labels: Optional[tuple[tuple[int, int], ...]] = None


class Decoding(abc.ABC):
    """One sequence that is decoded while its frames come; for one thread at a time."""

    @abc.abstractmethod
    def advance(self, log_probs: NDArray[Any]) -> None:
        """Continue by some frames.

        :param log_probs: [frames, labels], natural logs of posteriors
        :raises DataError: see `Decoder.checked`
        """

    @abc.abstractmethod
    def best(self) -> tuple[Sequence[int], Optional[Sequence[str]]]:
        """Return the labels of the best hypothesis so far, and with a lexicon its complete words."""

    @abc.abstractmethod
    def results(self) -> list[Decoded]:
        """Return the hypotheses of a sequence that ends here, the best first; at least one."""


class Decoder(abc.ABC):
    """Decodes sequences; may be called by several threads at once.

    :param num_labels: with the blank, if there is one
    :param blank: its index; None: there is none
    """

    def __init__(self, num_labels: int, blank: Optional[int]) -> None:
        self.num_labels, self.blank = num_labels, blank

    @abc.abstractmethod
    def begin(self) -> Decoding:
        """Begin a sequence."""

    def decode(self, log_probs: NDArray[Any]) -> list[Decoded]:
        """Return the hypotheses of a sequence, the best first; at least one.

        :param log_probs: [frames, labels], natural logs of posteriors
        :raises DataError: see `checked`
        """
        decoding = self.begin()
        decoding.advance(log_probs)
        return decoding.results()

    def checked(self, log_probs: NDArray[Any]) -> NDArray[np.float32]:
        """Return the scores as float32 in C order.

        :raises DataError: their shape is not [frames, labels], or they have values that are no logs of probabilities
        """
        if log_probs.ndim != 2 or log_probs.shape[1] != self.num_labels:
            raise CtcDataError(
                "decoding needs log posteriors [frames, %d labels], got the shape %s."
                % (self.num_labels, list(log_probs.shape))
            )
        scores = np.ascontiguousarray(log_probs, "float32")
        if np.isnan(scores).any() or (scores == np.inf).any():
            raise CtcDataError("the log posteriors have NaN or infinite values: the model or its input is broken.")
        return scores
