"""The unit mamba against the equations of its paper, in numpy; its initial values and options."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.native.portable import portable_ops
from returnn_tf.ops.cells import run_cell, unit_class
from returnn_tf.ops.cells.base import CellFrames
from returnn_tf.ops.initializers import get_initializer
from returnn_tf.ops.sequence.selective_scan import selective_scan
from returnn_tf.util.lazy_tf import tf

IN, N_OUT, STATES, WIDTH, RANK = 3, 4, 3, 4, 2
OPTS = {"expand": 2, "d_state": STATES, "d_conv": WIDTH, "dt_rank": RANK}
LENGTHS = [6, 2, 0]


def silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


def mamba(p: Any, frames: Any, h: Any, past: Any) -> Any:
    """Return one sequence: outputs, and the states after it."""
    outputs = []
    for frame in frames:
        x, g = np.split(frame @ p["in_proj"], 2)
        past = np.concatenate([past, x[None]])
        x = silu((past * p["conv/W"]).sum(0) + p["conv/b"])
        past = past[1:]
        r, b, c = np.split(x @ p["x_proj"], [RANK, RANK + STATES])
        delta = np.log1p(np.exp(r @ p["dt_proj"] + p["dt_bias"]))
        h = np.exp(-delta * np.exp(p["A_log"])) * h + delta * x * b[:, None]
        outputs.append(((c @ h + p["D"] * x) * silu(g)) @ p["out_proj"])
    return outputs, h, past


@pytest.mark.parametrize("dtype, plain", [("float64", False), ("float32", False), ("float32", True)])
@pytest.mark.parametrize("direction", [1, -1])
def test_as_in_numpy(direction: int, dtype: str, plain: bool) -> None:
    rng = np.random.RandomState(1)
    cell = unit_class("mamba")(N_OUT, IN, unit_opts=OPTS)
    params = {spec.name: rng.normal(0, 0.5, spec.shape) for spec in cell.param_specs()}
    x, width = rng.normal(size=(6, 3, IN)), 2 * N_OUT
    h0, past = rng.normal(size=(3, STATES, width)), rng.normal(size=(3, WIDTH - 1, width))
    state = tuple(tf.constant(part.reshape(3, -1), dtype) for part in (h0, past))
    if plain:  # the loop over steps
        cell.parallel_kernel = lambda: None  # type: ignore[method-assign]
    out, (h, conv) = run_cell(
        cell, {name: tf.constant(value, dtype) for name, value in params.items()}, tf.constant(x, dtype),
        tf.constant(LENGTHS), initial_state=state, direction=direction,
    )  # fmt: skip
    limit = {"atol": 1e-9} if dtype == "float64" else {"atol": 2e-5, "rtol": 1e-4}
    for b, length in enumerate(LENGTHS):
        expected, h_last, past_last = mamba(params, x[:length, b][::direction], h0[b], past[b])
        for t, y in enumerate(expected[::direction]):
            np.testing.assert_allclose(out[t, b], y, **limit)
        np.testing.assert_allclose(h[b], h_last.ravel(), **limit)
        np.testing.assert_allclose(conv[b], past_last.ravel(), **limit)
        assert not out[length:, b].numpy().any()


def test_without_native_ops() -> None:
    """The parallel form in plain TensorFlow, as where there is no compiler."""
    cell = unit_class("mamba")(N_OUT, IN, unit_opts=OPTS)
    rng = np.random.RandomState(1)
    params = {spec.name: tf.constant(rng.normal(0, 0.5, spec.shape), "float32") for spec in cell.param_specs()}
    x = tf.constant(rng.normal(size=(6, 3, IN)), "float32")
    native, last = run_cell(cell, params, x, tf.constant(LENGTHS))
    with portable_ops():
        z = cell.project_input(params, x)
        frames = CellFrames(z, tf.constant(LENGTHS), cell.zero_state(3, z.dtype))
        plain, plain_last = cell.parallel_kernel()(params, frames)
    for got, expected in zip((plain, *plain_last), (native, *last)):
        np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("plain", [False, True], ids=["default", "plain"])
def test_without_frames(plain: bool) -> None:
    """A batch of empty sequences in a graph, which knows neither the number of frames nor that of sequences."""

    @tf.function(input_signature=[tf.TensorSpec([None, None, 4]), tf.TensorSpec([None, None, STATES])])
    def run(x: Any, b: Any) -> Any:
        a, d, h0 = tf.ones([STATES, 4]), tf.ones([4]), tf.ones([tf.shape(x)[1], STATES, 4])
        with tf.GradientTape() as tape:
            tape.watch([x, h0])
            y, last = selective_scan(x, x, -a, b, b, d, h0, tf.zeros([2], tf.int32))
            total = tf.reduce_sum(last) + tf.reduce_sum(y)
        return y, last, tape.gradient(total, h0)

    with portable_ops() if plain else contextlib.nullcontext():
        y, last, gradient = run(tf.zeros([0, 2, 4]), tf.zeros([0, 2, STATES]))
    assert y.shape == (0, 2, 4)
    assert (last.numpy() == 1).all() and (gradient.numpy() == 1).all()


def test_initial_values() -> None:
    cell = unit_class("mamba")(40, IN)
    rng = np.random.default_rng(1)
    start = {
        spec.name: get_initializer(spec.default)(spec.shape, rng)
        for spec in cell.param_specs()
        if spec.default is not None
    }
    np.testing.assert_allclose(np.exp(start["A_log"])[:, 7], np.arange(1, 17))
    delta = np.log1p(np.exp(start["dt_bias"]))
    assert 0.00099 <= delta.min() < 0.003 and 0.05 < delta.max() <= 0.1001
    assert start["conv/W"].shape == (4, 80) and abs(start["conv/W"]).max() <= 0.5
    assert start["dt_proj"].shape == (3, 80)  # 40 / 16, rounded up


@pytest.mark.parametrize(
    "opts,message",
    [
        ({"d_conv": 1}, "'d_conv'.*must be at least 2"),
        ({"expand": 0}, "'expand'.*must be at least 1"),
        ({"dt_rank": "full"}, "'dt_rank'.*must be 'auto' or 1 or more"),
        ({"dt_min": 0.5}, "net/rec: dt_min 0.5 is above dt_max 0.1"),
        ({"d_sate": 8}, "unknown option 'd_sate'. Did you mean 'd_state'"),
    ],
)
def test_errors(opts: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        unit_class("mamba")(N_OUT, IN, unit_opts=opts, where="net/rec")
