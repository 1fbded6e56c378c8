"""The MDLSTM in plain TensorFlow: against numpy in float64, numeric gradients, ragged images, padding."""

from collections.abc import Iterator

import numpy as np
import pytest

from returnn_tf.ops.dense import mdlstm as module
from returnn_tf.ops.dense.mdlstm import mdlstm, run_mdlstm
from returnn_tf.util.lazy_tf import tf
from tests.native.mdlstm_cases import FLIPS, SIZES, check_empty, check_padding, check_values_and_gradients
from tests.tiers import usual


@pytest.fixture(autouse=True)
def _eager() -> Iterator[None]:
    """Compute without graphs: tracing one for each case takes ten times as long."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "size, stable",
    [
        (SIZES[0], True),
        (SIZES[1], False),
        pytest.param(SIZES[1], True, marks=pytest.mark.long),
        pytest.param(SIZES[2], False, marks=pytest.mark.long),
    ],
)
def test_values_and_gradients(size, stable):
    check_values_and_gradients(mdlstm, size, FLIPS, stable)


@pytest.mark.slow
def test_padding_does_not_leak():
    check_padding(mdlstm)


@pytest.mark.slow
@pytest.mark.parametrize("size", usual([(0, 2, 3), (2, 0, 3), (1, 0, 0)], [(2, 0, 3)]), ids=str)
def test_empty(size):
    check_empty(mdlstm, size)


def test_two_forget_gates_grow_and_the_stable_cell_does_not():
    """With all gates open and no input the state of the far corner: a mean of its predecessors, or their sum."""
    z = np.zeros((1, 9, 9, 5), "float32")
    z[..., 1:4] = 50  # forget, lambda and output gate
    z[..., 0] = -50
    z[0, 0, 0, [0, 4]] = 50, 0.1  # only the first pixel comes in
    sizes = tf.constant([9])
    ends = [mdlstm([tf.constant(z)], [tf.zeros((1, 5))], [tf.zeros((1, 5))], sizes, sizes, [(False, False)], stable=s)[0][0, 8, 8, 0] for s in (True, False)]  # fmt: skip  # noqa: E501
    assert ends[1] > 0.999 and abs(ends[0]) < 0.1


@pytest.mark.parametrize(
    "types, train, low, expected",
    [
        (["float32"], True, "bfloat16", ("float32", True)),
        (["float32"], False, "bfloat16", ("float32", False)),
        (["float32"], True, None, ("float32", False)),
        (["float32", "bfloat16", "float16"], True, "bfloat16", ("bfloat16", False)),  # on a GPU
        (["float32", "bfloat16", "float16"], False, "float16", ("float16", False)),
    ],
)
def test_types_of_the_native_op(types, train, low, expected, monkeypatch):
    """By the types of its kernels, on a CPU that rounds the factors of products."""
    seen = []

    def native(ops, z, left, up, *rest, stable, rounded):
        assert {x.dtype for x in (*left, *up)} == {z[0].dtype}
        seen.append((z[0].dtype.name, rounded))
        return mdlstm(z, left, up, *rest, stable=stable)

    monkeypatch.setattr(module, "has_type", lambda name, dtype: dtype.name in types)
    monkeypatch.setattr(module, "mdlstm_ops", lambda: "ops")
    monkeypatch.setattr(module, "pays", lambda *_: True)
    monkeypatch.setattr(module, "rounds", lambda name, dtype, low: dtype == tf.float32 and low == "bfloat16")
    monkeypatch.setattr(module, "native_mdlstm", native)
    arrays = [[tf.ones(shape)] for shape in ((1, 2, 2, 10), (2, 10), (2, 10))]
    (h,) = run_mdlstm(*arrays, tf.constant([2]), tf.constant([2]), FLIPS[:1], train=train, product_dtype=low)
    assert seen == [expected] and h.dtype == tf.float32
