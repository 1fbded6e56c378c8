"""States of random generators as JSON."""

import json
import random

import numpy as np
import pytest

from returnn_tf.util.random_state import set_state, state_of


@pytest.mark.parametrize("drawn", [0, 1, 2, 700])
@pytest.mark.parametrize("make", [random.Random, np.random.RandomState])
def test_goes_on(make, drawn):
    """Also in the middle of a pair of numbers with a normal distribution."""

    def draw(rng):
        return rng.gauss(0, 1) if isinstance(rng, random.Random) else rng.normal()

    rng, other = make(3), make(8)
    for _ in range(drawn):
        draw(rng)
    state = json.loads(json.dumps(state_of(rng)))
    draw(other)
    set_state(other, state)
    assert [draw(other) for _ in range(5)] == [draw(rng) for _ in range(5)]
