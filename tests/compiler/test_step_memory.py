"""The estimate of the memory of a step: what the backward pass reads, by hand for small networks."""

from __future__ import annotations

from typing import Any

import pytest

from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.compiler.step_memory import Sizes, activation_bytes, params_bytes
from returnn_tf.config import Config

B, T, N, IN = 3, 10, 4, 6
FRAMES = B * T
LINEAR = {"class": "linear", "n_out": 8, "activation": None, "from": "data"}
TANH = {**LINEAR, "activation": "tanh"}


def estimated(network: dict[str, Any]) -> float:
    """Return the numbers that are kept, without those of the largest output, whose gradients are there twice."""
    config = Config(
        {
            "network": network,
            "extern_data": {"data": {"dim": IN}, "classes": {"dim": 5, "sparse": True}},
            "behavior_version": 21,
        }
    )
    plan = plan_from_config(config, train=True)
    lengths = {dim: T if key == "data" else N for key, data in plan.extern_data.items() for dim in data.dims[1:2]}
    return activation_bytes(plan, Sizes(B, lengths, T)) / 4 - 2 * FRAMES * 8


def combined(kind: str) -> dict[str, Any]:
    return {"class": "combine", "kind": kind, "from": ["a", "b"]}


@pytest.mark.parametrize(
    "layers, per_frame",
    [
        ({"s": TANH}, 8),
        ({"s": LINEAR}, 8),
        # a sum reads nothing, so that what it adds is not kept
        ({"a": LINEAR, "b": LINEAR, "s": combined("add")}, 8),
        ({"a": TANH, "b": LINEAR, "s": combined("add")}, 8 + 8),
        ({"a": LINEAR, "b": LINEAR, "s": combined("mul")}, 8 + 8 + 8),
        # tanh reads its output alone
        ({"a": LINEAR, "s": {"class": "activation", "activation": "tanh", "from": "a"}}, 8),
        # another shape is no other memory
        ({"a": LINEAR, "s": {"class": "split_dims", "axis": "F", "dims": (2, 4), "from": "a"}}, 8),
        ({"a": LINEAR, "s": {"class": "copy", "from": "a"}}, 8),
        # gates and states
        ({"s": {"class": "rec", "unit": "nativelstm2", "n_out": 8, "from": "data"}}, 6 * 8),
    ],
)
def test_of_layers(layers: dict[str, Any], per_frame: int) -> None:
    """The last layer reads its source, and has a loss itself."""
    last = {"class": "eval", "eval": "source(0) ** 2", "from": "s", "loss": "as_is"}
    assert estimated({**layers, "output": last}) == FRAMES * (IN + per_frame + 8)


def test_of_loops() -> None:
    """The layers of a step are kept for each step, or for one, if steps are computed again."""
    unit = {"s": {**TANH, "from": "prev:s", "n_out": 4}, "output": {"class": "copy", "from": "s"}}
    loop = {"class": "rec", "from": [], "unit": unit, "target": "classes", "loss": "as_is"}
    every, one = (estimated({"output": {**loop, "checkpoint_steps": again}}) for again in (False, True))
    assert every - one == (N - 1) * 4 * 2  # s, and prev:s, which the product reads; the same for all sequences


def test_of_parameters() -> None:
    network = {"a": {**LINEAR, "trainable": False}, "output": {"class": "softmax", "loss": "ce", "from": "a"}}
    settings = {"extern_data": {"data": {"dim": IN}, "classes": {"dim": 5, "sparse": True}}, "behavior_version": 21}
    plan = plan_from_config(Config({"network": network, **settings}), train=True)
    assert params_bytes(plan) == 4 * (6 * 8 + 8 + 8 * 5 + 5)
    assert params_bytes(plan, trainable=True) == 4 * (8 * 5 + 5)
