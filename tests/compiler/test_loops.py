"""Step networks: which layers run in the loop, that the split does not matter, and what goes wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.compiler.planning.zones import Links, Zone, find_zones
from returnn_tf.config import Config, ConfigError
from returnn_tf.util.lazy_tf import tf
from tests.feeds import random_feed

EXTERN = {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True}}


def test_zones() -> None:
    links = {
        "emb": Links(["data_in"], []),
        "data_in": Links([], []),
        "state": Links(["emb", "between"], ["state"]),
        "between": Links(["feedback"], []),
        "feedback": Links([], ["state"]),
        "out": Links(["state", "emb"], []),
        "prev_of_known": Links([], ["emb"]),
        "dead": Links(["state"], []),
    }
    zones = find_zones(links, ["out", "prev_of_known"])
    assert zones.zones == {
        "emb": Zone.BEFORE,
        "data_in": Zone.BEFORE,
        "prev_of_known": Zone.BEFORE,
        "state": Zone.STEP,
        "between": Zone.STEP,
        "feedback": Zone.STEP,
        "out": Zone.AFTER,
    }
    assert zones.reasons["state"] == "state <- prev:state"
    assert zones.reasons["between"] == "between <- feedback <- prev:state <- between"
    forced = find_zones(links, ["out"], forced=["emb"])
    assert forced.zones["emb"] is Zone.STEP and forced.reasons["emb"] == "must run step by step"


def _config(unit: dict[str, Any], **options: Any) -> Config:
    loop = {"class": "rec", "from": "data", "unit": unit, **options}
    network = {"loop": loop, "output": {"class": "softmax", "from": "loop", "loss": "ce", "target": "classes"}}
    return Config({"behavior_version": 21, "extern_data": EXTERN, "network": network})


UNITS: dict[str, dict[str, Any]] = {
    "explicit rnn": {
        "h": {"class": "linear", "activation": "tanh", "n_out": 5, "from": ["data:source", "prev:h"]},
        "emb": {"class": "linear", "activation": "relu", "n_out": 2, "from": "data:source"},
        "output": {"class": "linear", "activation": None, "n_out": 3, "from": ["h", "emb", "prev:emb"]},
    },
    "cells": {
        "a": {"class": "rec", "unit": "lstm", "n_out": 3, "from": "data:source"},
        "b": {"class": "rnn_cell", "unit": "gru", "n_out": 4, "from": ["a", "prev:output"]},
        "output": {"class": "linear", "activation": "tanh", "n_out": 3, "from": ["b", "prev:a"]},
    },
    "step index and accumulation": {
        "i": {"class": "eval", "from": [":i", "data:source"], "eval": "tf.cast(source(0), tf.float32) + source(1)"},
        "sum": {"class": "combine", "kind": "add", "from": ["prev:sum", "i"]},
        "output": {
            "class": "eval",
            "from": ["sum", ":i"],
            "eval": "source(0) / (1.0 + tf.cast(source(1), tf.float32))",
        },
    },
    "initial outputs": {
        "x": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "data:source", "initial_output": "var"},
        "y": {"class": "linear", "activation": "tanh", "n_out": 2, "from": ["prev:x", "prev:y"], "initial_output": 0.5},
        "z": {"class": "linear", "activation": None, "n_out": 2, "from": "y", "initial_output": "apply(0)"},
        "output": {"class": "copy", "from": ["prev:z", "y"]},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(UNITS))
def test_result_does_not_depend_on_the_split(name: str) -> None:
    outs: list[Any] = []
    for move in (True, False):
        net = Network.from_config(_config(UNITS[name], optimize_move_layers_out=move))
        feed = random_feed(net.extern_data)
        feed["classes/size0"] = feed["data/size0"]
        outs.append(net.run(feed, with_grad=True, fetch=["loop"]))
    moved, inside = outs
    for b, length in enumerate(feed["data/size0"]):
        np.testing.assert_allclose(
            moved.layers["loop"].value[b, :length], inside.layers["loop"].value[b, :length], rtol=1e-5, atol=1e-6
        )
    assert set(moved.grads) == set(inside.grads)
    for param, grad in moved.grads.items():
        np.testing.assert_allclose(grad, inside.grads[param], rtol=1e-4, atol=1e-5, err_msg=param)


@pytest.mark.parametrize("unit", ["gru", "lstm"])
@pytest.mark.parametrize("move", [True, False])
def test_first_output_of_a_cell_on_zeros(unit: str, move: bool) -> None:
    """By "apply(0)" it is the one of a frame of zeros with the initial state, whatever the frames are."""
    steps = {
        "s": {"class": "rnn_cell", "unit": unit, "n_out": 3, "from": "data:source", "initial_output": "apply(0)"},
        "output": {"class": "copy", "from": ["s", "prev:s"]},
    }
    net = Network.from_config(_config(steps, optimize_move_layers_out=move))
    rng = np.random.RandomState(1)
    net.set_param_values({name: rng.normal(size=p.shape).astype("float32") for name, p in net.params.items()})
    feed = random_feed(net.extern_data)
    feed["classes/size0"] = feed["data/size0"]
    outs = []
    for factor in (0, 1):
        feed["data"][:, 0] *= factor
        outs.append(net.run(feed, fetch=["loop"]).layers["loop"].value[:, 0])
        feed = {**feed, "data": rng.normal(size=feed["data"].shape).astype("float32")}
    assert np.all(outs[0][:, :3])
    for out in outs:
        np.testing.assert_allclose(out[:, 3:], outs[0][:, :3], rtol=1e-6)


def _decoder(**choice: Any) -> Config:
    network = {
        "enc": {"class": "rec", "unit": "lstm", "n_out": 4, "from": "data"},
        "output": {
            "class": "rec", "from": [], "target": "classes", "max_seq_len": "max_len_from('base:enc') + 2", "unit": {
                "emb": {"class": "linear", "activation": None, "n_out": 3, "from": "output", "initial_output": 0},
                "e": {"class": "dot", "from": ["base:enc", "q"], "reduce": "F", "var1": "T", "var2": None},
                "q": {"class": "linear", "activation": None, "n_out": 4, "from": "s"},
                "s": {"class": "rnn_cell", "unit": "standardlstm", "n_out": 5, "from": "prev:emb"},
                "p": {"class": "softmax", "target": "classes", "loss": "ce", "from": "s"},
                "output": {"class": "choice", "target": "classes", "from": "p", "initial_output": 0, **choice},
                "end": {"class": "compare", "from": "output", "value": 0},
            },
        },
        "best": {"class": "decide", "from": "output", "is_output_layer": True},
    }  # fmt: skip
    return Config({"behavior_version": 21, "extern_data": EXTERN, "network": network})


def _search(config: Config) -> Any:
    net = Network.from_config(config, search=True)
    rng = np.random.default_rng(5)
    net.set_param_values({name: rng.normal(size=var.shape) for name, var in net.params.items()})
    feed = random_feed({"data": net.extern_data["data"]})
    return net, net.run(feed), feed


@pytest.mark.slow
def test_score_of_a_hypothesis_is_its_log_probability() -> None:
    """The training graph, fed with a hypothesis, gives the score that the search gave."""
    net, out, feed = _search(_decoder(beam_size=4, length_normalization=False))
    result = out.layers["output"]
    train = Network.from_config(_decoder(beam_size=4), train=True)
    train.set_param_values({name: value for name, value in net.get_param_values().items() if name in train.params})
    for k in range(4):
        # With the end label 0 after it, as far as the hypothesis ended by itself.
        labels = [list(row[:n]) for row, n in zip(result.value[k::4], result.sizes[1][k::4])]
        longest = int(feed["data/size0"].max()) + 2
        labels = [seq + [0] if len(seq) < longest else seq for seq in labels]
        lens = np.array([len(seq) for seq in labels], "int32")
        padded = np.array([seq + [0] * (lens.max() - len(seq)) for seq in labels], "int32")
        for b in range(3):
            one = {key: value[b : b + 1] for key, value in {**feed, "classes": padded, "classes/size0": lens}.items()}
            one["classes"] = one["classes"][:, : lens[b]]
            loss = train.run(one).losses["output/p"]
            assert -loss == pytest.approx(result.beam_scores[b, k], rel=1e-4, abs=1e-4)


@pytest.mark.slow
def test_greedy_is_the_first_of_a_beam_of_one() -> None:
    _, out, _ = _search(_decoder(beam_size=1))
    best, all_ = out.layers["best"], out.layers["output"]
    np.testing.assert_array_equal(best.value, all_.value)
    np.testing.assert_array_equal(best.sizes[1], all_.sizes[1])


@pytest.mark.slow
def test_larger_beam_is_not_worse() -> None:
    small, large = (_search(_decoder(beam_size=n, length_normalization=False))[1] for n in (1, 16))
    assert (large.layers["output"].beam_scores[:, 0] >= small.layers["output"].beam_scores[:, 0] - 1e-5).all()
    scores = large.layers["output"].beam_scores
    assert (np.diff(scores, axis=1) <= 1e-6).all(), "best first"


ERRORS = {
    "prev of nothing": ({"output": {"class": "copy", "from": "prev:hh"}, "h": {"class": "copy", "from": "data:source"}},
                        r"there is no layer 'hh' in the loop, so 'prev:hh' is undefined\. Did you mean 'h'"),
    "cycle without prev": (
        {"output": {"class": "copy", "from": "h"}, "h": {"class": "copy", "from": "output"}}, r"in a cycle"),
    "labels without initial output": (
        {"y": {"class": "reduce", "mode": "argmax", "axis": "F", "from": ["data:source"]},
         "output": {"class": "linear", "activation": None, "n_out": 2, "from": "prev:y"}},
        r"'prev:y' needs the option 'initial_output'"),
    "beam of zero": (
        {"p": {"class": "softmax", "target": "classes", "from": "data:source"},
         "output": {"class": "choice", "beam_size": 0, "target": "classes", "from": "p", "initial_output": 0}},
        r"beam_size must be at least 1"),
    "no output": ({"out": {"class": "copy", "from": "data:source"}}, r"the unit has no layer 'output'"),
    "a size, while the previous step is unknown": (
        {"g": {"class": "linear", "activation": None, "n_out": 3, "from": ["data:source", "prev:output"]},
         "h": {"class": "linear", "activation": None, "n_out": 2, "from": "data:source"},
         "output": {"class": "combine", "kind": "add", "from": ["g", "prev:output", "h"]}},
        r"Layer 'loop/output' .* different numbers of features, 3, 2\.(.|\n)*loop/prev:output of unknown shape"),
    "code, while the previous step is unknown": (
        {"g": {"class": "linear", "activation": None, "n_out": 3, "from": ["data:source", "prev:output"]},
         "output": {"class": "eval", "eval": "source(0) * source(2)", "from": ["g", "prev:output"]}},
        r"Layer 'loop/output' .* the eval code has source\(2\), but there are 2 sources"),
    "shape that grows": (
        {"output": {"class": "copy", "from": ["prev:output", "data:source"]}},
        r"the shape of source 'loop/prev:output' follows from itself in a loop\. Give that layer n_out"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_errors(name: str) -> None:
    unit, message = ERRORS[name]
    with pytest.raises(ConfigError, match=message):
        plan_from_config(_config(unit))


def test_loop_without_a_length() -> None:
    config = _config(
        {"output": {"class": "linear", "activation": None, "n_out": 3, "from": "prev:output"}}, **{"from": []}
    )
    with pytest.raises(ConfigError, match="the number of steps is unknown"):
        plan_from_config(config)
    unit = {
        "h": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "prev:h"},
        "end": {"class": "compare", "kind": "greater", "value": 9.0, "from": "s"},
        "s": {"class": "reduce", "mode": "sum", "axis": "F", "from": "h"},
        "output": {"class": "copy", "from": "h"},
    }
    with pytest.raises(ConfigError, match="needs the option max_seq_len"):
        plan_from_config(_config(unit, **{"from": []}))


@pytest.mark.parametrize("moved", [True, False])
def test_numbers_begin_with_zero(moved):
    """The value of prev: in the first step is zero without initial_output, whatever the dtype is, but for labels."""
    scalar = {"dim": None, "shape": (), "batch_dim_axis": None, "time_dim_axis": None, "feature_dim_axis": None}
    unit = {
        "n": {"class": "eval", "from": "prev:n", "eval": "source(0) + 2", "out_type": {"dtype": "int32", **scalar}},
        "flip": {"class": "eval", "from": "prev:flip", "eval": "tf.logical_not(source(0))",
                 "out_type": {"dtype": "bool", **scalar}},
        "last": {"class": "switch", "condition": "flip", "true_from": ":i", "false_from": "prev:last"},
        "sum": {"class": "eval", "from": ["n", "last"], "eval": "tf.cast(source(0) * 10 + source(1), tf.float32)",
                "out_type": {"dtype": "float32"}},
        "output": {"class": "combine", "kind": "add", "from": ["data:source", "sum"]},
    }  # fmt: skip
    loop = {"class": "rec", "from": "data", "optimize_move_layers_out": moved, "unit": unit}
    config = {"extern_data": {"data": {"dim": 2}}, "network": {"output": loop}, "behavior_version": 21}
    data = np.zeros((1, 4, 2), "float32")
    out = Network.from_config(Config(config)).run({"data": data, "data/size0": np.array([4], "int32")})
    # n = 2, 4, 6, 8; flip = True, False, True, False; last = 0, 0, 2, 2
    assert out.layers["output"].value[0, :, 0].tolist() == [20, 40, 62, 82]


def test_user_code_sees_the_frames_of_a_layer_that_was_moved_out() -> None:
    """Computed for all steps at once, the steps are the time axis of the value."""

    def code(self: Any, source: Any, **kwargs: Any) -> Any:
        data = source(0, as_data=True)
        assert {data.time_dim_axis, data.batch_dim_axis} == {0, 1}
        frames = tf.cast(tf.shape(data.placeholder)[data.time_dim_axis], tf.float32)
        lens = tf.cast(data.get_sequence_lengths(), tf.float32)
        lens = tf.expand_dims(tf.expand_dims(lens, data.time_dim_axis), 2)
        valid = tf.expand_dims(tf.cast(data.get_sequence_mask(), tf.float32), 2)
        return (data.placeholder + frames + lens) * valid

    unit = {
        "before": {"class": "eval", "eval": code, "from": "data:source"},
        "output": {"class": "combine", "kind": "add", "from": ["before", "prev:output"]},
        "after": {"class": "eval", "eval": code, "from": "output", "is_output_layer": True},
    }
    network = {"output": {"class": "rec", "from": "data", "unit": unit}}
    config = Config({"behavior_version": 21, "extern_data": {"data": {"dim": 2}}, "network": network})
    x, lens = np.random.RandomState(1).normal(size=(2, 4, 2)).astype("float32"), np.array([4, 3], "int32")
    layers = Network.from_config(config).run({"data": x, "data/size0": lens}).layers
    mask = np.arange(4)[None, :, None] < lens[:, None, None]
    before = ((x + 4 + lens[:, None, None]) * mask).cumsum(axis=1)
    np.testing.assert_allclose(layers["output"].value * mask, before * mask, rtol=1e-5)
    after = (before + 4 + lens[:, None, None]) * mask
    np.testing.assert_allclose(layers["output/after"].value * mask, after, rtol=1e-5)


@pytest.mark.parametrize(
    "value, kind, told", [(4, "equal", "False"), (-1, "not_equal", "True"), (3, "equal", ""), (9, "less", "")]
)
def test_a_label_that_no_source_has_is_told(value: int, kind: str, told: str) -> None:
    """A wrong index of an end or a blank: `compare` then has the same result everywhere."""
    network = {
        "best": {"class": "reduce", "mode": "argmax", "axis": "F", "from": "data"},
        "output": {"class": "compare", "kind": kind, "value": value, "from": "best"},
    }
    notes = plan_from_config(Config({"behavior_version": 21, "extern_data": EXTERN, "network": network})).mistakes
    place = "Layer 'output' (class 'compare'): "
    text = place + "value is %d, but the labels of 'best' are 0 to 3, so the result is %s everywhere."
    assert list(notes) == ([text % (value, told)] if told else [])
