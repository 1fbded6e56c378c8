"""The labels of a vocabulary as a tree of prefixes, to split words into labels at random."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Callable, Optional


class _Node:
    """A prefix of labels.

    :ivar label: the prefix, if it is a label
    :ivar inner: the label of this prefix for a piece that does not end a word
    """

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.label: Optional[str] = None
        self.inner: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class _Hypothesis:
    """The closed pieces of a word, the open one, and the number of characters in all of them."""

    pieces: tuple[str, ...]
    node: _Node
    size: int


class LabelTrie:
    """The prefixes of labels.

    :param labels: the pieces of words
    :param mark: end of the labels that do not end a word; empty: labels without mark may stand anywhere
    :param prefix: beginning of the labels that begin a word
    """

    def __init__(self, labels: Iterable[str], *, mark: str, prefix: str) -> None:
        self._root = _Node()
        for label in labels:
            is_inner = bool(mark) and label.endswith(mark)
            node = self._node(label[: -len(mark)] if is_inner else label)
            if is_inner:
                node.inner = label
            else:
                node.label = label
                if not mark:
                    node.inner = label
        self._root.inner = None  # an empty piece
        self._start = self._node(prefix)

    def _node(self, text: str) -> _Node:
        node = self._root
        for char in text:
            node = node.children.setdefault(char, _Node())
        return node

    def sample(self, word: str, breadth: float, draw: Callable[[], float]) -> list[str]:
        """Split a word into labels, depth first.

        In each step the open piece may be closed, or continued; what was added last to the stack is tried next. The
        random stream is that of RETURNN: one number per step, also where there is no choice.

        :param breadth: probability that closing is tried first
        :param draw: returns a random number from 0 to 1
        :returns: the labels; empty if there is no way to split
        """
        stack = [_Hypothesis((), self._start, 0)]
        while stack:
            candidates = self._steps(stack.pop(), word)
            if draw() <= breadth:
                candidates.reverse()
            result: list[str] = []
            for hypothesis in candidates:
                if hypothesis.size < len(word):
                    stack.append(hypothesis)
                elif hypothesis.node.label is not None:
                    result = [*hypothesis.pieces, hypothesis.node.label]
            if result:
                return result
        return []

    def _steps(self, hypothesis: _Hypothesis, word: str) -> list[_Hypothesis]:
        """Return what the next character leads to: first with the open piece closed before it, then continued."""
        char, size = word[hypothesis.size], hypothesis.size + 1
        node = hypothesis.node
        found = []
        if node.inner is not None and char in self._root.children:
            found.append(_Hypothesis((*hypothesis.pieces, node.inner), self._root.children[char], size))
        if char in node.children:
            found.append(_Hypothesis(hypothesis.pieces, node.children[char], size))
        return found
