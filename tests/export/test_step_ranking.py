"""Which continuations of hypotheses a search over single steps keeps, and in which order."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_tf.export.steps.search import best_continuations

RANDOM = np.random.RandomState(1).normal(size=(3, 4, 50)).astype("float32")
FEW = np.full_like(RANDOM, -np.inf)
FEW[:, 1, ::20] = RANDOM[:, 1, ::20]
UNDEFINED = np.where(RANDOM > 0.5, np.float32(np.nan), RANDOM)
RANKS = {
    "distinct": RANDOM,
    "ties": np.round(RANDOM),
    "all alike": np.zeros_like(RANDOM),
    "fewer than wanted": FEW,
    "not a number": UNDEFINED,
    "nothing but not a number": np.full_like(RANDOM, np.nan),
}


@pytest.mark.parametrize("count", [1, 7, 100, 199, 200, 300])
@pytest.mark.parametrize("ranks", RANKS.values(), ids=RANKS)
def test_as_by_sorting_all(ranks: np.ndarray, count: int) -> None:
    """The best ones come first, ties by their place, NaN last; there are no more than there are continuations."""
    source, label = best_continuations(ranks, count)
    order = [
        sorted(range(200), key=lambda i, row=row: (np.isnan(row[i]), -np.nan_to_num(row[i]), i))
        for row in ranks.reshape(3, 200)
    ]
    assert source.dtype == label.dtype == np.int32
    np.testing.assert_array_equal(source * 50 + label, np.array(order)[:, :count])
