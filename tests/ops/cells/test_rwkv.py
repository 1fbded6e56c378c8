"""The time mixing of RWKV-6 and RWKV-7 against their formulas in numpy, frame by frame and head by head."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.ops.cells import unit_class
from tests.ops.cells.frame_by_frame import check_unit, sigmoid, silu

IN, N, HEAD = 5, 6, 3
RANKS = {
    "rwkv6": {"mix_rank": 2, "decay_rank": 3},
    "rwkv7": {"decay_rank": 2, "rate_rank": 3, "gate_rank": 4},
}


def norm_of_head(y, scale, bias):
    return (y - y.mean()) / np.sqrt(y.var() + 1e-5 * HEAD) * scale + bias


def rwkv6(p, x, last, states):
    """Compute one frame of arXiv 2404.05892; states is a list of matrices [key, value]."""
    d = last - x
    hidden = np.tanh((x + d * p["mix_x"]) @ p["mix_A"]).reshape(5, 2)
    mixed = {c: x + d * (p["mix_" + c] + hidden[i] @ p["mix_B"][i]) for i, c in enumerate("wkvrg")}
    r, k, v, g = (mixed[c] @ p["W_" + c] for c in "rkvg")
    w = np.exp(-np.exp(p["decay"] + np.tanh(mixed["w"] @ p["decay_A"]) @ p["decay_B"]))
    parts, new = [], []
    for i, s in enumerate(states):
        h = slice(i * HEAD, (i + 1) * HEAD)
        kv = np.outer(k[h], v[h])
        parts.append(norm_of_head(r[h] @ (s + p["bonus"][h, None] * kv), p["norm/scale"][h], p["norm/bias"][h]))
        new.append(w[h, None] * s + kv)
    return (silu(g) * np.concatenate(parts)) @ p["W_o"], new


def rwkv7(p, x, last, states):
    """Compute one frame of arXiv 2503.14456, with the matrices transposed to those of the paper, [key, value]."""
    mixed = {c: x + (last - x) * p["mix_" + c] for c in "rwkvag"}
    r, k, v = (mixed[c] @ p["W_" + c] for c in "rkv")
    a = sigmoid(mixed["a"] @ p["rate_A"] @ p["rate_B"] + p["rate"])
    w = np.exp(-np.exp(-0.5) * sigmoid(np.tanh(mixed["w"] @ p["decay_A"]) @ p["decay_B"] + p["decay"]))
    g = sigmoid(mixed["g"] @ p["gate_A"]) @ p["gate_B"]
    added = k * (1 + p["replacement"] * (a - 1))
    parts, new = [], []
    for i, s in enumerate(states):
        h = slice(i * HEAD, (i + 1) * HEAD)
        q = k[h] * p["removal"][h]
        q = q / np.linalg.norm(q)
        s = (np.diag(w[h]) - np.outer(a[h] * q, q)) @ s + np.outer(added[h], v[h])
        y = norm_of_head(r[h] @ s, p["norm/scale"][h], p["norm/bias"][h])
        parts.append(y + (r[h] * p["bonus"][h] * added[h]).sum() * v[h])
        new.append(s)
    return (g * np.concatenate(parts)) @ p["W_o"], new


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("unit,step", [("rwkv6", rwkv6), ("rwkv7", rwkv7)])
def test_as_in_numpy(unit, step, direction):
    def formula(params, x, state):
        y, matrices = step(params, x, state[0], np.reshape(state[1], (2, HEAD, HEAD)))
        return y, [x, matrices]

    check_unit(unit, {"head_size": HEAD, "chunk": 4, **RANKS[unit]}, formula, n=N, direction=direction, in_dim=IN)


@pytest.mark.parametrize("unit", ["rwkv6", "rwkv7"])
def test_initial_values(unit):
    """In the first layer the first input takes all, the last one little from the frame before."""
    defaults = {spec.name: spec.default for spec in unit_class(unit)(128, 64).param_specs()}
    assert defaults["mix_k"][0] == 1 and 0 < defaults["mix_k"][-1] < 0.02
    assert np.all(np.diff(defaults["decay"]) > 0)
    opts = {"layer": 3, "num_layers": 4}
    deeper = {spec.name: spec.default for spec in unit_class(unit)(128, 64, unit_opts=opts).param_specs()}
    assert np.all(deeper["mix_k"] <= defaults["mix_k"]) and np.all(deeper["decay"] <= defaults["decay"])


@pytest.mark.parametrize(
    "n_out,opts,message",
    [
        (100, {}, "n_out 100 is not divisible by head_size 64"),
        (64, {"layer": 2}, "layer 2 needs num_layers of at least 3, not 1"),
        (64, {"chunk": 24}, "power of 2"),
        (64, {"chunk": 256}, "at most 128"),
        (64, {"num_heads": 2}, "num_heads"),
    ],
)
def test_wrong_options(n_out, opts, message):
    with pytest.raises(ConfigError, match=message):
        unit_class("rwkv7")(n_out, 8, unit_opts=opts)


def test_needs_vectors():
    with pytest.raises(ConfigError, match="needs vectors"):
        unit_class("rwkv6")(64, 30, sparse_input=True)
