"""Small searching networks with random parameters, for the tests of search."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from tests.layers.nets import EXTERN_DATA, feed

Network_ = dict[str, Any]


def free_loop(
    choice: Optional[dict[str, Any]] = None, layers: Optional[dict[str, Any]] = None, **options: Any
) -> Network_:
    """Return a decoder which ends by label 0."""
    unit = {
        "emb": {"class": "linear", "activation": "tanh", "n_out": 4, "from": "prev:output"},
        "p": {"class": "softmax", "n_out": 5, "from": ["emb", "base:mean"]},
        "end": {"class": "compare", "from": "output", "value": 0},
        "output": {
            "class": "choice", "target": "labels", "beam_size": 3, "from": "p", "initial_output": 0, **(choice or {}),
        },
        **(layers or {}),
    }  # fmt: skip
    return {
        "mean": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"},
        "loop": {"class": "rec", "from": [], "max_seq_len": 5, "unit": unit, **options},
    }


def frame_loop(
    choice: Optional[dict[str, Any]] = None, layers: Optional[dict[str, Any]] = None, **options: Any
) -> Network_:
    """Return a label for each frame, which may depend on the one before."""
    unit = {
        "emb": {"class": "linear", "activation": "tanh", "n_out": 4, "from": "prev:output"},
        "p": {"class": "softmax", "n_out": 5, "from": ["emb", "data:source"]},
        "output": {
            "class": "choice", "target": "labels", "beam_size": 3, "from": "p", "initial_output": 0, **(choice or {}),
        },
        **(layers or {}),
    }  # fmt: skip
    return {"loop": {"class": "rec", "from": "data", "unit": unit, **options}}


def search_net(
    network: Network_, *, train: bool = False, search: bool = True, seed: int = 0, scale: float = 1.0
) -> Any:
    """Return the network with random parameters."""
    config = Config({"extern_data": EXTERN_DATA, "network": network, "behavior_version": 21})
    net = Network.from_config(config, train=train, search=search)
    randomize(net, seed=seed, scale=scale)
    return net


def randomize(net: Network, *, seed: int, scale: float) -> None:
    """Give a network random parameters."""
    rng = np.random.default_rng(seed)
    values = {name: rng.normal(size=value.shape) * scale for name, value in net.get_param_values().items()}
    net.set_param_values({name: value.astype("float32") for name, value in values.items()})


def one_sequence(index: int, **arrays: Any) -> dict[str, Any]:
    """Return the feed with one sequence only, without its padding."""
    whole = feed(**arrays)
    result = {}
    for key, value in whole.items():
        result[key] = value[index : index + 1]
    for key in list(result):
        size = result.get(key + "/size0")
        if size is not None:
            result[key] = result[key][:, : size[0]]
    return result


def hypotheses(layer: Any) -> list[list[Any]]:
    """Return (score, labels) of the hypotheses of each sequence, best first."""
    beam = layer.beam_scores.shape[1]
    lens = next(iter(layer.sizes.values()))
    return [
        [(scores[k], layer.value[b * beam + k, : lens[b * beam + k]].tolist()) for k in range(beam)]
        for b, scores in enumerate(layer.beam_scores)
    ]
