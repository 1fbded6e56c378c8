"""Cases of the scans with a matrix as state and of the sLSTM, for their kernels on CPUs and GPUs alike."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LENGTHS = [70, 0, 1, 43]
HEADS = 2
_FRAMES = (max(LENGTHS), len(LENGTHS), HEADS)

#: keys, values, decays, whether outputs see the state before the frame, whether sequences run backwards: sizes that
#: fill vectors and others
MATRIX_CASES = [(16, 32, 16, False, False), (5, 7, 5, True, True), (33, 20, 1, False, True), (20, 33, 1, True, False)]
#: keys, values, whether there are decays
DELTA_CASES = [(16, 64, True), (5, 7, False), (33, 83, True)]

SLSTM_FRAMES, SLSTM_LENGTHS = 11, [11, 0, 1, 7, 11, 4]
#: units of all heads, options of the unit, direction, whether there is one sequence, without lengths
SLSTM_CASES: list[tuple[int, dict[str, Any], int, bool]] = [
    (37, {}, 1, False),
    (40, {"num_heads": 2, "forget_gate": "exp"}, -1, False),
    (12, {"num_heads": 3}, -1, False),
    (20, {"num_heads": 2}, 1, True),
]


def gates_far_from_zero() -> NDArray[Any]:
    """Return values of a forget gate over the whole range of log sigmoid, from where it is x to -exp(-x)."""
    return np.concatenate([np.linspace(-100, 100, 401), np.linspace(-1, 1, 101)]).astype("float32")


def matrix_arrays(keys: int, values: int, decays: int) -> dict[str, NDArray[Any]]:
    """Return q, k, v, g and the first state, with weak decays and some that leave nothing, and NaN in the padding."""
    rng = np.random.RandomState(1)
    q, k, v = (rng.normal(0, 0.5, (*_FRAMES, d)) for d in (keys, keys, values))
    g = -rng.gamma(0.3, size=(*_FRAMES, decays))
    g[::9] *= 1e4
    first = rng.normal(size=(len(LENGTHS), HEADS, keys, values))
    for x in (q, k, v, g):
        for b, length in enumerate(LENGTHS):
            x[length:, b] = np.nan
    return {"q": q, "k": k, "v": v, "g": g, "first": first}


def delta_arrays(keys: int, values: int, decays: bool) -> dict[str, NDArray[Any]]:
    """Return the fields of `HeadFrames`, and the first state; what is removed is read by the same key, as in units."""
    rng = np.random.RandomState(1)
    removed = rng.normal(size=(*_FRAMES, keys))
    removed /= np.linalg.norm(removed, axis=-1, keepdims=True)
    return {
        "r": rng.normal(0, 0.5, (*_FRAMES, keys)),
        "k": rng.normal(0, 0.5, (*_FRAMES, keys)),
        "v": rng.normal(0, 0.5, (*_FRAMES, values)),
        "a": -removed,
        "b": rng.uniform(size=(*_FRAMES, 1)) * removed,
        "state": rng.normal(size=(len(LENGTHS), HEADS, keys, values)),
        **({"log_decay": -0.6 * rng.uniform(size=(*_FRAMES, keys))} if decays else {}),
    }
