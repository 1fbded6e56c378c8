"""triplet_loss and deep_clustering: numpy re-computation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf import ConfigError
from tests.layers.losses.single import LENS, network_of, valid


def _pairs(rows: np.ndarray, labels: np.ndarray, margin: float) -> float:
    """Sum over all ordered pairs."""
    total = 0.0
    for x, a in zip(rows, labels):
        for y, b in zip(rows, labels):
            distance = 1 - x @ y / np.linalg.norm(x) / np.linalg.norm(y)
            total += 0.5 * (distance if b * b == a * b else max(margin - distance, 0))
    return total


def _triplets(by_frame: bool, blocks: int) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    shape = (3, 5) if by_frame else (3,)
    feed: dict[str, Any] = {
        "data": rng.normal(size=(*shape, 2 * blocks)).astype("float32"),
        "labels": rng.integers(0, 3, size=(*shape, 3)).astype("int32"),
    }
    if by_frame:
        padded = np.arange(5) >= LENS[:, None]
        feed["data"][padded] = np.nan
        feed.update({"data/size0": LENS, "labels/size0": LENS})
    return feed


@pytest.mark.sampled(2)
@pytest.mark.parametrize("by_frame", [False, True])
@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("margin", [0.5, 1.5])
def test_triplets(by_frame: bool, views: int, margin: float) -> None:
    blocks, time = 3 * views, ((None,) if by_frame else ())
    extern_data = {
        "data": {"shape": (*time, 2 * blocks), "time_dim_axis": 1 if by_frame else None},
        "labels": {"shape": (*time, 3), "dim": 3, "sparse": True, "time_dim_axis": 1 if by_frame else None},
    }
    opts = {"margin": margin, "multi_view_training": views == 2}
    layer = {"class": "copy", "loss": "triplet_loss", "target": "labels", "loss_opts": opts}
    feed = _triplets(by_frame, blocks)
    out = network_of(layer, extern_data=extern_data).run(feed)
    x, labels = (valid(feed[key]) if by_frame else feed[key] for key in ("data", "labels"))
    rows = [x[:, 2 * i : 2 * i + 2].astype("float64") for i in range(blocks)]
    flat = labels.T.reshape(-1)
    chosen = [[0, 1, 2]] if views == 1 else [[0, 4, 5], [1, 4, 2]]
    expected = sum(_pairs(np.concatenate([rows[i] for i in each]), flat, margin) for each in chosen)
    np.testing.assert_allclose(out.losses["output"], expected, rtol=1e-4)
    assert "output" not in out.errors
    assert out.counts["output"] == 9 * views * len(x)


def test_triplets_of_many_labels() -> None:
    """Squares of labels exceed their type."""
    extern_data = {
        "data": {"shape": (6,), "time_dim_axis": None},
        "labels": {"shape": (3,), "dim": 2**18, "sparse": True, "time_dim_axis": None},
    }
    layer = {"class": "copy", "loss": "triplet_loss", "target": "labels", "loss_opts": {"margin": 0.5}}
    x, labels = _triplets(False, 3)["data"], np.array([[2**16, 2**17, 2**16 + 1]] * 3)
    out = network_of(layer, extern_data=extern_data).run({"data": x, "labels": labels.astype("int32")})
    rows = np.concatenate([x[:, :2], x[:, 2:4], x[:, 4:]])
    np.testing.assert_allclose(out.losses["output"], _pairs(rows, labels.T.reshape(-1), 0.5), rtol=1e-4)


@pytest.mark.parametrize(
    "change, opts, message",
    [
        ({"data": {"shape": (5,), "time_dim_axis": None}}, {"margin": 1.0}, "the output consists of 3 embeddings"),
        ({}, {"margin": 1.0, "multi_view_training": True}, "the output consists of 6 embeddings"),
        ({"labels": {"shape": (2,), "dim": 3, "sparse": True, "time_dim_axis": None}}, {"margin": 1.0}, "3 labels"),
        ({}, {}, "margin"),
    ],
)
def test_wrong_triplets(change: Any, opts: Any, message: str) -> None:
    extern_data = {
        "data": {"shape": (9,), "time_dim_axis": None},
        "labels": {"shape": (3,), "dim": 3, "sparse": True, "time_dim_axis": None},
    }
    layer = {"class": "copy", "loss": "triplet_loss", "target": "labels", "loss_opts": opts}
    with pytest.raises(ConfigError, match=message):
        network_of(layer, extern_data={**extern_data, **change})


@pytest.mark.parametrize("size, sources", [(2, 2), (3, 2), (1, 3)])
def test_deep_clustering(size: int, sources: int) -> None:
    """The formula on the affinity matrices of all pairs of bins, which the three small ones stand for."""
    rng = np.random.default_rng(5)
    bins = 2
    feed: dict[str, Any] = {
        "data": rng.normal(size=(3, 5, bins * size)).astype("float32"),
        "target": rng.normal(size=(3, 5, bins * sources)).astype("float32"),
    }
    for value in feed.values():
        value[np.arange(5) >= LENS[:, None]] = np.nan
    feed = {**feed, **{key + "/size0": LENS for key in feed}}
    extern_data = {"data": {"dim": bins * size}, "target": {"dim": bins * sources}}
    opts = {"embedding_dimension": size, "nr_of_sources": sources}
    layer = {"class": "copy", "loss": "deep_clustering", "target": "target", "loss_opts": opts}
    out = network_of(layer, extern_data=extern_data).run(feed)
    expected = 0.0
    for b, n in enumerate(LENS):
        v, y = feed["data"][b, :n].reshape(-1, size), feed["target"][b, :n].reshape(-1, sources)
        expected += ((v @ v.T - y @ y.T) ** 2).sum()
    np.testing.assert_allclose(out.losses["output"], expected, rtol=1e-4)
    assert "output" not in out.errors


def test_deep_clustering_of_other_sizes() -> None:
    opts = {"embedding_dimension": 3, "nr_of_sources": 2}
    layer = {"class": "copy", "loss": "deep_clustering", "target": "target", "loss_opts": opts}
    with pytest.raises(ConfigError, match="for 2 bins of 2 sources; so the output needs 6 features, but has 4"):
        network_of(layer, extern_data={"data": {"dim": 4}, "target": {"dim": 4}})
