"""Gated linear attention against numpy."""

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.ops.cells import unit_class
from tests.ops.cells.frame_by_frame import check_unit, sigmoid, silu

N, HEADS = 8, 2


@pytest.mark.parametrize("norm,direction", [("rms", 1), ("layer", -1)])
def test_as_in_numpy(norm, direction):
    def formula(p, x, state):
        alpha = sigmoid(x @ p["W_alpha_1"] @ p["W_alpha_2"] + p["b_alpha"]) ** (1 / 2.0)
        q, k, v, alpha = (part.reshape(HEADS, -1) for part in (x @ p["W_q"], x @ p["W_k"], x @ p["W_v"], alpha))
        s = alpha[:, :, None] * state[0].reshape(HEADS, 2, 4) + k[:, :, None] * v[:, None]
        o = np.einsum("hk,hkv->hv", q, s) / np.sqrt(2)
        if norm == "layer":
            o = o - o.mean(1, keepdims=True)
        o = o / np.sqrt((o * o).mean(1, keepdims=True) + 1e-5) * p["norm/scale"] + p.get("norm/bias", 0)
        return (silu(x @ p["W_r"] + p["b_r"]) * o.reshape(-1)) @ p["W_o"], [s]

    opts = {"num_heads": HEADS, "gate_rank": 3, "gate_temperature": 2.0, "norm": norm, "chunk": 8}
    check_unit("gla", opts, formula, n=N, direction=direction)


@pytest.mark.parametrize(
    "n,opts,message",
    [
        (10, {}, r"here: unit 'gla': n_out 10 is not divisible by num_heads 4\. Change one of them\."),
        (8, {"key_ratio": 0.25}, r"the dim of all keys, n_out \* key_ratio = 2 is not divisible by num_heads 4"),
        (8, {"key_ratio": 1e-9}, r"n_out \* key_ratio = 8e-09 is not divisible"),
        (8, {"chunk": 48}, r"option 'chunk' must be a power of 2 from 4 \(chunks are halved\), got 48"),
        (8, {"norm": "batch"}, "option 'norm'.*rms"),
    ],
)
def test_wrong_options(n, opts, message):
    with pytest.raises(ConfigError, match=message):
        unit_class("gla")(n, 3, unit_opts=opts, where="here")


def test_ratio_that_is_no_binary_fraction():
    """n_out times the ratio is just below a whole number."""
    cell = unit_class("gla")(100, 3, unit_opts={"key_ratio": 0.29, "num_heads": 1})
    assert (cell.keys, cell.values) == (29, 100)
