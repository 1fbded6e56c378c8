"""Rank, size and addresses of a process, from the variables of what started it."""

from __future__ import annotations

import pytest

from returnn_tf.config import ConfigError
from returnn_tf.engine.distributed.membership import find, host_of, port_of


def _launched(rank="1", local_rank="1", local_size="2", addresses="a:1001,a:1002,b:1001", **others):
    return {
        "RETURNN_TF_RANK": rank,
        "RETURNN_TF_LOCAL_RANK": local_rank,
        "RETURNN_TF_LOCAL_SIZE": local_size,
        "RETURNN_TF_ADDRESSES": addresses,
        **others,
    }


def test_nothing_is_set():
    assert find({}) is None
    assert find({"HOME": "/", "OMP_NUM_THREADS": "2"}) is None


@pytest.mark.parametrize(
    "environ, expected",
    [
        (_launched(), (1, 3, 1, 2)),
        (_launched("2", "0", "1"), (2, 3, 0, 1)),
        (_launched("0", "0", "1", "[::1]:80"), (0, 1, 0, 1)),
    ],
)
def test_launched(environ, expected):
    found = find(environ)
    assert (found.rank, found.size, found.local_rank, found.local_size) == expected
    assert ",".join(found.addresses) == environ["RETURNN_TF_ADDRESSES"]


def test_a_token_is_that_of_a_run():
    """Equal for its ranks, another one with other addresses or another secret."""
    of_ranks = {find(_launched(rank, rank, RETURNN_TF_SECRET="x")).token for rank in "01"}
    others = {
        find(_launched()).token,
        find(_launched(RETURNN_TF_SECRET="y")).token,
        find(_launched(addresses="a:1001,a:1002,b:1002", RETURNN_TF_SECRET="x")).token,
    }
    assert len(of_ranks) == 1 and len(others) == 3 and not of_ranks & others


def test_parts_of_addresses():
    assert [(host_of(address), port_of(address)) for address in ("a.b:1", "[::1]:80")] == [("a.b", 1), ("::1", 80)]


@pytest.mark.parametrize(
    "environ, error",
    [
        ({"RETURNN_TF_RANK": "0"}, "RETURNN_TF_RANK is set, but not RETURNN_TF_LOCAL_RANK and RETURNN_TF_LOCAL_SIZE"),
        (_launched(rank="-1"), "RETURNN_TF_RANK must be a number from 0, not '-1'"),
        (_launched(local_size="two"), "RETURNN_TF_LOCAL_SIZE must be a number from 0, not 'two'"),
        (_launched(rank="3"), "RETURNN_TF_RANK=3 is not a rank of 3 processes"),
        (_launched(addresses=""), "RETURNN_TF_ADDRESSES: '' is not host:port"),
        (_launched(addresses="a:1,a"), "'a' is not host:port"),
        (_launched(addresses="a:1,a:65536"), "'a:65536' is not host:port, with a port from 1 to 65535"),
        (_launched(addresses="a:1,b:1,a:1"), "RETURNN_TF_ADDRESSES names a:1 for several ranks"),
        (_launched(local_size="1"), "has local rank 1 of 1, but by RETURNN_TF_ADDRESSES it has local rank 1 of 2 on a"),
        (_launched(local_rank="0"), "has local rank 0 of 2, but by RETURNN_TF_ADDRESSES it has local rank 1 of 2 on a"),
    ],
)
def test_contradictions(environ, error):
    with pytest.raises(ConfigError, match=error):
        find(environ)
