"""The order in which the sequences of several datasets are mixed: which dataset is the next, as numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

#: The scale of the noise: a number, "remaining" for one that falls to zero, or None for no noise.
Scale = Union[None, int, float, str]


def random_dataset(counts: list[int], seed: int) -> list[int]:
    """Return for each sequence the number of its dataset: all of them shuffled.

    :param counts: sequences by dataset
    """
    numbers = [number for number, count in enumerate(counts) for _ in range(count)]
    random.Random(seed).shuffle(numbers)
    return numbers


class Interleave:
    """Chooses the dataset of which the lowest fraction is done, if noise does not decide otherwise.

    :param scale: of the gumbel noise that is added to the logarithm of the remaining number
    """

    def __init__(self, scale: Scale, seed: int):
        self._scale = scale
        self._rng = np.random.RandomState(seed)

    def next(self, fractions: dict[int, float], remaining: dict[int, float]) -> int:
        """Return the number of the dataset to read next.

        :param fractions: by dataset which is not at its end: the part that is done once its next sequence is read
        :param remaining: likewise, how many sequences are not read yet
        """
        numbers = sorted(fractions)
        if self._scale is None:
            return min(numbers, key=lambda number: (fractions[number], number))
        scale = 1.0 - max(fractions.values()) if isinstance(self._scale, str) else float(self._scale)
        noise = self._rng.gumbel(size=len(numbers))
        scores = [math.log(max(remaining[number], 1)) + scale * float(value) for number, value in zip(numbers, noise)]
        return numbers[int(np.argmax(scores))]


def interleave(counts: list[int], scale: Scale, seed: int) -> Iterator[int]:
    """Yield for each sequence the number of its dataset, as `Interleave` chooses it."""
    chooser = Interleave(scale, seed)
    done = [0] * len(counts)
    for _ in range(sum(counts)):
        left = {number: count - done[number] for number, count in enumerate(counts) if done[number] < count}
        fractions = {number: (done[number] + 1) / counts[number] for number in left}
        number = chooser.next(fractions, {key: float(value) for key, value in left.items()})
        done[number] += 1
        yield number


class RandomDataset:
    """Chooses among datasets of unknown number in proportion to what is estimated to remain of each."""

    def __init__(self, seed: int):
        self._rng = np.random.RandomState(seed)

    def next(self, fractions: dict[int, float], remaining: dict[int, float]) -> int:
        """Return the number of the dataset to read next; see `Interleave.next`."""
        numbers = sorted(remaining)
        weights = np.array([max(remaining[number], 1.0) for number in numbers])
        return int(self._rng.choice(numbers, p=weights / weights.sum()))


class InTurn:
    """Chooses the first dataset that is not at its end, or the last one."""

    def __init__(self, *, backwards: bool = False):
        self._choose = max if backwards else min

    def next(self, fractions: dict[int, float], remaining: dict[int, float]) -> int:
        """Return the number of the dataset to read next; see `Interleave.next`."""
        return self._choose(fractions)


def sampled(count: int, size: Optional[int], epoch: int) -> NDArray[Any]:
    """Return the positions of the sequences that an epoch takes of a dataset: the next ones, starting anew at its end.

    :param count: sequences of the dataset
    :param size: how many to take, None for all
    """
    if size is None:
        return np.arange(count)
    return (np.arange(size) + (max(epoch, 1) - 1) * size) % count
