"""What a network computes block by block, and how text comes of it: the same for posteriors of CTC and for searches."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

from numpy.typing import NDArray

from returnn_tf.compiler.lower import Lowered
from returnn_tf.engine.transcripts.transcript import Hypothesis
from returnn_tf.export.streaming import StreamingModel

#: What the network has computed for a block, and its states, by name.
Values = Mapping[str, Any]


class StreamedUtterance(abc.ABC):
    """One utterance, recognised while its blocks come."""

    #: Whether a label was said.
    spoken = False
    #: Frames of the outputs without a label, at the end.
    silence = 0

    @abc.abstractmethod
    def add(self, found: Values) -> None:
        """Go on by a block.

        :raises DataError: the values can't be used
        """

    @abc.abstractmethod
    def text(self) -> str:
        """Return the words so far."""

    @abc.abstractmethod
    def hypotheses(self, frames: int) -> Sequence[Hypothesis]:
        """Return the hypotheses of the utterance, which ends here, the best first; at least one.

        :param frames: of features in it
        """

    def states_after(self, model: StreamingModel, states: Values) -> Values:
        """Return the states with which the next utterance begins: by default those after this one."""
        return states


class StreamOutputs(abc.ABC):
    """The layers that are computed block by block.

    :param paths: of the layers
    """

    #: Emits more from the graph of a block, by name.
    further: Optional[Callable[[Lowered], dict[str, Any]]] = None
    #: Why the times of words are not known; "" if they are.
    without_times = ""
    #: Why pauses are not known; "" if they are.
    without_pauses = ""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(dict.fromkeys(paths))

    @abc.abstractmethod
    def frames(self, found: Values) -> int:
        """Return the frames of the outputs of a block."""

    @abc.abstractmethod
    def begin(self) -> StreamedUtterance:
        """Begin an utterance."""


def first_row(value: Any) -> NDArray[Any]:
    """Return the value of the only sequence of a block."""
    row: NDArray[Any] = value.numpy()[0]
    return row
