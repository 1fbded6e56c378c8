"""edit_distance and bleu: against plain Python."""

from __future__ import annotations

import collections
import math
from typing import Any

import numpy as np
import pytest

from tests.layers.losses.single import network_of

EXTERN = {"data": {"dim": 4, "sparse": True}, "classes": {"dim": 4, "sparse": True}}


def _feed(seed: int, batch: int = 6, longest: int = 7) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    lens = {key: rng.integers(0, longest + 1, size=batch).astype("int32") for key in ("data", "classes")}
    feed: dict[str, Any] = {key + "/size0": n for key, n in lens.items()}
    for key in lens:
        feed[key] = rng.integers(0, 4, size=(batch, longest)).astype("int32")
    return feed


def _pairs(feed: dict[str, Any]) -> list[Any]:
    cut = [[list(row[:n]) for row, n in zip(feed[key], feed[key + "/size0"])] for key in ("data", "classes")]
    return list(zip(*cut))


def _distance(a: list[int], b: list[int]) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a):
        new = [i + 1]
        for j, y in enumerate(b):
            new.append(min(row[j] + (x != y), row[j + 1] + 1, new[j] + 1))
        row = new
    return row[-1]


def _run(feed: dict[str, Any], loss: str, **opts: Any) -> Any:
    net = network_of({"class": "copy", "loss": loss, "target": "classes", "loss_opts": opts}, extern_data=EXTERN)
    out = net.run(feed)
    assert out.losses == {} and net.plan.losses
    return out.errors["output"]


@pytest.mark.parametrize("seed", range(5))
def test_edit_distance(seed: int) -> None:
    feed = _feed(seed)
    assert _run(feed, "edit_distance") == sum(_distance(a, b) for a, b in _pairs(feed))


def test_label_map_changes_both_sides() -> None:
    feed = _feed(9)
    names = {0: 2, 1: 3}
    pairs = [([names.get(x, x) for x in a], [names.get(x, x) for x in b]) for a, b in _pairs(feed)]
    assert _run(feed, "edit_distance", label_map=names) == sum(_distance(a, b) for a, b in pairs)


def test_ctc_decode() -> None:
    """Scores with a blank as last class: repetitions and blanks go away first."""
    best = np.array([[0, 0, 3, 0, 1], [3, 3, 2, 2, 1], [3, 3, 3, 3, 3]])
    lens, expected = np.array([5, 4, 3], "int32"), [[0, 0, 1], [2], []]
    targets = np.array([[0, 1, 1], [2, 1, 0], [1, 1, 0]], "int32")
    target_lens = np.array([2, 2, 1], "int32")
    feed = {
        "data": np.eye(4, dtype="float32")[best],
        "data/size0": lens,
        "classes": targets,
        "classes/size0": target_lens,
    }
    layer = {"class": "copy", "loss": "edit_distance", "target": "classes", "loss_opts": {"ctc_decode": True}}
    extern = {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True}}
    error = network_of(layer, extern_data=extern).run(feed).errors["output"]
    assert error == sum(_distance(a, list(b[:n])) for a, b, n in zip(expected, targets, target_lens))


def _grams(seq: list[int], n: int) -> Any:
    return collections.Counter(tuple(seq[i : i + n]) for i in range(len(seq) - n + 1))


def _bleu(hyp: list[int], ref: list[int]) -> float:
    if not hyp:
        return 0.0
    logs, smooth = 0.0, 1.0
    for n in range(1, 5):
        possible = max(len(hyp) - n + 1, 0)
        matches = sum((_grams(hyp, n) & _grams(ref, n)).values())
        if possible and not matches:
            smooth *= 2
        if possible:
            logs += math.log((matches or 1.0 / smooth) / possible)
    return math.exp(logs / 4) * math.exp(min(0.0, 1.0 - len(ref) / len(hyp)))


@pytest.mark.parametrize("seed", range(3))
def test_bleu(seed: int) -> None:
    feed = _feed(seed, longest=6)
    np.testing.assert_allclose(_run(feed, "bleu"), -sum(_bleu(a, b) for a, b in _pairs(feed)), rtol=1e-5, atol=1e-6)


def test_bleu_of_a_perfect_hypothesis_is_one() -> None:
    feed = _feed(4)
    feed["data/size0"] = feed["classes/size0"] = np.array([7, 6, 5, 4, 4, 6], "int32")
    feed["data"] = feed["classes"]
    np.testing.assert_allclose(_run(feed, "bleu"), -6.0, rtol=1e-5)


@pytest.mark.parametrize(
    "layer, printed",
    [
        (
            {"class": "copy", "from": "data", "loss": "edit_distance", "loss_opts": {"debug_print": True}},
            "output [[1 2]] [2] target: [[3 0]] [1]",
        ),
        (
            {"class": "softmax", "from": "data", "loss": "ce", "target": "data", "loss_opts": {"debug_dump": True},
             "forward_weights_init": 0},
            "output ce: [[1.38629436 1.38629436]]",
        ),
    ],
)  # fmt: skip
def test_printed_values(layer: dict[str, Any], printed: str, capfd: pytest.CaptureFixture) -> None:
    feed = {"data": [[1, 2]], "data/size0": [2], "classes": [[3, 0]], "classes/size0": [1]}
    network_of(layer, extern_data=EXTERN).run({key: np.array(value, "int32") for key, value in feed.items()})
    assert printed in capfd.readouterr().err
