"""The helpers for tensors that code in configs calls by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compat.helpers.gradients import custom_gradient
from returnn_tf.compat.helpers.names import HELPERS
from returnn_tf.util.lazy_tf import tf
from tests.layers.nets import LENS, feed, net_of

X = np.arange(24, dtype="float32").reshape(2, 3, 4)

CASES: list[Any] = [
    ("swapaxes(x, 0, 2)", X.swapaxes(0, 2)),
    ("swapaxes(x, -1, 0)", X.swapaxes(-1, 0)),
    ("move_axis(x, 0, 2)", np.moveaxis(X, 0, 2)),
    ("move_axis(x, -1, 0)", np.moveaxis(X, -1, 0)),
    ("expand_multiple_dims(x, [0, -1])", X[None, ..., None]),
    ("expand_multiple_dims(x, [1, 2])", X[:, None, None]),
    ("expand_dims_unbroadcast(x, 1, 2)", np.stack([X, X], axis=1)),
    ("constant_with_shape(3.0, [2, 2])", [[3.0, 3.0], [3.0, 3.0]]),
    ("constant_with_shape(3, [2], dtype='float32')", np.array([3, 3], "float32")),
    ("identity(x)", X),
    ("get_shape_dim(x, -1)", 4),
    ("get_ndim(x)", 3),
    ("check_input_dim(x, 1, 3)", X),
    ("check_input_ndim(x, 3)", X),
    ("optional_add(None, x, 1.0)", X + 1),
    ("optional_mul(x, None, 2.0)", X * 2),
    ("optional_add()", None),
    ("cond(True, lambda: x, lambda: 1 / 0)", X),
    ("cond(False, fn1=lambda: 1 / 0, fn2=lambda: x)", X),
    ("cond(tf.reduce_sum(x) > 1, lambda: x, lambda: -x)", X),
    ("sequence_mask([1, 2])", [[True, False], [True, True]]),
    ("filter_ended_scores(tf.constant([[1., 2.], [3., 4.]]), tf.constant([True, False]))",
     np.array([[0, -1e30], [3, 4]], "float32")),
    ("safe_log(tf.constant([0., 1.]))", np.array([np.log(1e-20), 0], "float32")),
    ("safe_log(tf.constant([0., 1.]), eps=1e-7, use_fake_grad=True)", np.array([np.log(1e-7), 0], "float32")),
    ("safe_exp(tf.constant([100., 0.]))", np.array([1e20, 1], "float32")),
    ("py_print(x, ['value', 3], summarize=1)", X),
    ("dot(x, tf.ones([4, 2]))", X @ np.ones((4, 2), "float32")),
    ("dot(x, tf.ones([2, 4]), transpose_b=True)", X @ np.ones((4, 2), "float32")),
    ("matrix_triangular([2, 2], upper=True)", [[1.0, 1.0], [0.0, 1.0]]),
    ("dropout(x, 1.0)", X),
    ("get_linear_alignment_out_to_in_indices([7, 3, 2], [3, 3, 4])", [[1, 3, 5, 0], [0, 1, 2, 0], [0, 0, 1, 1]]),
    ("get_linear_alignment_out_to_in_indices([7, 3], [3, 1], pad_value=-1)", [[1, 3, 5], [1, -1, -1]]),
    ("get_linear_alignment_out_to_in_indices([28, 14], [13, 21])[0, 6]", 13),  # 7 * 29 / 14 = 14.5
    ("get_linear_alignment_out_to_in_indices([14], [21])[0, 10]", 7),  # 11 * 15 / 22 = 7.5
    ("get_rnnt_linear_aligned_output([4, 4, 3], [[1, 2, 3], [1, 0, 0], [1, 2, 0]], [3, 1, 2], 9)[0]",
     [[9, 1, 9, 2, 9, 3, 9], [9, 9, 1, 9, 9, 0, 0], [9, 1, 9, 2, 9, 0, 0]]),
    ("get_rnnt_linear_aligned_output([4, 4, 3], [[1, 2, 3], [1, 0, 0], [1, 2, 0]], [3, 1, 2], 9)[1]", [7, 5, 5]),
    ("get_rnnt_linear_aligned_output([1, 3], [[5, 6], [7, 8]], [0, 2], 9, pad_value=-1)[0]",
     [[9, -1, -1, -1, -1], [9, 7, 9, 8, 9]]),
    ("get_rnnt_linear_aligned_output([7, 2], [[1, 2, 3, 0], [1, 2, 3, 4]], [3, 4], 9, targets_consume_time=True)[0]",
     [[9, 1, 9, 2, 9, 3, 9], [1, 2, 0, 0, 0, 0, 0]]),
]  # fmt: skip


@pytest.mark.parametrize("code, expected", CASES)
def test_values(code: str, expected: Any) -> None:
    value = eval(code, {**HELPERS, "tf": tf, "x": tf.constant(X)})
    if expected is None or isinstance(expected, int):
        assert value == expected
    else:
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "code, error",
    [
        ("check_input_dim(x, 1, 7)", "axis 1 of .* should have the size 7"),
        ("check_input_ndim(x, 2)", "should have 2 axes"),
        ("cond(True)", "give two functions"),
        ("matrix_triangular([2, 2])", "either lower=True or upper=True"),
        ("py_print(x, [], first_n=3)", "first_n is not supported"),
    ],
)
def test_mistakes(code: str, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        eval(code, {**HELPERS, "tf": tf, "x": tf.constant(X)})


def test_dropout() -> None:
    dropped = HELPERS["dropout"](tf.ones([50, 40]), 0.5, noise_shape=[None, 1], seed=3).numpy()
    assert set(np.unique(dropped)) == {0.0, 2.0} and (dropped == dropped[:, :1]).all()
    plain = HELPERS["dropout"](tf.ones([50, 40]), 0.5, apply_correction_factor=False).numpy()
    assert set(np.unique(plain)) == {0.0, 1.0}


def test_dense_image_warp() -> None:
    rng = np.random.RandomState(1)
    image = rng.normal(size=(2, 5, 6, 3)).astype("float32")
    flow = rng.uniform(-3, 3, size=(2, 5, 6, 2)).astype("float32")
    expected = np.zeros_like(image)
    for b, i, j in np.ndindex(2, 5, 6):
        y, x = np.clip(i - flow[b, i, j, 0], 0, 4), np.clip(j - flow[b, i, j, 1], 0, 5)
        y0, x0 = min(int(y), 3), min(int(x), 4)
        dy, dx = y - y0, x - x0
        expected[b, i, j] = (
            image[b, y0, x0] * (1 - dy) * (1 - dx) + image[b, y0, x0 + 1] * (1 - dy) * dx
            + image[b, y0 + 1, x0] * dy * (1 - dx) + image[b, y0 + 1, x0 + 1] * dy * dx
        )  # fmt: skip
    np.testing.assert_allclose(HELPERS["dense_image_warp"](image, flow).numpy(), expected, atol=1e-5)
    same = HELPERS["dense_image_warp"](image[:, :1], np.zeros((2, 1, 6, 2), "float32"))  # a single row
    np.testing.assert_allclose(same.numpy(), image[:, :1])


def test_random_warp_flow_is_smooth() -> None:
    tf.random.set_seed(1)
    try:
        flow = HELPERS["create_random_warp_flow_2d"]((3, 40, 30), std=(1.0, 0.0), scale=(2.0, 5.0)).numpy()
    finally:
        tf.random.set_seed(None)
    assert flow.shape == (3, 40, 30, 2) and (flow[..., 1] == 0).all()
    rows = flow[..., 0]
    assert rows.std() > 0.1 and np.abs(np.diff(rows, axis=1)).mean() < 0.9 * np.abs(rows).mean() * 2
    assert np.corrcoef(rows[:, 1:].ravel(), rows[:, :-1].ravel())[0, 1] > 0.4  # neighbours move together


def test_custom_gradient() -> None:
    double = custom_gradient.register(
        [tf.float32], lambda x: 2 * x, lambda op, grad: grad * op.outputs[0] + op.inputs[0]
    )
    x = tf.Variable([1.0, 3.0])
    with tf.GradientTape() as tape:
        y = double(x)
    np.testing.assert_array_equal(y.numpy(), [2, 6])
    np.testing.assert_array_equal(tape.gradient(y, x).numpy(), [3, 9])
    with tf.GradientTape() as tape:
        loss = custom_gradient.generic_loss_and_error_signal(tf.constant([5.0]), x, tf.constant([7.0, 8.0]))
    assert float(loss[0]) == 5
    np.testing.assert_array_equal(tape.gradient(loss, x).numpy(), [7, 8])


def test_noise_on_gradients() -> None:
    grads = [(tf.zeros([1000]), "v"), (None, "w"), (tf.IndexedSlices(tf.zeros([3]), [0, 1, 2]), "s")]
    dense, none, sparse = HELPERS["add_scaled_noise_to_gradients"](grads, 0.1)
    assert 0.05 < dense[0].numpy().std() < 0.15 and dense[1] == "v" and none == (None, "w")
    assert not sparse[0].values.numpy().any()
    assert HELPERS["add_scaled_noise_to_gradients"](grads, 0.1, sparse_grads=True)[2][0].values.numpy().any()


@pytest.mark.parametrize("name", ["", "tf.", "tf_compat.v1.", "tf_compat.v2.math."])
def test_names_in_eval(name: str) -> None:
    code = name + "log_sigmoid(source(0))"
    result = net_of({"output": {"class": "eval", "eval": code, "from": "data"}}).run(feed()).layers["output"].value
    np.testing.assert_allclose(result, -np.log1p(np.exp(-feed()["data"])), rtol=1e-5)


def test_cross_entropy_over_the_frames() -> None:
    labels = {"class": "softmax_over_spatial", "from": "twice"}
    code = "softmax_cross_entropy_over_size(source(0, as_data=True), source(1, as_data=True))"
    loss = {
        "class": "eval", "eval": code, "from": ["data", "labels"],
        "out_type": {"shape": (3,), "time_dim_axis": None, "batch_dim_axis": 0, "feature_dim_axis": 1},
    }  # fmt: skip
    twice = {"class": "eval", "eval": "source(0) * 2", "from": "data"}
    result = net_of({"twice": twice, "labels": labels, "output": loss}).run(feed()).layers["output"].value
    for x, length, value in zip(feed()["data"], LENS, result):
        p, q = (np.exp(f * x[:length]) / np.exp(f * x[:length]).sum(0) for f in (2, 1))
        np.testing.assert_allclose(value, -(p * np.log(q)).sum(0), rtol=1e-5)
