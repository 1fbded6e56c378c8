"""Units with a form in parallel over time or with states of other sizes, in all places where units work.

A unit's equations are tested in tests/ops/cells: here it is the same unit in two ways.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError
from returnn_tf.ops.cells import run_cell, unit_class
from returnn_tf.ops.initializers import get_initializer
from returnn_tf.util.lazy_tf import tf
from tests.layers.nets import feed, net_of

IN = 3
LENGTHS = [5, 3, 0, 4]

#: Unit, n_out, unit_opts: a row for each form of a unit, the one that runs in whole networks first.
UNITS: list[tuple[str, int, dict[str, Any]]] = [
    ("mingru", 4, {}),
    ("mingru", 4, {"positive": True}),
    ("minlstm", 4, {}),
    ("gla", 4, {"num_heads": 2, "chunk": 4}),
    ("mamba2", 4, {"headdim": 4, "d_state": 3, "chunk": 4}),
    ("mlstm", 4, {"num_heads": 2, "chunk": 4}),
    ("deltanet", 8, {"num_heads": 2, "chunk": 4}),
    ("rwkv6", 8, {"head_size": 4, "chunk": 4, "mix_rank": 2, "decay_rank": 2}),
    ("rwkv7", 8, {"head_size": 4, "chunk": 4, "decay_rank": 2, "rate_rank": 2, "gate_rank": 3}),
    ("mamba", 4, {"d_state": 3, "dt_rank": 2}),
    ("sru", 4, {}),
    ("sru", IN, {"recurrent_vectors": False, "rescale": True, "highway_bias": -1.0}),
    ("slstm", 4, {"num_heads": 2}),
    ("slstm", 4, {"forget_gate": "exp"}),
    ("lru", 4, {"d_state": 5}),
    ("s4d", 4, {"d_state": 4}),
    ("cumsum", IN, {}),
]
each_form = pytest.mark.parametrize("unit,n_out,unit_opts", UNITS, ids=str)
#: Whole networks take long to trace: one unit of each kind (diagonal, matrices, step by step), the others on request.
USUAL = ("mingru", "mlstm", "slstm")
each_unit = pytest.mark.parametrize(
    "unit,n_out,unit_opts",
    [
        pytest.param(*row, marks=() if row[0] in USUAL else pytest.mark.long)
        for row in {row[0]: row for row in UNITS[::-1]}.values()
    ],
    ids=str,
)


def params_of(cell: Any, rng: Any) -> dict[str, Any]:
    """Return values near the initial ones, and none that is 0."""
    values = {}
    for spec in cell.param_specs():
        start = np.zeros(spec.shape) if spec.default is None else get_initializer(spec.default)(spec.shape, rng)
        values[spec.name] = start + rng.normal(0, 0.5 if spec.default is None else 0.1, spec.shape)
    return values


class Forms:
    """The parallel form of a unit and the loop over its steps, on a ragged batch; eager, as tracing is slow."""

    def __init__(self, unit: str, n_out: int, unit_opts: dict[str, Any], dtype: str) -> None:
        rng = np.random.RandomState(1)
        self.rng, self.cell = rng, unit_class(unit)(n_out, IN, unit_opts=unit_opts)
        self.steps = unit_class(unit)(n_out, IN, unit_opts=unit_opts)
        for form in ("native_kernel", "parallel_kernel", "loop_kernel"):
            setattr(self.steps, form, lambda *_: None)
        x = rng.normal(size=(2, max(LENGTHS), len(LENGTHS), IN))
        params = {name: tf.constant(value, dtype) for name, value in params_of(self.cell, rng).items()}
        # Not any numbers are a state: it comes from other frames.
        _, state = run_cell(self.steps, params, tf.constant(x[1], dtype), tf.constant([2, 4, 3, 0]))
        self.args = (params, tf.constant(x[0], dtype), state)
        self.weights = [
            tf.constant(rng.normal(size=[*shape]), dtype)
            for shape in [(*x.shape[1:3], n_out), *(part.shape for part in state)]
        ]

    def run(self, cell: Any, args: Any, direction: int) -> Any:
        """Return (output, last state)."""
        params, x, state = args
        return run_cell(cell, params, x, tf.constant(LENGTHS), initial_state=state, direction=direction)

    def score(self, args: Any) -> Any:
        """Return a weighted sum of outputs and last states, forwards and backwards."""
        values = [x for direction in (1, -1) for x in tf.nest.flatten(self.run(self.cell, args, direction))]
        return tf.add_n([tf.reduce_sum(value * weight) for value, weight in zip(values, 2 * self.weights)])


@each_form
def test_parallel_form_is_that_of_the_steps(unit: str, n_out: int, unit_opts: dict[str, Any]) -> None:
    forms = Forms(unit, n_out, unit_opts, "float32")

    for direction in (1, -1):
        parallel, steps = (forms.run(cell, forms.args, direction) for cell in (forms.cell, forms.steps))
        for values, expected in zip(tf.nest.flatten(parallel), tf.nest.flatten(steps)):
            np.testing.assert_allclose(values, expected, atol=1e-5, rtol=1e-5)
        assert not parallel[0].numpy()[3:, 1].any(), "padding"
        np.testing.assert_allclose(parallel[1][0][2], forms.args[2][0][2], atol=1e-6)  # no frames


@each_form
def test_gradient(unit: str, n_out: int, unit_opts: dict[str, Any]) -> None:
    """Those of parameters, input and states, all in one random direction, are a difference quotient."""
    forms = Forms(unit, n_out, unit_opts, "float64")
    flat, eps = tf.nest.flatten(forms.args), 1e-7
    with tf.GradientTape() as tape:
        tape.watch(flat)
        score = forms.score(forms.args)
    gradients = tape.gradient(score, flat, unconnected_gradients="zero")
    ways = [forms.rng.normal(size=array.shape) for array in flat]
    high, low = (
        forms.score(tf.nest.pack_sequence_as(forms.args, [array + sign * eps * way for array, way in zip(flat, ways)]))
        for sign in (1, -1)
    )
    got = sum((gradient.numpy() * way).sum() for gradient, way in zip(gradients, ways))
    assert got == pytest.approx(((high - low) / (2 * eps)).numpy(), rel=1e-5, abs=1e-6)


@pytest.mark.slow
@each_unit
def test_in_a_loop(unit: str, n_out: int, unit_opts: dict[str, Any]) -> None:
    """Step by step in a loop it computes what it computes over time, with the same last state."""
    cell = {"class": "rec", "unit": unit, "n_out": n_out, "unit_opts": unit_opts}
    step = {**cell, "class": "rnn_cell", "is_output_layer": True}
    network = {
        "over": {**cell, "from": "data"},
        "loop": {"class": "rec", "from": "data", "optimize_move_layers_out": False, "unit": {
            "s": {**step, "from": "data:source", "reuse_params": "base:over"},
            "back": {"class": "linear", "activation": "tanh", "n_out": 2, "from": ["prev:s", "prev:own"]},
            "own": {**step, "from": ["data:source", "back"], "initial_state": "var"},
            "output": {"class": "copy", "from": ["s", "own"]}}},
        "last": {"class": "get_last_hidden_state", "from": "over", "key": "*", "is_output_layer": True},
        "last_of_loop": {"class": "get_last_hidden_state", "from": "loop/s", "key": "*", "is_output_layer": True},
        "score": {"class": "reduce", "mode": "sum", "axes": "F", "from": "loop", "loss": "as_is"},
        "output": {"class": "copy", "from": ["over", "loop/s"]}}  # fmt: skip
    result = net_of(network, train=True).run(feed(), with_grad=True)
    output, last, of_loop = (result.layers[name].value for name in ("output", "last", "last_of_loop"))
    for row, length in zip(output, feed()["data/size0"]):
        np.testing.assert_allclose(row[:length, :n_out], row[:length, n_out:], atol=1e-5)
    np.testing.assert_allclose(last, of_loop, atol=1e-5)
    assert all(np.isfinite(gradient).all() for gradient in result.grads.values())
    assert result.grads["loop/rec/back/W"].any()


@pytest.mark.slow
@each_unit
def test_in_beam_search(unit: str, n_out: int, unit_opts: dict[str, Any]) -> None:
    """The scores of the hypotheses are those of their labels, given to the network: states follow their hypotheses."""
    loop = {
        "output": {
            "class": "choice", "target": "classes", "beam_size": 3, "from": "p", "initial_output": 0,
            "length_normalization": False,
        },
        "embed": {"class": "linear", "activation": None, "n_out": IN, "from": "prev:output"},
        "s": {
            "class": "rnn_cell",
            "unit": unit,
            "unit_opts": unit_opts,
            "n_out": n_out,
            "from": ["embed", "data:source"],
        },
        "p": {"class": "softmax", "from": "s", "target": "classes", "loss": "ce"},
    }  # fmt: skip
    config = Config({
        "extern_data": {"data": {"dim": 2}, "classes": {"dim": 5, "sparse": True}},
        "network": {"output": {"class": "rec", "from": "data", "target": "classes", "unit": loop}},
        "behavior_version": 21,
    })  # fmt: skip
    search, scoring = Network.from_config(config, search=True), Network.from_config(config, train=True)
    rng = np.random.RandomState(2)
    values = {name: p.numpy() + rng.normal(0, 0.7, p.shape) for name, p in sorted(search.params.items())}
    for net in (search, scoring):
        net.set_param_values({name: value.astype("float32") for name, value in values.items()})
    lengths = np.full([3], 4, "int32")
    arrays = {"data": rng.normal(size=(3, 4, 2)).astype("float32"), "data/size0": lengths, "classes/size0": lengths}
    found = search.run({**arrays, "classes": np.zeros([3, 4], "int32")}).layers["output"]
    beam = found.beam_scores.shape[1]
    labels = np.asarray(found.value).reshape(3, beam, -1)
    for rank in range(beam):
        given = scoring.run({**arrays, "classes": labels[:, rank].astype("int32")})
        assert given.total_loss == pytest.approx(-found.beam_scores[:, rank].sum(), rel=1e-4)
    assert len({tuple(row) for row in labels[0]}) == beam


def test_cumsum_is_the_sum_of_all_frames_so_far():
    arrays = feed()
    net = net_of({"output": {"class": "rec", "unit": "cumsum", "n_out": 3, "from": "data"}})
    assert not net.params
    value = net.run(arrays).layers["output"].value
    for b, length in enumerate(arrays["data/size0"]):
        np.testing.assert_allclose(value[b, :length], np.cumsum(arrays["data"][b, :length], axis=0), rtol=1e-5)
    with pytest.raises(
        ConfigError, match="unit 'cumsum' adds up its input, which has dim 3, so n_out must be 3, not 4"
    ):
        net_of({"output": {"class": "rec", "unit": "cumsum", "n_out": 4, "from": "data"}})
