"""Layers that nothing needs are neither built nor checked; losses in loops exist where they are asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.describe import describe_plan
from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.passes.evaluator import Evaluator

WRONG: dict[str, Any] = {
    "unknown class": {"class": "linaer", "from": "data"},
    "no class": {"from": "data"},
    "no dict": "data",
    "unknown option": {"class": "linear", "n_oot": 3, "from": "data"},
    "option of a wrong type": {"class": "linear", "n_out": "three", "from": "data"},
    "no from": {"class": "linear", "n_out": 3},
    "unknown source": {"class": "copy", "from": ["nothing", "data"]},
    "cycle": {"class": "copy", "from": "wrong"},
    "unknown target": {"class": "softmax", "target": "nothing", "from": "data"},
    "loss_opts without loss": {"class": "softmax", "loss_opts": {"x": 1}, "n_out": 3, "from": "data"},
    "old option": {"class": "subnetwork", "load_from": "x", "from": "data", "subnetwork": {}},
    "no such initialiser": {"class": "linear", "n_out": 2, "forward_weights_init": "glorrot", "from": "data"},
    "broken unit": {"class": "rec", "unit": {"x": {"class": "nothing"}}, "from": "data"},
    "unknown loss in a unit": {"class": "rec", "unit": {"output": {"class": "copy", "loss": "no"}}, "from": "data"},
}


def plan(network: dict[str, Any], **options: Any) -> Plan:
    settings = {
        "behavior_version": 21,
        "extern_data": {"data": {"dim": 4}, "classes": {"dim": 5, "sparse": True}},
        "network": network,
    }
    return plan_from_config(Config(settings), **options)


def in_top(wrong: Any) -> dict[str, Any]:
    return {"wrong": wrong, "output": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "data"}}


def in_subnetwork(wrong: Any) -> dict[str, Any]:
    return {"output": {"class": "subnetwork", "from": "data", "subnetwork": in_top(wrong)}}


def in_loop(wrong: Any) -> dict[str, Any]:
    source = {"class": "linear", "activation": "tanh", "n_out": 3, "from": ["data:source", "prev:output"]}
    return {"output": {"class": "rec", "from": "data", "unit": {"wrong": wrong, "output": source}}}


def in_branch(wrong: Any) -> dict[str, Any]:
    branch = {"class": "subnetwork", "from": "data", "subnetwork": in_top(wrong)}
    flag = {"class": "constant", "value": True}
    return {
        "flag": flag,
        "output": {"class": "cond", "condition": "flag", "from": [], "true_layer": branch, "false_layer": branch},
    }


PLACES = {"top": in_top, "subnetwork": in_subnetwork, "loop": in_loop, "branch": in_branch}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("wrong", WRONG)
def test_unneeded_layers_are_not_checked(place: str, wrong: str) -> None:
    found = plan(PLACES[place](WRONG[wrong]), train=True)
    assert not any(node.path.endswith("wrong") for node in found.all_nodes())


@pytest.mark.parametrize("place", ["top", "subnetwork", "loop"])
@pytest.mark.parametrize("wrong", WRONG)
def test_needed_layers_are(place: str, wrong: str) -> None:
    layer = WRONG[wrong]
    if not isinstance(layer, dict) or wrong == "unknown target":
        layer = layer if isinstance(layer, dict) else {"class": "nothing"}
    network = PLACES[place]({**layer, "is_output_layer": True})
    with pytest.raises(ConfigError, match="wrong"):
        plan(network, train=True)


@pytest.mark.parametrize("place", PLACES)
def test_check_tells_of_their_mistakes(place: str) -> None:
    for wrong, text in (("unknown class", "Did you mean 'linear'"), ("unknown source", "there is no layer 'nothing'")):
        shown = describe_plan(plan(PLACES[place](WRONG[wrong]), train=True))
        notes = [line for line in shown.splitlines() if line.startswith("note: ")]
        assert len(notes) == 1 and "wrong" in notes[0] and text in notes[0], shown


def test_prev_of_a_layer_that_does_not_exist() -> None:
    wrong = {"class": "linear", "n_out": 3, "activation": None, "from": ["prev:accumulated", "prev:wrong"]}
    found = plan(in_loop(wrong), train=True)
    assert "output/wrong" not in {node.path for node in found.all_nodes()}
    assert any("prev:accumulated" in mistake for mistake in found.mistakes)
    with pytest.raises(ConfigError, match="there is no layer 'accumulated' in the loop"):
        plan(in_loop({**wrong, "is_output_layer": True}), train=True)


def fused(lm: dict[str, Any]) -> dict[str, Any]:
    """Return a decoder whose search adds the scores of a language model, which the training never needs."""
    return {
        "output": {"class": "rec", "from": [], "target": "classes", "max_seq_len": 5, "unit": {
            "emb": {"class": "linear", "activation": None, "n_out": 3, "from": "prev:output"},
            "s": {"class": "rnn_cell", "unit": "lstm", "n_out": 3, "from": "emb"},
            "prob": {"class": "softmax", "target": "classes", "loss": "ce", "from": "s"},
            "lm": {"class": "subnetwork", "from": "prev:output", **lm},
            "sum": {"class": "combine", "kind": "add", "from": ["prob", "lm"]},
            "output": {"class": "choice", "target": "classes", "beam_size": 2, "from": "sum", "initial_output": 0},
            "end": {"class": "compare", "value": 0, "from": "output"},
        }},
    }  # fmt: skip


def test_training_never_needs_the_language_model() -> None:
    unit = {"subnetwork": {"output": {"class": "softmax", "n_out": 5, "from": "data"}}}
    old = fused({**unit, "load_from": "lm.model"})
    assert not any("lm" in name for name in plan(old, train=True).params)
    with pytest.raises(ConfigError, match="load_from"):
        plan(old, search=True)
    assert "output/rec/lm/output/W" in plan(fused(unit), search=True).params
    unknown = fused({"subnetwork": {"output": {"class": "copy", "from": "base:base:nothing"}}})
    assert plan(unknown, train=True).losses
    with pytest.raises(ConfigError, match="nothing"):
        plan(unknown, search=True)


# --- losses in loops ---


def with_inner_loss() -> Config:
    unit = {
        "output": {"class": "linear", "activation": "tanh", "n_out": 3, "from": ["data:source", "prev:output"]},
        "prob": {"class": "softmax", "loss": "ce", "target": "classes", "from": "output"},
    }
    settings = {
        "behavior_version": 21,
        "extern_data": {"data": {"dim": 4}, "classes": {"dim": 5, "sparse": True}},
        "network": {"output": {"class": "rec", "from": "data", "unit": unit}},
    }
    return Config(settings)


@pytest.mark.slow
def test_evaluation_has_the_losses_of_loops() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 5, (2, 3)).astype("int32")
    lens = np.array([3, 2], "int32")
    data = rng.normal(size=(2, 3, 4)).astype("float32")
    feed = {"data": data, "data/size0": lens, "classes": labels, "classes/size0": lens}
    config = with_inner_loss()
    net = Network.from_config(config, evaluate=True)
    trained = Network.from_config(config, train=True)
    result = net.run(feed)
    assert not net.train and result.losses["output/prob"] > 0
    expected = trained.run(feed, train=False).losses["output/prob"]
    np.testing.assert_allclose(result.losses["output/prob"], expected, rtol=1e-6)
    assert net.plan.omitted_losses == ()
    scores = Evaluator(net, config).step(feed)
    np.testing.assert_allclose(scores.losses["output/prob"], expected, rtol=1e-6)


def test_plain_plans_lack_them_and_say_so() -> None:
    config = with_inner_loss()
    net = Network.from_config(config)
    assert not any("prob" in name for name in net.params)
    assert list(net.plan.omitted_losses) == ["output/prob"]
    with pytest.raises(ConfigError, match="evaluate=True"):
        Evaluator(net, config)
