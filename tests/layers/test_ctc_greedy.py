"""ctc_greedy: the best path of CTC against a loop over frames, its score, its labels, and where it is a mistake."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.search.searcher import Searcher

CLASSES = 4


def _scores(paths: list[list[int]], seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return logits [batch, time, CLASSES] whose best classes are these, with NaN in the padding, and the lengths."""
    rng = np.random.default_rng(seed)
    lens = np.array([len(path) for path in paths], "int32")
    values = np.full([len(paths), max(lens, default=0), CLASSES], np.nan, "float32")
    for row, path in enumerate(paths):
        values[row, : len(path)] = rng.uniform(-1, 1, [len(path), CLASSES])
        for frame, label in enumerate(path):
            values[row, frame, label] = 2.0
    return values, lens


def _merged(path: list[int], blank: int) -> list[int]:
    return [label for label, _ in itertools.groupby(path) if label != blank]


def _net(options: dict[str, Any], classes: int = 3, time: Any = None, **layers: Any) -> Network:
    data = {"dim": CLASSES} if time is None else {"dim": CLASSES, "shape": (time, CLASSES), "time_dim_axis": 1}
    return Network.from_config(
        Config(
            {
                "extern_data": {"data": data, "classes": {"dim": classes, "sparse": True}},
                "network": {"output": {"class": "ctc_greedy", "from": "data", **options}, **layers},
                "behavior_version": 21,
            }
        ),
        search=True,
    )


PATHS = [[3, 0, 0, 3, 0, 1, 1, 3], [2, 2, 1], [], [3, 3, 3], [0], [1, 1, 1, 1, 2, 2, 3, 3]]


@pytest.mark.parametrize("blank", [-1, 0, 1, 3])
def test_labels_are_those_of_the_best_path(blank: int) -> None:
    values, lens = _scores(PATHS)
    result = _net({"blank_index": blank}).run({"data": values, "data/size0": lens}).layers["output"]
    expected = [_merged(path, blank % CLASSES) for path in PATHS]
    assert result.sizes[1].tolist() == [len(labels) for labels in expected]
    assert [row[: len(labels)].tolist() for row, labels in zip(result.value, expected)] == expected
    assert result.value.shape == (len(PATHS), max(map(len, expected)))


@pytest.mark.parametrize("paths", [[], [[]], [[], []], [[3]]], ids=str)
def test_nothing_is_recognised_in_nothing(paths: list[list[int]]) -> None:
    values, lens = _scores(paths)
    frames = int(lens.max()) if paths else 0
    result = _net({}).run({"data": values.reshape(len(paths), frames, CLASSES), "data/size0": lens}).layers["output"]
    assert result.value.shape == (len(paths), 0) and result.sizes[1].tolist() == [0] * len(paths)


def test_frames_of_a_static_axis() -> None:
    values, _ = _scores([[0, 0, 3], [1, 2, 2]])
    result = _net({}, time=3).run({"data": values}).layers["output"]
    assert result.sizes[1].tolist() == [1, 2] and result.value[1].tolist() == [1, 2]


@pytest.mark.parametrize("kind", ["prob", "log_prob", "logits"])
def test_score_is_the_log_probability_of_the_path(kind: str) -> None:
    values, lens = _scores(PATHS)
    log_probs = values - np.log(np.exp(values).sum(axis=-1, keepdims=True))
    given = {"prob": np.exp(log_probs), "log_prob": log_probs, "logits": values + 5.0}[kind]
    searcher = Searcher(_net({"input_type": kind}), ["output"], with_losses=False)
    found = searcher.run(searcher.tensors({"data": given, "data/size0": lens})).hypotheses["output"]
    for row, ((best,), path) in enumerate(zip(found, PATHS)):
        assert best.labels.tolist() == _merged(path, 3)
        expected = log_probs[row, np.arange(len(path)), path].sum()
        assert best.score == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "target, classes, blank, size", [("classes", 3, -1, 3), ("classes", 4, 0, 4), (None, 3, -1, 3), (None, 3, 1, 4)]
)
def test_labels_of_the_target(target: Any, classes: int, blank: int, size: int) -> None:
    net = _net({"target": target, "blank_index": blank}, classes)
    output = net.plan.by_path()["output"].output
    assert output.dim == size and output.rank == 2 and output.time_axis == 1
    assert (output.sparse_dim is net.extern_data["classes"].sparse_dim) == (target is not None)


def test_loss_counts_the_errors() -> None:
    net = _net({"target": "classes", "loss": "edit_distance"})
    values, lens = _scores([[3, 0, 0, 3, 1], [2, 3, 2]])
    feed = {"data": values, "data/size0": lens}
    feed.update({"classes": np.array([[0, 1, 2], [2, 0, 0]], "int32"), "classes/size0": np.array([3, 1], "int32")})
    result = net.run(feed, train=False)
    assert result.errors == {"output": 2.0}


def test_labels_in_a_loop() -> None:
    """The labels of a layer outside are the same in each step; those of a loop are computed once."""
    greedy = {"class": "ctc_greedy", "from": "base:data"}
    unit = {
        "labels": greedy,
        "count": {"class": "length", "from": "labels", "dtype": "int32"},
        "output": {"class": "combine", "kind": "add", "from": ["prev:output", "count"], "initial_output": 0},
    }
    loop = {"class": "rec", "from": "data", "unit": unit, "is_output_layer": True}
    net = _net({}, loop=loop)
    values, lens = _scores(PATHS)
    result = net.run({"data": values, "data/size0": lens}, fetch=["loop"]).layers["loop"]
    for row, path in enumerate(PATHS):
        counts = len(_merged(path, 3)) * np.arange(1, len(path) + 1)
        assert result.value[row][: len(path)].tolist() == counts.tolist()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"blank_index": 4}, "blank_index 4: there are only 4 classes"),
        ({"blank_index": -5}, "blank_index -5: there are only 4 classes"),
        ({"input_type": "score"}, "'score'"),
        ({"from": "logs"}, "the source has the activation 'log_softmax': set input_type = 'log_prob'"),
        ({"from": "probs", "input_type": "logits"}, "the source has the activation 'softmax': set input_type = 'prob'"),
        ({"from": "data:classes"}, "dense features are"),
        ({"from": "last"}, "must have batch, time and classes"),
        ({"target": "few"}, "has 4 classes, but the target 'few' has 2 labels"),
        ({"target": "data"}, "has 4 classes, but the target 'data' has no labels"),
    ],
)
def test_mistakes(options: dict[str, Any], message: str) -> None:
    config = {
        "extern_data": {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True}, "few": {"dim": 2, "sparse": True}},
        "network": {
            "last": {"class": "reduce", "mode": "max", "axis": "T", "from": "data"},
            "probs": {"class": "softmax", "n_out": 4, "from": "data"},
            "logs": {"class": "linear", "activation": "log_softmax", "n_out": 4, "from": "data"},
            "output": {"class": "ctc_greedy", "from": "data", **options},
        },
        "behavior_version": 21,
    }
    with pytest.raises(ConfigError) as caught:
        Network.from_config(Config(config))
    assert message in str(caught.value) and "output" in str(caught.value)
