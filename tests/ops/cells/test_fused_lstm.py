"""LSTMs as one op for the whole sequence, in graphs without native ops, against the loop over frames."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest

from returnn_tf.native.portable import portable_ops
from returnn_tf.ops.cells.fused_lstm import BLOCK_LSTM, FusedForm
from returnn_tf.ops.cells.registry import unit_class
from returnn_tf.ops.cells.run import run_cell
from returnn_tf.util.lazy_tf import tf

RUNS_FUSED: dict[str, tuple[str, dict[str, Any], bool]] = {
    "nativelstm2": ("nativelstm2", {}, True),
    "one matrix": ("nativelstmlowmem", {}, True),
    "forget bias": ("standardlstm", {"forget_bias": 2.5}, True),
    "basic": ("basiclstm", {}, True),
    "peepholes": ("standardlstm", {"use_peepholes": True}, False),
    "clip": ("standardlstm", {"cell_clip": 0.1}, False),
    "layer norm": ("layernormvariantslstm", {}, False),
    "gru": ("gru", {}, False),
}


def _ops(graph: Any) -> set[str]:
    found = graph.graph.as_graph_def()
    return {op.op for part in (found.node, *(f.node_def for f in found.library.function)) for op in part}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("lengths", [[6, 4, 1, 0], None])
@pytest.mark.parametrize("name", RUNS_FUSED)
def test_equals_the_loop(name: str, lengths: Optional[list[int]], direction: int) -> None:
    """Outputs, and the states at the end of each sequence, from initial states; padding is no number."""
    unit, opts, fused = RUNS_FUSED[name]
    rng = np.random.RandomState(1)
    cell = unit_class(unit)(5, 3, unit_opts=opts)
    params = {s.name: tf.constant(rng.normal(0, 0.5, s.shape).astype("float32")) for s in cell.param_specs()}
    x = rng.normal(size=[6, 4, 3]).astype("float32")
    for seq, length in enumerate(lengths or ()):
        x[length:, seq] = np.nan
    ends = None if lengths is None else tf.constant(lengths)
    state = tuple(tf.constant(rng.normal(0, 0.3, [4, size]).astype("float32")) for size in cell.state_sizes())
    graphs = []
    for form in (None, BLOCK_LSTM):

        def run(x: Any, *state: Any, form: Optional[FusedForm] = form) -> Any:
            with portable_ops(lstm=form):
                return run_cell(cell, params, x, ends, initial_state=state, direction=direction)

        specs = [tf.TensorSpec([None, None, 3]), *(tf.TensorSpec([None, s.shape[1]]) for s in state)]
        graphs.append(tf.function(run, autograph=False).get_concrete_function(*specs))
    assert (("BlockLSTM" in _ops(graphs[1])), "While" in str(_ops(graphs[1]))) == (fused, not fused)
    for steps in (6, 0) if lengths is None else (6,):
        (expected, last), (got, got_last) = (graph(tf.constant(x[:steps]), *state) for graph in graphs)
        assert got.shape == (steps, 4, 5) and np.isfinite(got).all()
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        for one, other in zip(got_last, last):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("unit, opts", [("nativelstm2", {}), ("standardlstm", {"forget_bias": 2.5})], ids=str)
def test_gradients_equal_those_of_the_loop(unit: str, opts: dict[str, Any]) -> None:
    """By parameters, input and initial state: who fine-tunes an exported graph computes them."""
    rng = np.random.RandomState(1)
    cell = unit_class(unit)(5, 3, unit_opts=opts)
    params = {s.name: tf.constant(rng.normal(0, 0.5, s.shape).astype("float32")) for s in cell.param_specs()}
    x, *state, weights = (tf.constant(rng.normal(size=size).astype("float32")) for size in ([6, 4, 3], *[[4, 5]] * 3))
    found = []
    for form in (None, BLOCK_LSTM):
        with portable_ops(lstm=form), tf.GradientTape() as tape:
            tape.watch([params, x, state])
            y, last = run_cell(cell, params, x, tf.constant([6, 4, 1, 0]), initial_state=tuple(state))
            score = tf.reduce_sum(y * weights) + tf.reduce_sum(tf.square(last))
        found.append(tf.nest.flatten(tape.gradient(score, [params, x, state])))
    for one, other in zip(*found):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_many_units_run_in_the_loop() -> None:
    """Whose product of the whole input is quicker than that op's product frame by frame."""
    for units, fused in ((64, True), (512, False)):
        cell = unit_class("lstm")(units, 40)
        params = {s.name: tf.zeros(s.shape) for s in cell.param_specs()}

        def run(x: Any, cell: Any = cell, params: Any = params) -> Any:
            with portable_ops(lstm=BLOCK_LSTM):
                return run_cell(cell, params, x, None)[0]

        graph = tf.function(run, autograph=False).get_concrete_function(tf.TensorSpec([None, None, 40]))
        assert ("BlockLSTM" in _ops(graph)) == fused
