"""The option ``epoch_wise_filter``: ranges of epochs, and the shortest sequences by their mean length."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.datasets.core.epoch_filter import EpochFilter, limit_mean_length


def _allowed_by_rule(order, lengths, limit):
    """Return each result that the rule allows: several counts of sequences may have the very mean."""
    shortest = sorted(range(len(order)), key=lambda i: (lengths[i], order[i]))
    means = [sum(lengths[i] for i in shortest[:count]) / count for count in range(1, len(order) + 1)]
    counts = [count for count, mean in enumerate(means, 1) if mean == limit]
    if not counts:
        counts = [count for count, mean in enumerate(means, 1) if mean > limit][:1] or [len(order)]
    return [[order[i] for i in sorted(shortest[:count])] for count in counts]


@pytest.mark.parametrize("seed", range(30))
def test_new_filter_follows_the_rule(seed):
    rng = np.random.RandomState(seed)
    order = rng.permutation(rng.randint(1, 20))
    lengths = rng.randint(1, 12, size=len(order))
    for limit in (0.5, 3, 4.5, 6, 100, float(lengths.mean())):
        assert limit_mean_length(order, lengths, limit).tolist() in _allowed_by_rule(order, lengths, limit)


@pytest.mark.parametrize(
    "lengths, limit, expected",
    [
        ([5, 1, 3, 9], 2, [1, 2]),  # mean exactly 2
        ([5, 1, 3, 9], 2.5, [0, 1, 2]),  # the one that exceeds the limit is included
        ([5, 1, 3, 9], 0.5, [1]),
        ([5, 1, 3, 9], 50, [0, 1, 2, 3]),
        ([4], 4, [0]),  # of several counts with this mean, the one that bisection of 1 to n meets first
        ([4, 4], 4, [0, 1]),
        ([4, 4, 4], 4, [0, 1]),
        ([4, 4, 4, 4, 4, 9], 4, [0, 1, 2, 3]),
        ([9, 4, 9, 9, 9, 9, 4, 9], 4, [1, 6]),
        ([5, 1, 3, 9], 0, [0, 1, 2, 3]),
        ([5, 1, 3, 9], None, [0, 1, 2, 3]),
    ],
)
def test_new_filter(lengths, limit, expected):
    assert limit_mean_length(np.arange(len(lengths)), np.array(lengths), limit).tolist() == expected


@pytest.mark.parametrize(
    "limit, expected",
    [
        (100, [1, 2, 0]),  # 3 of 4 are tried first
        (3, [1, 2, 0]),
        (2.9, [1, 2]),  # then 2
        (1.5, [1]),
        (0.1, [1]),
    ],
)
def test_old_filter_halves_and_sorts(limit, expected):
    got = limit_mean_length(np.arange(4), np.array([5, 1, 3, 9]), limit, new_filter=False)
    assert got.tolist() == expected


def test_ties_are_in_the_order_of_the_corpus():
    order = np.array([7, 2, 5])
    assert limit_mean_length(order, np.array([3, 3, 3]), 1).tolist() == [2]
    assert limit_mean_length(order, np.array([3, 3, 3]), 3, new_filter=False).tolist() == [2, 5]


def test_ranges():
    given = {(5, 10): {"max_mean_len": 2}, (1, 5): {"max_mean_len": 1}, (8, -1): {"max_mean_len": 3}, (9, None): {}}
    epoch_filter = EpochFilter.parse(given, owner="dataset")
    limits = {epoch: [entry.get("max_mean_len") for entry in epoch_filter.at(epoch)] for epoch in (1, 5, 6, 9, 11)}
    assert limits == {1: [1], 5: [1, 2], 6: [2], 9: [2, 3, None], 11: [3, None]}
    assert EpochFilter.parse(None, owner="dataset").at(1) == []
    assert EpochFilter.parse({(None, 5): {"max_mean_len": 1}}, owner="dataset").at(1) == [{"max_mean_len": 1}]


@pytest.mark.parametrize(
    "value, text",
    [
        (3, "must have the form"),
        ({(None, 3): {}, (4, -1): {}}, "begin with None and with a number; write 1 for the first epoch"),
        ({1: {}}, "1 is no range of epochs"),
        ({(1, 2, 3): {}}, "is no range of epochs"),
        ({(1.0, 2): {}}, "is no range of epochs"),
        ({(3, 2): {}}, "ends before it begins"),
        ({(1, 2): 7}, "7 must be a dict"),
        ({(1, 2): {"max_mean": 7}}, "unknown option 'max_mean'. Did you mean 'max_mean_len'"),
        ({(1, 2): {"max_mean_len": "7"}}, "max_mean_len is '7', but must be a number"),
        ({(1, 2): {"max_mean_len": float("nan")}}, "max_mean_len is nan"),
        ({(1, 2): {"use_new_filter": "no"}}, "use_new_filter is 'no', not True or False"),
        ({(1, 2): {"subdirs": 5}}, "subdirs is 5, but must be a list of names"),
    ],
)
def test_bad_values(value, text):
    with pytest.raises(ConfigError, match="dataset 'a': option 'epoch_wise_filter'.*" + text):
        EpochFilter.parse(value, owner="dataset 'a'", options=("max_mean_len", "use_new_filter", "subdirs"))
