"""A unit over a ragged batch against its formulas in numpy, frame by frame, and against its own steps."""

import numpy as np

from returnn_tf.ops.cells import run_cell, unit_class
from returnn_tf.ops.cells.base import CellFrames
from returnn_tf.ops.cells.time_axis import running_order
from returnn_tf.util.lazy_tf import tf

LENGTHS = [11, 0, 19, 8]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def check_unit(unit, opts, formula, *, n, direction=1, in_dim=3, states=None, parallel=True):
    """Compare in float64; padding is NaN.

    :param formula: function of parameters, frame [in_dim] and state (list of vectors) that returns output and state
    :param states: function of rng and shape that draws the initial state of each size (default: normal)
    :param parallel: whether it has a form over all frames in parallel
    """
    rng = np.random.RandomState(1)
    cell = unit_class(unit)(n, in_dim, unit_opts=opts)
    params = {spec.name: rng.normal(0, 0.7, spec.shape) for spec in cell.param_specs()}
    x = rng.normal(size=(max(LENGTHS), len(LENGTHS), in_dim))
    shapes = [(len(LENGTHS), size) for size in cell.state_sizes()]
    state = [rng.normal(size=shape) if states is None else states(rng, shape) for shape in shapes]
    expected, last = np.zeros((*x.shape[:2], n)), [part.copy() for part in state]
    for b, length in enumerate(LENGTHS):
        now = [part[b] for part in state]
        for t in range(length)[::direction]:
            expected[t, b], now = formula(params, x[t, b], now)
        for part, value in zip(last, now):
            part[b] = np.reshape(value, -1)
        x[length:, b] = np.nan
    weights = {name: tf.constant(value) for name, value in params.items()}
    lengths, first = tf.constant(LENGTHS), tuple(map(tf.constant, state))
    assert (cell.parallel_kernel() is not None) is parallel
    outputs, got = run_cell(cell, weights, tf.constant(x), lengths, initial_state=first, direction=direction)
    _equal([outputs, *got], [expected, *last])
    z = cell.project_input(weights, running_order(tf.constant(x), lengths, direction == -1))
    outputs, got = cell.step_loop(weights, CellFrames(z, lengths, first))
    outputs = tf.where(np.isnan(x[:, :, :1]), tf.zeros([], x.dtype), running_order(outputs, lengths, direction == -1))
    _equal([outputs, *got], [expected, *last])


def _equal(results, expected):
    for result, value in zip(results, expected):
        np.testing.assert_allclose(result, value, rtol=1e-9, atol=1e-10)
