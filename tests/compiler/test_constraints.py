"""L2, darc1 and spatial_smoothing, on layers outside of loops and in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError
from tests.feeds import random_feed

EXTERN = {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True}}
LINEAR: dict[str, Any] = {"class": "linear", "activation": None, "n_out": 12, "from": "data"}


def _config(network: dict[str, Any]) -> Config:
    return Config({"behavior_version": 21, "extern_data": EXTERN, "network": network})


def _loop(layers: dict[str, Any], **options: Any) -> dict[str, Any]:
    loop = {"class": "rec", "from": "data", "unit": layers, "loss": "as_is", **options}
    return {"output": loop}


def _energy(frames: np.ndarray, shape: Any) -> float:
    """Return spatial smoothing by its definition: minus the mean of the 8 neighbours, borders circular."""
    total = 0.0
    for image in frames.reshape([-1, *shape]):
        for y in range(shape[0]):
            for x in range(shape[1]):
                near = [image[(y + dy) % shape[0], (x + dx) % shape[1]] for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
                total += (image[y, x] - (sum(near) - image[y, x]) / 8) ** 2
    return total


def _constrained(network: dict[str, Any], layer: str) -> Any:
    """Return the constraint that a network adds to its loss, and the valid frames of a layer."""
    net = Network.from_config(_config(network), train=True)
    feed = random_feed({"data": net.extern_data["data"]})
    out = net.run(feed)
    value: list[Any] = [v[:n] for v, n in zip(out.layers[layer].value, feed["data/size0"])]
    return out.total_loss - sum(out.losses.values()), np.concatenate(value)


@pytest.mark.parametrize(
    "where",
    [
        "outside",
        "moved out of the loop",
        "in the loop",
        "in a subnetwork in the loop",
        "in the loop, backward pass computed again",
    ],
)
def test_constraints_of_the_output(where: str) -> None:
    layer = {**LINEAR, "darc1": 0.5, "spatial_smoothing": 0.25}
    network: dict[str, Any] = {"output": {**layer, "loss": "as_is"}}
    if where == "in a subnetwork in the loop":
        inside = {"class": "subnetwork", "from": ["data:source", "prev:output"], "subnetwork": {"output": layer}}
        network = _loop({"output": inside})
    elif where != "outside":
        sources = ["data:source"] if where.startswith("moved") else ["data:source", "prev:output"]
        options = {"checkpoint_steps": True} if where.endswith("again") else {}
        network = _loop({"output": {**layer, "from": sources}}, **options)
    constraint, frames = _constrained(network, "output")
    expected = 0.5 * np.abs(frames).sum(0).max() + 0.25 * _energy(frames, (4, 3))
    assert constraint == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("moved", [False, True])
def test_darc1_is_of_the_values_before_the_activation(moved: bool) -> None:
    def loop(activation: Any) -> dict[str, Any]:
        hidden = {**LINEAR, "activation": activation, "darc1": 0.5}
        return _loop({"h": hidden, "output": {**LINEAR, "from": "h"}}, optimize_move_layers_out=moved)

    with_activation, _ = _constrained(loop("relu"), "output")
    without, _ = _constrained(loop(None), "output")
    assert with_activation == pytest.approx(without, rel=1e-5) and without > 0


def test_l2_of_parameters_in_loops_of_loops() -> None:
    cell = {**LINEAR, "n_out": 2, "from": ["data:source", "prev:output"]}
    inner = {"class": "rec", "from": "base:data", "unit": {"output": {**cell, "L2": 0.1}}}
    last = {"class": "reduce", "mode": "max", "axis": "T", "from": ["inner"]}
    mixed = {"class": "combine", "kind": "add", "from": ["last", "prev:output"]}
    network = _loop({"inner": inner, "last": last, "output": mixed}, optimize_move_layers_out=False)
    net = Network.from_config(_config(network), train=True)
    out = net.run(random_feed({"data": net.extern_data["data"]}))
    expected = 0.1 * sum((value**2).sum() for value in net.get_param_values().values())
    assert out.total_loss - out.losses["output"] == pytest.approx(expected, rel=1e-4)


CELL = {**LINEAR, "n_out": 2, "from": ["data:source", "prev:output"]}
INSIDE = {"class": "subnetwork", "from": "data", "subnetwork": {"h": LINEAR, "output": {**LINEAR, "from": "h"}}}
FLAG = {"class": "train_flag"}
#: A layer with layers inside, and what else its network needs.
AROUND: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "subnetwork": (INSIDE, {}),
    "loop": ({"class": "rec", "from": "data", "unit": {"output": CELL}}, {}),
    "loop without dependence between frames": (
        {"class": "rec", "from": "data", "unit": {"output": {**LINEAR, "from": "data:source"}}},
        {},
    ),
    "subnetwork in a loop": (
        {
            "class": "rec",
            "from": "data",
            "unit": {"s": {**INSIDE, "from": ["data:source", "prev:output"]}, "output": {**CELL, "from": "s"}},
        },
        {},
    ),
    "cond": ({"class": "cond", "condition": "flag", "true_layer": LINEAR, "false_layer": LINEAR}, {"flag": FLAG}),
    "masked_computation": (
        {
            "class": "rec",
            "from": "data",
            "unit": {
                "mask": {"class": "compare", "from": "prev:output", "value": 0, "kind": "greater"},
                "any": {"class": "reduce", "mode": "any", "axis": "F", "from": "mask"},
                "m": {"class": "masked_computation", "mask": "any", "from": "data:source", "unit": LINEAR},
                "output": {**CELL, "from": "m"},
            },
        },
        {},
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("where", sorted(AROUND))
def test_l2_counts_the_layers_inside(where: str, frozen: bool) -> None:
    layer, others = AROUND[where]
    options: dict[str, Any] = {"trainable": False} if frozen else {}
    net = Network.from_config(
        _config({"x": {**layer, "L2": 0.1, **options}, **others, "output": {**LINEAR, "from": "x", "loss": "as_is"}}),
        train=True,
    )
    out = net.run(random_feed(net.extern_data))
    squares = sum(float((v**2).sum()) for k, v in net.get_param_values().items() if k.startswith("x/"))
    assert squares
    np.testing.assert_allclose(out.total_loss - sum(out.losses.values()), 0.1 * squares, rtol=1e-3)


@pytest.mark.slow
def test_search_constrains_no_hypotheses() -> None:
    unit = {
        "last": {**LINEAR, "from": "prev:output"},
        "p": {"class": "softmax", "n_out": 3, "from": ["data:source", "last"], "darc1": 0.5},
        "output": {"class": "choice", "from": "p", "beam_size": 2, "target": "classes", "initial_output": 0},
    }
    network = {"output": {"class": "rec", "from": "data", "unit": unit}, "l": {**LINEAR, "loss": "as_is"}}
    net = Network.from_config(_config(network), search=True)
    out = net.run(random_feed(net.extern_data))
    assert out.total_loss == pytest.approx(out.losses["l"])


ERRORS = {
    "map too small": (
        {"output": {**LINEAR, "n_out": 10, "spatial_smoothing": 0.1}},
        r"Layer 'output' .*at least 3x3, but output:feature=10 gives 5x2\. Choose another output size",
    ),
    "labels": ({"output": {"class": "copy", "from": "data:classes", "darc1": 0.1}}, "is sparse"),
    "branch": (
        {
            "flag": {"class": "train_flag"},
            "output": {
                "class": "cond",
                "condition": "flag",
                "true_layer": {**LINEAR, "darc1": 0.1},
                "false_layer": LINEAR,
                "from": [],
            },
        },
        r"layer 'output/.*' has darc1 or spatial_smoothing, which is not supported in a branch",
    ),
}


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_errors(name: str) -> None:
    network, message = ERRORS[name]
    with pytest.raises(ConfigError, match=message):
        plan_from_config(_config(network), train=True)


def test_loop_in_a_loop_is_refused() -> None:
    cell = {**LINEAR, "n_out": 2, "from": ["data:source", "prev:output"], "darc1": 0.1}
    inner = {"class": "rec", "from": "base:data", "unit": {"output": cell}}
    last = {"class": "reduce", "mode": "max", "axis": "T", "from": ["inner"]}
    mixed = {"class": "combine", "kind": "add", "from": ["last", "prev:output"]}
    network = _loop({"inner": inner, "last": last, "output": mixed}, optimize_move_layers_out=False)
    with pytest.raises(
        ConfigError, match=r"Layer 'output/inner/output': darc1 is not supported in a loop that runs in"
    ):
        plan_from_config(_config(network), train=True)
