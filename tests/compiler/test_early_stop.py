"""The option early_stop of a choice: the same best hypotheses in fewer steps; where it is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError

STEPS, LABELS = 12, 4
FEED = {"data": np.random.default_rng(1).normal(size=(5, 3, 2)).astype("float32"), "data/size0": [3, 1, 2, 3, 2]}


def network(**options: Any) -> Network:
    unit = {
        "emb": {"class": "linear", "activation": "tanh", "n_out": 4, "from": "prev:output"},
        "h": {"class": "rnn_cell", "unit": "LSTM", "n_out": 4, "from": ["prev:emb", "base:mean"]},
        "p": {"class": "softmax", "n_out": LABELS, "from": "h"},
        "end": {"class": "compare", "from": "output", "value": 0},
        "output": {
            "class": "choice", "target": "classes", "beam_size": 4, "from": "p", "initial_output": 0, **options,
        },
    }  # fmt: skip
    net = {
        "mean": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"},
        "output": {"class": "rec", "from": [], "target": "classes", "max_seq_len": STEPS, "unit": unit},
        "best": {"class": "decide", "from": "output", "is_output_layer": True},
    }
    extern = {"data": {"dim": 2}, "classes": {"dim": LABELS, "sparse": True}}
    config = Config({"extern_data": extern, "network": net, "behavior_version": 21})
    return Network.from_config(config, search=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"length_normalization": False}, marks=pytest.mark.long),
        {"length_normalization": True},
        {"independent_of_batch": True, "length_normalization_exponent": 0.6},
    ],
    ids=str,
)
def test_same_best_hypotheses(options: dict[str, Any]) -> None:
    whole, early = network(**options), network(**options, early_stop=True)
    saved = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        params = {k: rng.normal(size=v.shape).astype("float32") * 2 for k, v in whole.get_param_values().items()}
        params["output/rec/p/b"][0] += 2.0
        for net in (whole, early):
            net.set_param_values(params)
        first, second = (net.run(FEED).layers for net in (whole, early))
        np.testing.assert_array_equal(first["best"].sizes[1], second["best"].sizes[1])
        for b, n in enumerate(first["best"].sizes[1]):
            np.testing.assert_array_equal(first["best"].value[b, :n], second["best"].value[b, :n])
        longest = [layers["output"].sizes[1].max() for layers in (first, second)]
        if longest[0] < STEPS or options != {"length_normalization": True}:  # which counts an end after the last step
            scores = [layers["output"].beam_scores.max(axis=1) for layers in (first, second)]
            np.testing.assert_allclose(*scores, rtol=1e-5)
        assert longest[1] <= longest[0]
        saved += longest[0] - longest[1]
    assert saved > 0


@pytest.mark.parametrize(
    "options, text",
    [
        ({"recombine": "sum"}, "early_stop is for scores that only fall"),
        ({"base_beam_score_scale": 0.5}, "early_stop is for scores that only fall"),
    ],
)
def test_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        network(**options, early_stop=True)


def test_refused_where_the_end_is_known() -> None:
    unit = {
        "p": {"class": "softmax", "n_out": LABELS, "from": "data:source"},
        "output": {"class": "choice", "target": "classes", "beam_size": 2, "from": "p", "early_stop": True},
    }
    extern = {"data": {"dim": 2}, "classes": {"dim": LABELS, "sparse": True}}
    net = {"output": {"class": "rec", "from": "data", "target": "classes", "unit": unit}}
    with pytest.raises(ConfigError, match="early_stop needs a loop that finds its end itself") as info:
        Network.from_config(Config({"extern_data": extern, "network": net, "behavior_version": 21}), search=True)
    assert info.value.topic == "loops"
