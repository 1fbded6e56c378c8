"""Grids of scales and their tables."""

import pytest

from returnn_tf.config import ConfigError
from returnn_tf.engine.decoding.beam import BeamOptions
from returnn_tf.engine.decoding.tuning import Point, best_of, grid, table, values_of
from returnn_tf.engine.transcripts.edit_distance import Errors


@pytest.mark.parametrize(
    "text, values",
    [
        ("0.5", [0.5]),
        ("0,-1,2.5", [0.0, -1.0, 2.5]),
        ("0.2:1.2:0.2", [0.2, 0.4, 0.6, 0.8, 1.0, 1.2]),
        ("0:1:0.3", [0.0, 0.3, 0.6, 0.9]),
        ("1:0:-0.5", [1.0, 0.5, 0.0]),
        ("2:2:1", [2.0]),
    ],
)
def test_values(text, values):
    assert values_of(text) == values


@pytest.mark.parametrize("text", ["", "a", "1:2", "1:2:0", "1,,2", "2:1:0.5", "0:1:1e-9"])
def test_wrong_values(text):
    with pytest.raises(ConfigError, match="^tune: "):
        values_of(text)


def test_all_combinations():
    points = grid({"lm_scale": [0.1, 0.2], "beam_size": [5.0, 10.0]}, BeamOptions(word_score=3.0))
    assert [values for values, _ in points] == [
        {"lm_scale": 0.1, "beam_size": 5}, {"lm_scale": 0.1, "beam_size": 10},
        {"lm_scale": 0.2, "beam_size": 5}, {"lm_scale": 0.2, "beam_size": 10},
    ]  # fmt: skip
    assert points[3][1] == BeamOptions(word_score=3.0, lm_scale=0.2, beam_size=10)
    with pytest.raises(ConfigError, match="'lm_scale' has no values"):
        grid({"lm_scale": []}, BeamOptions())


@pytest.mark.parametrize(
    "given, text",
    [
        ({"lm_scale": [0.5]}, "lm_scale has no effect without decode_lm"),
        ({"beam_size": [0.5]}, "beam_size = 0.5 is no whole number"),
        ({"beam_size": [0.0]}, "beam_size = 0 must be above 0"),
        ({"labels_per_frame": [-1.0]}, "labels_per_frame = -1 must be 0 or more"),
        ({"word_score": [float("nan")]}, "word_score = nan is no finite number"),
        ({"beam_threshold": [float("inf")]}, "beam_threshold = inf is no finite number"),
    ],
)
def test_values_that_do_not_fit(given, text):
    with pytest.raises(ConfigError, match="^tune: " + text):
        grid(given, BeamOptions(), {"lm_scale": "without decode_lm"})


def test_the_first_of_the_best_is_marked():
    points = [Point({"lm_scale": scale}, Errors(count, 0, 0, 10), 1.0) for scale, count in ((0.5, 3), (1.5, 2), (2, 2))]
    assert best_of(points) is points[1]
    assert [line.split() for line in table(points)] == [
        ["lm_scale", "word", "errors", "seconds"],
        ["0.5", "30.00%", "1.0"],
        ["1.5", "20.00%", "1.0", "<-", "best"],
        ["2", "20.00%", "1.0"],
    ]
