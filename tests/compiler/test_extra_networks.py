"""Extra networks: ``extra.<name>:<layer>`` shares the parameters of the main network; ``extra.search:`` searches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError

DATA = {"data": {"dim": 4}, "classes": {"dim": 5, "sparse": True}}


def config_of(network: dict[str, Any], **settings: Any) -> Config:
    return Config({"behavior_version": 21, "extern_data": DATA, "network": network, **settings})


def net_of(network: dict[str, Any], seed: int = 0, settings: Any = None, **options: Any) -> Any:
    net = Network.from_config(config_of(network, **(settings or {})), **options)
    rng = np.random.default_rng(seed)
    values = {n: rng.normal(size=v.shape).astype("float32") for n, v in sorted(net.get_param_values().items())}
    net.set_param_values(values)
    return net


def feed() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "data": rng.normal(size=(3, 5, 4)).astype("float32"),
        "data/size0": np.array([5, 3, 4], "int32"),
        "classes": rng.integers(1, 5, (3, 4)).astype("int32"),
        "classes/size0": np.array([2, 4, 3], "int32"),
    }


def linear(source: str, size: int = 3) -> dict[str, Any]:
    return {"class": "linear", "activation": "tanh", "n_out": size, "from": source}


# --- networks with other inputs ---


def test_a_layer_with_another_input() -> None:
    network = {
        "in": {"class": "copy", "from": "data"},
        "l": linear("in"),
        "l2": linear("l", 2),
        "extra.half:in": {"class": "eval", "eval": "source(0) * 0.5", "from": "data"},
        "other": {"class": "copy", "from": "extra.half:l2", "is_output_layer": True},
        "output": {"class": "copy", "from": "l2"},
    }
    net = net_of(network)
    assert sorted(net.params) == ["l/W", "l/b", "l2/W", "l2/b"]
    found, params = net.run(feed()).layers, net.get_param_values()
    for name, factor in (("output", 1.0), ("other", 0.5)):
        hidden = np.tanh(feed()["data"] * factor @ params["l/W"] + params["l/b"])
        expected = np.tanh(hidden @ params["l2/W"] + params["l2/b"])
        np.testing.assert_allclose(found[name].value, expected, rtol=1e-5)


def test_layers_that_do_not_differ_are_computed_once() -> None:
    network = {
        "in": linear("data"),
        "same": linear("in"),
        "a": linear("same"),
        "extra.2:a": {"class": "copy", "from": "same"},
        "sum": {"class": "combine", "kind": "add", "from": ["a", "same"]},
        "output": {"class": "copy", "from": ["sum", "extra.2:sum", "extra.2:same"]},
    }
    paths = {node.path for node in plan_from_config(config_of(network)).nodes}
    assert {path for path in paths if path.startswith("extra")} == {"extra.2:a", "extra.2:sum"}


def test_extra_layers_from_extra_layers() -> None:
    network = {
        "extra.2:a": {"class": "eval", "eval": "source(0) + 1", "from": "data"},
        "extra.2:b": {"class": "eval", "eval": "source(0) * 2", "from": "extra.2:a"},
        "extra.2:c": {"class": "eval", "eval": "source(0) * 3", "from": "b", "is_output_layer": True},
        "extra:d": {"class": "copy", "from": "data"},
        "output": {"class": "copy", "from": ["extra.2:b", "extra:d"]},
    }
    found = net_of(network).run(feed()).layers
    x = feed()["data"]
    np.testing.assert_allclose(found["output"].value, np.concatenate([2 * (x + 1), x], axis=2), rtol=1e-6)
    np.testing.assert_allclose(found["extra.2:c"].value, 6 * (x + 1), rtol=1e-6)


def test_parameters_that_only_the_extra_network_needs() -> None:
    network = {
        "l": linear("in"),
        "in": {"class": "copy", "from": "data"},
        "extra.2:in": {"class": "eval", "eval": "source(0) * 2", "from": "data"},
        "output": {"class": "copy", "from": "extra.2:l"},
    }
    assert sorted(net_of(network, train=True).params) == ["l/W", "l/b"]


def test_losses_of_both_networks() -> None:
    network = {
        "in": {"class": "copy", "from": "data"},
        "extra.2:in": {"class": "eval", "eval": "source(0) * 2", "from": "data"},
        "prob": {"class": "softmax", "n_out": 4, "from": "in", "loss": "mse", "target": "data"},
        "output": {"class": "copy", "from": ["prob", "extra.2:prob"]},
    }
    net = net_of(network, train=True)
    result = net.run(feed())
    params = net.get_param_values()
    mask = np.arange(5)[None] < feed()["data/size0"][:, None]
    for name, factor in (("prob", 1.0), ("extra.2:prob", 2.0)):
        z = feed()["data"] * factor @ params["prob/W"] + params["prob/b"]
        p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
        expected = (((p - feed()["data"]) ** 2).mean(-1) * mask).sum()
        np.testing.assert_allclose(result.losses[name], expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("network", "text"),
    [
        ({"output": {"class": "copy", "from": "extra.2:lin"}, "line": linear("data")}, "no layer 'lin'. Did you mean"),
        ({"output": linear("extra.2:output"), "extra.2:x": linear("data")}, "cycle"),
        ({"output": {"class": "copy", "from": "extra.2:a"}, "extra.2:a": linear("extra.2:a")}, "cycle"),
        (
            {
                "x": linear("data"),
                "output": {"class": "subnetwork", "from": "data", "subnetwork": {"output": linear("extra.2:x")}},
            },
            "Write 'base:extra.2:x'",
        ),
        (
            {
                "a": linear("in"),
                "in": linear("data"),
                "extra.2:in": linear("data", 6),
                "output": {"class": "copy", "from": ["a", "extra.2:a"]},
            },
            "share the parameter",
        ),
    ],
)
def test_mistakes(network: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        plan_from_config(config_of(network))


# --- a network that searches ---


def decoder(dropout: float = 0.0, **layers: Any) -> dict[str, Any]:
    return {
        "enc": {**linear("data"), "dropout": dropout},
        "output": {"class": "rec", "from": [], "target": "classes", "max_seq_len": "max_len_from('base:enc')", "unit": {
            "mean": {"class": "reduce", "mode": "mean", "axis": "T", "from": "base:enc"},
            "emb": {"class": "linear", "activation": None, "n_out": 3, "from": "prev:output"},
            "s": {"class": "rnn_cell", "unit": "lstm", "n_out": 3, "from": ["emb", "mean"]},
            "prob": {"class": "softmax", "target": "classes", "loss": "ce", "from": "s"},
            "output": {"class": "choice", "target": "classes", "beam_size": 3, "from": "prob", "initial_output": 0},
            "end": {"class": "compare", "value": 0, "from": "output"},
        }},
        "decision": {
            "class": "decide", "from": "output", "loss": "edit_distance", "target": "classes",
            "loss_only_on_non_search": False,
        },
        **layers,
    }  # fmt: skip


RISK = {
    "class": "copy", "from": "extra.search:output", "target": "classes", "loss": "expected_loss",
    "loss_opts": {"loss": {"class": "edit_distance"}, "loss_kind": "error"},
}  # fmt: skip


def distance(a: list[int], b: list[int]) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a):
        last, row = row, [i + 1]
        for j, y in enumerate(b):
            row.append(min(last[j] + (x != y), last[j + 1] + 1, row[j] + 1))
    return row[-1]


def labels_of(layer: Any) -> list[list[int]]:
    return [row[:n].tolist() for row, n in zip(layer.value, layer.sizes[1])]


@pytest.mark.slow
def test_minimum_risk_training() -> None:
    """The main network follows the targets, the extra one searches, with the same parameters."""
    plain = net_of(decoder(), train=True)
    net = net_of(decoder(min_wer=RISK), train=True)
    assert set(net.params) == set(plain.params)
    assert not any(node.path == "extra.search:enc" for node in net.plan.nodes)
    result = net.run(feed(), with_grad=True)
    expected = plain.run(feed())
    np.testing.assert_allclose(result.losses["output/prob"], expected.losses["output/prob"], rtol=1e-5)
    searched = net_of(decoder(), search=True)
    searched.set_param_values(net.get_param_values())
    found = searched.run(feed()).layers["output"]
    scores = found.beam_scores
    targets = [row[:n].tolist() for row, n in zip(feed()["classes"], feed()["classes/size0"]) for _ in range(3)]
    errors = np.array([distance(a, b) for a, b in zip(labels_of(found), targets)]).reshape(3, 3)
    weights = np.exp(scores - np.log(np.exp(scores).sum(1, keepdims=True)))
    risk = (weights * (errors - errors.mean(1, keepdims=True))).sum() / 3
    np.testing.assert_allclose(result.losses["min_wer"], risk, rtol=1e-4)
    np.testing.assert_allclose(result.total_loss, result.losses["output/prob"] + result.losses["min_wer"], rtol=1e-5)
    assert any(name.startswith("output/rec") for name in result.grads)


@pytest.mark.slow
def test_the_task_search_has_no_further_parameters() -> None:
    net = net_of(decoder(min_wer=RISK), search=True)
    assert set(net.params) == set(net_of(decoder(), search=True).params)
    result = net.run(feed())
    assert np.isfinite(result.losses["min_wer"])


@pytest.mark.slow
def test_scores_of_hypotheses_in_training() -> None:
    scores = {"class": "choice_get_beam_scores", "from": "extra.search:output", "is_output_layer": True}
    net = net_of(decoder(scores=scores), train=True)
    searched = net_of(decoder(), search=True)
    searched.set_param_values(net.get_param_values())
    found = net.run(feed()).layers["scores"].value.reshape(3, 3)
    np.testing.assert_allclose(found, searched.run(feed()).layers["output"].beam_scores, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [pytest.param("decision", marks=pytest.mark.long), ["output", "decision"]])
def test_errors_of_a_search_while_training(layers: Any) -> None:
    net = net_of(decoder(), train=True, settings={"search_train_network_layers": layers})
    assert set(net.params) == set(net_of(decoder(), train=True).params)
    searched = net_of(decoder(), search=True)
    searched.set_param_values(net.get_param_values())
    found = searched.run(feed())
    targets = [row[:n].tolist() for row, n in zip(feed()["classes"], feed()["classes/size0"])]
    expected = sum(distance(a, b) for a, b in zip(labels_of(net_fetch(searched, "decision")), targets))
    assert found.errors["decision"] == expected
    result = net.run(feed())
    assert result.errors["extra.search:decision"] == expected
    assert result.errors["decision"] == 0  # of the targets themselves


def net_fetch(net: Any, name: str) -> Any:
    return net.run(feed(), fetch=[name]).layers[name]


def test_wrong_names_of_searched_layers() -> None:
    with pytest.raises(ConfigError, match="search_train_network_layers: there is no layer 'decison'. Did you mean"):
        net_of(decoder(), train=True, settings={"search_train_network_layers": "decison"})


@pytest.mark.parametrize("name, told", [("serch", True), ("searhc", True), ("search", False), ("half", False)])
def test_misspelt_search(name: str, told: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """A network whose name looks like search does not search, which the log says."""
    network = {
        "output": linear("data"),
        "extra.%s:output" % name: {**linear("data"), "is_output_layer": True},
    }
    plan_from_config(config_of(network))
    assert ("Did you mean 'extra.search:'?" in capsys.readouterr().out) == told


def test_outputs_inside_of_shared_subnetworks() -> None:
    """Each extra network has them too, if something of it needs the subnetwork; the layers are computed once."""
    linear = {"class": "linear", "activation": None, "n_out": 3, "from": "data"}
    network = {
        "sub": {"class": "subnetwork", "from": "data", "subnetwork": {
            "output": linear, "inside": {**linear, "is_output_layer": True}}},
        "behind": {"class": "copy", "from": "sub"},
        "output": {"class": "copy", "from": "behind"},
        "first": {"class": "copy", "from": "extra.1:behind", "is_output_layer": True},
        "second": {"class": "copy", "from": "extra.2:sub/inside", "is_output_layer": True},
    }  # fmt: skip
    net = net_of(network)
    assert len(net.params) == 4
    layers = net.run(feed()).layers
    assert set(layers) == {"output", "first", "second", "sub/inside", "extra.1:sub/inside", "extra.2:sub/inside"}
    for name in ("extra.1:sub/inside", "extra.2:sub/inside", "second"):
        np.testing.assert_array_equal(layers[name].value, layers["sub/inside"].value)
