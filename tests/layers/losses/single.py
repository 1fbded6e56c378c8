"""One linear layer with a loss, on ragged random data: what the tests of single losses share."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config

LENS = np.array([5, 3, 4], "int32")


def feed_of(dim: int = 4, labels: int = 3, dense_target: int = 3, seed: int = 1) -> dict[str, Any]:
    """Return data, classes (sparse) and target (dense) with the same lengths; junk in the padding."""
    rng = np.random.default_rng(seed)
    feed = {
        "data": rng.normal(size=(3, 5, dim)).astype("float32"),
        "classes": rng.integers(0, labels, size=(3, 5)).astype("int32"),
        "target": rng.normal(size=(3, 5, dense_target)).astype("float32"),
    }
    return {**feed, **{key + "/size0": LENS for key in feed}}


def network_of(
    layer: dict[str, Any],
    *,
    train: bool = False,
    extern_data: Optional[dict[str, Any]] = None,
    others: Optional[dict[str, Any]] = None,
    **settings: Any,
) -> Network:
    """Return a network whose layer "output" is the given one."""
    data = {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True}, "target": {"dim": 3}}
    config = {
        "behavior_version": 21,
        "extern_data": extern_data or data,
        "network": {**(others or {}), "output": {"from": "data", **layer}},
        **settings,
    }
    return Network.from_config(Config(config), train=train)


def linear(loss: str, target: str = "classes", *, activation: Any = None, **options: Any) -> dict[str, Any]:
    """Return a linear layer with a loss."""
    return {"class": "linear", "activation": activation, "n_out": 3, "loss": loss, "target": target, **options}


def frames(net: Network, feed: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return ([frames, in] inputs, [frames, out] values before the activation) of the valid frames."""
    x = np.concatenate([feed["data"][b, :n] for b, n in enumerate(LENS)]).astype("float64")
    params = net.get_param_values()
    return x, x @ params["output/W"] + params["output/b"]


def valid(array: np.ndarray) -> np.ndarray:
    """Return the valid frames one after the other."""
    return np.concatenate([array[b, :n] for b, n in enumerate(LENS)])


def log_softmax(z: np.ndarray) -> np.ndarray:
    """Return log softmax over the last axis."""
    z = z - z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))
