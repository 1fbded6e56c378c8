"""DeltaNet against its formulas in numpy, and the delta rule in chunks with decays of any strength."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.ops.cells import unit_class
from returnn_tf.ops.cells.matrix.delta_rule import delta_rule
from returnn_tf.ops.cells.matrix.head_frames import HeadFrames
from returnn_tf.util.lazy_tf import tf
from tests.ops.cells.frame_by_frame import check_unit, sigmoid, silu

IN, N, HEADS, KEYS, VALUES, CONV = 4, 5, 2, 6, 8, 3
OPTS = {"num_heads": HEADS, "key_dim": KEYS, "value_dim": VALUES, "conv_size": CONV, "chunk": 4}


def deltanet(p, window, states):
    """2406.06484: the last frame of the window [CONV, 2 KEYS + VALUES + HEADS]; matrices are [key, value]."""
    mixed = (window[:, :-HEADS] * p["conv"]).sum(0)
    rates = sigmoid(window[-1, -HEADS:])
    q, k, v = (np.split(part, HEADS) for part in np.split(silu(mixed), [KEYS, 2 * KEYS]))
    parts, new = [], []
    for q_i, k_i, v_i, rate, s in zip(q, k, v, rates, states):
        q_i, k_i = q_i / np.linalg.norm(q_i), k_i / np.linalg.norm(k_i)
        s = s - rate * np.outer(k_i, k_i) @ s + rate * np.outer(k_i, v_i)
        y = q_i @ s
        parts.append(y / np.sqrt((y**2).mean() + 1e-5) * p["norm/scale"])
        new.append(s)
    return np.concatenate(parts) @ p["W_o"], new


@pytest.mark.parametrize("direction", [1, -1])
def test_as_in_numpy(direction):
    def formula(params, x, state):
        past = np.pad(np.reshape(state[0], (CONV - 1, -1)), [(0, 0), (0, HEADS)])
        window = np.vstack([past, x @ params["W"]])
        y, matrices = deltanet(params, window, np.reshape(state[1], (HEADS, KEYS // HEADS, VALUES // HEADS)))
        return y, [window[1:, :-HEADS], matrices]

    check_unit("deltanet", OPTS, formula, n=N, direction=direction, in_dim=IN)


@pytest.mark.parametrize("strength,chunk", [(None, 16), (0.1, 16), (0.6, 128)])
@pytest.mark.parametrize("native", [True, False])
def test_delta_rule(native, strength, chunk, monkeypatch):
    """In float32, up to the strongest decays of RWKV-7 in the longest chunk, beside channels that forget nothing."""
    if not native:
        monkeypatch.setattr("returnn_tf.ops.cells.matrix.delta_rule.delta_scan_ops", lambda dtype: None)
    rng = np.random.RandomState(2)
    frames, heads, d, m = 140, 2, 8, 3
    r, k, a, b = (rng.normal(size=(frames, 1, heads, d)).astype("float32") for _ in range(4))
    a /= -np.linalg.norm(a, axis=-1, keepdims=True)
    b = (-a * rng.uniform(0, 1, b.shape)).astype("float32")  # as in the delta rule, which never amplifies
    v = rng.normal(size=(frames, 1, heads, m)).astype("float32")
    log_decay = None
    if strength is not None:
        log_decay = (-strength * (rng.uniform(size=r.shape[2:]) < 0.5) * rng.uniform(0.98, 1, size=r.shape)).astype(
            "float32"
        )
    state = rng.normal(size=(1, heads, d, m)).astype("float32")
    expected, s = np.zeros(v.shape), state[0].astype("float64")
    for t in range(frames):
        for i in range(heads):
            w = 1.0 if log_decay is None else np.exp(log_decay[t, 0, i])[:, None]
            s[i] = w * s[i] + np.outer(b[t, 0, i], a[t, 0, i] @ s[i]) + np.outer(k[t, 0, i], v[t, 0, i])
            expected[t, 0, i] = r[t, 0, i] @ s[i]
    given = HeadFrames(r=r, k=k, v=v, a=a, b=b, log_decay=log_decay)
    given = HeadFrames(**{name: None if x is None else tf.constant(x) for name, x in vars(given).items()})
    y, last = delta_rule(given, tf.constant(state), lengths=None, chunk=chunk)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(y / scale, expected / scale, atol=1e-6)
    np.testing.assert_allclose(last[0] / scale, s / scale, atol=1e-6)


@pytest.mark.parametrize(
    "opts,message",
    [
        ({"num_heads": 3}, "n_out 64 is not divisible by num_heads 3"),
        ({"key_dim": 10}, "key_dim 10 is not divisible by num_heads 4"),
        ({"chunk": 0}, "power of 2"),
    ],
)
def test_wrong_options(opts, message):
    with pytest.raises(ConfigError, match=message):
        unit_class("deltanet")(64, 8, unit_opts=opts)
