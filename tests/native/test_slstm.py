"""The native sLSTM against its loop in TensorFlow, and wrong input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.native.product import rounds
from returnn_tf.native.scans.slstm import native_slstm, slstm_ops
from returnn_tf.ops.cells import run_cell, unit_class
from returnn_tf.ops.cells.base import CellFrames
from returnn_tf.util.lazy_tf import tf
from tests.native.rounding import check_errors
from tests.native.scan_cases import SLSTM_CASES, SLSTM_FRAMES, SLSTM_LENGTHS, gates_far_from_zero

FRAMES, BATCH, IN = SLSTM_FRAMES, len(SLSTM_LENGTHS), 3


@pytest.fixture(scope="module", name="ops")
def find_ops() -> Any:
    found = slstm_ops(tf.float32)
    assert found is not None, "the native sLSTM has to compile where the tests run"
    return found


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("n,opts,direction,few", SLSTM_CASES, ids=str)
def test_forms_agree(ops: Any, n: int, opts: dict[str, Any], direction: int, few: bool) -> None:
    """Results, and gradients by all results: those of a last state reach every gate that determined a stabiliser."""
    del ops
    rng = np.random.RandomState(1)
    batch = 1 if few else BATCH
    lengths = None if few else tf.constant(SLSTM_LENGTHS)
    native, plain = unit_class("slstm")(n, IN, unit_opts=opts), unit_class("slstm")(n, IN, unit_opts=opts)
    assert native.native_kernel(tf.float32) is not None
    plain.native_kernel = lambda dtype: None  # type: ignore[method-assign]
    params = {spec.name: tf.constant(rng.normal(0, 0.5, spec.shape), tf.float32) for spec in native.param_specs()}
    x = tf.constant(rng.normal(0, 2, (FRAMES, batch, IN)), tf.float32)
    state = [tf.constant(rng.normal(size=(batch, n)), tf.float32) for _ in range(4)]
    args = params, x, (state[0], tf.exp(state[1]), state[2], state[3])
    weights = [tf.constant(rng.normal(size=shape), tf.float32) for shape in [(FRAMES, batch, n), *[(batch, n)] * 4]]
    everything = []
    for cell in (native, plain):
        with tf.GradientTape() as tape:
            tape.watch(args)
            out, last = run_cell(cell, params, x, lengths, initial_state=args[2], direction=direction)
            score = tf.add_n([tf.reduce_sum(value * weight) for value, weight in zip((out, *last), weights)])
        everything.append([out, *last, *tf.nest.flatten(tape.gradient(score, args))])
    for one, two in zip(*everything):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5 * (1 + np.abs(two).max()))


@pytest.mark.parametrize("exp_forget", [False, True])
@pytest.mark.parametrize("frames, batch, n", [(4, 13, 37), (7, 8, 64), (4, 70, 97)])
def test_products_of_rounded_factors(ops: Any, frames: int, batch: int, n: int, exp_forget: bool) -> None:
    """Outputs and their gradients are closer to those in float64 than the same loop of TensorFlow in bfloat16."""
    if not rounds("slstm", tf.float32, "bfloat16"):
        pytest.skip("recurrences are not rounded here")
    rng = np.random.RandomState(1)
    shapes = [(1, frames, batch, 4 * n), (1, n, 4 * n), *[(1, batch, n)] * 4]
    inputs = [rng.normal(0, scale, shape) for scale, shape in zip((0.5, 2 / n**0.5, *[0.5] * 4), shapes)]
    inputs[3] = np.exp(inputs[3])
    weight, lengths = rng.normal(0, 1, shapes[0][:3] + (n,)), tf.fill([batch], frames)
    cell = unit_class("slstm")(n, n, unit_opts={"forget_gate": "exp" if exp_forget else "sigmoid"})

    def plain(z: tf.Tensor, w_re: tf.Tensor, *state: tf.Tensor) -> list[tf.Tensor]:
        return [cell.step_loop({"W_re": w_re}, CellFrames(z[0], None, tuple(part[0] for part in state)))[0][None]]

    def native(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return [native_slstm(ops, *tensors, lengths=lengths, exp_forget=exp_forget, rounded=True)[0]]

    check_errors(native, plain, inputs, [weight], by=2)


def test_which_trial_decides(ops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU; the width is that of a head."""
    del ops
    asked: list[Any] = []
    monkeypatch.setattr("returnn_tf.ops.cells.slstm.pays", lambda *args: asked.append(args))
    assert unit_class("slstm")(12, IN, unit_opts={"num_heads": 3}).native_kernel(tf.float32) is None
    assert [(trial.name, width, dtype) for trial, width, dtype in asked] == [("slstm", 4, tf.float32)]


def test_gates_far_from_zero(ops: Any) -> None:
    """log sigmoid over its whole range, from where it is x to where it is -exp(-x)."""
    f = gates_far_from_zero()
    z = np.zeros([1, 1, len(f), 4], "float32")
    z[0, 0, :, 1] = f
    z[..., 0] = -1000.0
    zeros = tf.zeros([1, len(f), 1])
    state = zeros, zeros + 1, zeros, zeros
    *_, m, _ = native_slstm(ops, tf.constant(z), tf.zeros([1, 1, 4]), *state, lengths=tf.ones([len(f)], tf.int32))
    np.testing.assert_allclose(m[0, :, 0], -np.logaddexp(0, -f.astype("float64")), rtol=3e-6, atol=2e-7)


def test_wrong_input(ops: Any) -> None:
    def run(z: Any = (2, 3, 2, 8), w_re: Any = (2, 2, 8), state: Any = (2, 2, 2), lengths: Any = (3, 1)) -> Any:
        parts = [tf.ones(state)] * 4
        return native_slstm(ops, tf.zeros(z), tf.zeros(w_re), *parts, lengths=tf.constant(lengths, tf.int32))

    assert run()[0].shape == (2, 3, 2, 2)
    for wrong, message in [
        ({"w_re": (2, 2, 6)}, "recurrent weights have to be"),
        ({"z": (2, 3, 2, 6)}, r"input has to be \[2, time, batch, 8\]"),
        ({"z": (1, 3, 2, 8)}, r"input has to be \[2, time, batch, 8\]"),
        ({"state": (2, 2, 3)}, r"the initial state has to be \[2, 2, 2\]"),
        ({"lengths": (3, 4)}, "sequence 1 of the batch has length 4, but there are 3 frames"),
    ]:
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            run(**wrong)
