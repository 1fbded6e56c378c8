"""States of random generators as JSON, for checkpoints."""

from __future__ import annotations

import base64
import random
from typing import Any, Union

import numpy as np

_MT19937 = "MT19937"


def state_of(rng: Union[random.Random, np.random.RandomState]) -> list[Any]:
    """Return the state of a generator: its 624 words, the place in them, and a number with a normal distribution."""
    if isinstance(rng, random.Random):
        _, (*words, place), ahead = rng.getstate()
    else:
        _, words, place, has_ahead, number = rng.get_state()
        ahead = float(number) if has_ahead else None
    return [base64.b64encode(np.asarray(words, "<u4").tobytes()).decode("ascii"), int(place), ahead]


def set_state(rng: Union[random.Random, np.random.RandomState], state: list[Any]) -> None:
    """Set the state of a generator to one of `state_of` for a generator of the same kind."""
    text, place, ahead = state
    words = np.frombuffer(base64.b64decode(text), "<u4")
    if isinstance(rng, random.Random):
        rng.setstate((random.Random.VERSION, (*words.tolist(), place), ahead))
    else:
        rng.set_state((_MT19937, words, place, int(ahead is not None), ahead or 0.0))
