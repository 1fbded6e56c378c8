"""Recurrent cells against their re-computation in numpy: outputs, last states and gradients, with ragged lengths."""

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.native.portable import twice_differentiable_ops
from returnn_tf.ops.cells import run_cell, unit_class
from returnn_tf.ops.cells.lstm import lstm_loop
from returnn_tf.ops.cells.registry import UNITS
from returnn_tf.ops.cells.single_step import prepare_cell
from returnn_tf.util.lazy_tf import tf
from tests.ops import numpy_cells
from tests.tiers import usual

CASES = [
    ("nativelstm2", {}),
    ("nativelstmlowmem", {}),
    ("standardlstm", {}),
    ("standardlstm", {"forget_bias": 0.0}),
    ("standardlstm", {"use_peepholes": True}),
    ("standardlstm", {"use_peepholes": True, "cell_clip": 0.3}),
    ("standardlstm", {"activation": "relu"}),
    ("basiclstm", {}),
    ("basiclstm", {"activation": "relu"}),
    ("zoneoutlstm", {}),
    ("zoneoutlstm", {"zoneout_factor_cell": 0.2, "zoneout_factor_output": 0.1}),
    ("zoneoutlstm", {"zoneout_factor_cell": 0.2, "zoneout_factor_output": 0.1, "use_zoneout_output": True}),
    ("gru", {}),
    ("basicrnn", {}),
    ("rhn", {}),
    ("rhn", {"depth": 2}),
    ("layernormvariantslstm", {}),
    ("layernormvariantslstm", {"global_norm": False}),
    ("layernormvariantslstm", {"global_norm": False, "global_norm_joined": True}),
    ("layernormvariantslstm", {"global_norm": False, "per_gate_norm": True}),
    ("layernormvariantslstm", {"cell_norm": False}),
    ("layernormvariantslstm", {"cell_norm_in_output": False, "hidden_norm": True}),
]
IN, N = 3, 4


def make_params(cell, rng):
    return {spec.name: rng.normal(0, 0.5, spec.shape) for spec in cell.param_specs()}


def run_with_gradients(cell, params, x, lengths, state, direction, out_weights, state_weights, graph=False):
    """Outputs, last states, and the gradients of a weighted sum of both for params, x and the initial state.

    :param graph: in a graph that knows no sizes, which takes ten times as long
    """
    params = {name: tf.constant(value) for name, value in params.items()}
    inputs = (tf.constant(x), tuple(tf.constant(part) for part in state))
    specs = tf.nest.map_structure(lambda v: tf.TensorSpec([None] * (v.ndim - 1) + [v.shape[-1]], v.dtype), inputs)

    def run(x, state, lengths):
        with tf.GradientTape() as tape:
            tape.watch((params, x, state))
            out, last = run_cell(cell, params, x, lengths, initial_state=state, direction=direction)
            score = tf.reduce_sum(out * out_weights)
            score += tf.add_n([tf.reduce_sum(part * w) for part, w in zip(last, state_weights)])
        return out, last, tape.gradient(score, (params, x, state))

    if graph:
        run = tf.function(run, input_signature=[*specs, tf.TensorSpec([None], tf.int32)])
    return tf.nest.map_structure(lambda t: t.numpy(), run(*inputs, tf.constant(lengths, tf.int32)))


RAGGED = [4, 6, 0, 2]


@pytest.mark.parametrize(
    "unit,opts,direction,lengths",
    [(unit, opts, 1, RAGGED) for unit, opts in CASES]
    + [(unit, {}, -1, RAGGED) for unit in sorted(numpy_cells.STEPS)]
    + [(unit, {}, 1, [3]) for unit in ("nativelstm2", "gru")],
    ids=str,
)
def test_as_in_numpy(unit, opts, direction, lengths):
    rng = np.random.RandomState(1)
    cell = unit_class(unit)(N, IN, unit_opts=opts)
    params = make_params(cell, rng)
    x = rng.normal(size=(max(lengths), len(lengths), IN))
    state = tuple(rng.normal(0, 0.5, (len(lengths), N)) for _ in range(cell.n_states))
    out_weights = rng.normal(size=x.shape[:2] + (N,))
    state_weights = [rng.normal(size=part.shape) for part in state]

    out, last, gradients = run_with_gradients(
        cell, params, x, lengths, state, direction, out_weights, state_weights, graph=lengths != RAGGED
    )
    expected_out, expected_last = numpy_cells.run(unit, opts, params, x, lengths, state, direction)
    np.testing.assert_allclose(out, expected_out, atol=1e-12)
    for part, expected in zip(last, expected_last):
        np.testing.assert_allclose(part, expected, atol=1e-12)

    def score(params, x, state):
        out, last = numpy_cells.run(unit, opts, params, x, lengths, state, direction)
        return (out * out_weights).sum() + sum((part * w).sum() for part, w in zip(last, state_weights))

    check_gradient(score, (params, x, state), gradients, rng)


def check_gradient(score, at, gradients, rng, eps=1e-6):
    """Compare with central differences of ``score`` in a random direction of each array."""
    arrays, flat_gradients = tf.nest.flatten(at), tf.nest.flatten(gradients)
    for index, (array, gradient) in enumerate(zip(arrays, flat_gradients)):
        way = rng.normal(size=array.shape)
        ends = [score(*tf.nest.pack_sequence_as(at, moved(arrays, index, sign * eps * way))) for sign in (1, -1)]
        assert (gradient * way).sum() == pytest.approx((ends[0] - ends[1]) / (2 * eps), rel=1e-5, abs=1e-7)


def moved(arrays, index, by):
    return [array + by if i == index else array for i, array in enumerate(arrays)]


@pytest.mark.parametrize("unit", ["nativelstm2", "gru"])
def test_no_frames(unit):
    """A batch without any frame: the last state is the initial one, and gradients exist."""
    rng = np.random.RandomState(1)
    cell = unit_class(unit)(N, IN)
    params = make_params(cell, rng)
    state = tuple(rng.normal(size=(2, N)) for _ in range(cell.n_states))
    weights = [np.ones((2, N))] * cell.n_states
    out, last, gradients = run_with_gradients(cell, params, np.zeros((0, 2, IN)), [0, 0], state, 1, 1.0, weights, True)
    assert out.shape == (0, 2, N)
    np.testing.assert_allclose(last, state)
    np.testing.assert_allclose(gradients[2], weights)
    assert all(not gradient.any() for gradient in gradients[0].values())


@pytest.mark.slow
def test_second_derivative_of_the_lstm_loop():
    """The gradient written by hand has the right gradient itself, as penalties on gradients need it."""
    rng = np.random.RandomState(1)
    z, w_re, start, weights = (tf.constant(rng.normal(size=s)) for s in [(4, 2, 12), (3, 12), (2, 3), (4, 2, 3)])

    @tf.function
    def squared_gradient(w_re):
        h = lstm_loop(z, w_re, start, start)[1]
        (gradient,) = tf.gradients(tf.reduce_sum(h[1:] * weights), w_re)
        score = tf.reduce_sum(gradient**2)
        return score, tf.gradients(score, w_re)[0]

    def score(w_re):
        return squared_gradient(tf.constant(w_re))[0].numpy()

    check_gradient(score, (w_re.numpy(),), (squared_gradient(w_re)[1].numpy(),), rng)


@pytest.mark.parametrize("unit", ["nativelstm2", "gru"])
@pytest.mark.parametrize("direction", [1, -1])
def test_lengths_not_given(unit, direction):
    """Without lengths all sequences fill the array."""
    rng = np.random.RandomState(1)
    cell = unit_class(unit)(N, IN)
    params = make_params(cell, rng)
    x = rng.normal(size=(5, 2, IN))
    out, last = run_cell(cell, params, tf.constant(x), None, direction=direction)
    state = (np.zeros((2, N)),) * cell.n_states
    expected_out, expected_last = numpy_cells.run(unit, {}, params, x, [5, 5], state, direction)
    np.testing.assert_allclose(out, expected_out, atol=1e-12)
    np.testing.assert_allclose(last, expected_last, atol=1e-12)


@pytest.mark.parametrize("unit", ["nativelstm2", "gru"])
def test_padding_has_no_influence(unit):
    """Huge values in the padding change neither outputs nor gradients."""
    rng = np.random.RandomState(1)
    cell = unit_class(unit)(N, IN)
    params = make_params(cell, rng)
    x = rng.normal(size=(5, 2, IN))
    state = tuple(np.zeros((2, N)) for _ in range(cell.n_states))
    results = []
    for padding in (0.0, 1e6):
        x[3:, 1] = padding
        results.append(run_with_gradients(cell, params, x, [5, 3], state, -1, 1.0, state))
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), *results)


@pytest.mark.parametrize("unit", sorted(numpy_cells.STEPS))
def test_sparse_input_is_one_hot(unit):
    rng = np.random.RandomState(1)
    labels = rng.randint(0, IN, (5, 2))
    dense, sparse = (unit_class(unit)(N, IN, sparse_input=flag) for flag in (False, True))
    params = make_params(dense, rng)
    lengths = tf.constant([5, 3])
    expected, _ = run_cell(dense, params, tf.constant(np.eye(IN)[labels]), lengths, direction=-1)
    out, _ = run_cell(sparse, params, tf.constant(labels), lengths, direction=-1)
    np.testing.assert_allclose(out, expected, atol=1e-12)


@pytest.mark.parametrize("in_loop", [False, True])
@pytest.mark.parametrize("unit", ["basicrnn", "gru", "nativelstmlowmem", "basiclstm", "standardlstm", "zoneoutlstm"])
def test_a_kernel_is_split_once(unit, in_loop):
    """Into the rows of input and state: its gradient is one concatenation."""
    cell = unit_class(unit)(N, IN)
    shapes = {spec.name: spec.shape for spec in cell.param_specs()}

    def run(params):
        if in_loop:
            return prepare_cell(cell, params, batch=2, seed=None).step(
                tf.ones([2, IN]), cell.zero_state(2, tf.float32), 0
            )
        return run_cell(cell, params, tf.ones([5, 2, IN]), None)

    specs = {name: tf.TensorSpec(shape, name=name.replace("/", "_")) for name, shape in shapes.items()}
    inputs = tf.function(run, autograph=False).get_concrete_function(specs).inputs
    kernels = [tensor for tensor in inputs if tensor.shape.rank == 2]
    assert len(kernels) == (2 if unit == "gru" else 1)
    for kernel in kernels:
        assert [op.type for op in kernel.consumers()] == ["SplitV"]


@pytest.mark.parametrize("unit,width", [("nativelstm2", 4), ("rhn", 2)])
def test_no_input_projection(unit, width):
    rng = np.random.RandomState(1)
    cell = unit_class(unit)(N, width * N, input_projection=False)
    params = make_params(cell, rng)
    assert not {"W", "b"} & set(params)
    x = rng.normal(size=(5, 2, width * N))
    out, _ = run_cell(cell, params, tf.constant(x), tf.constant([5, 3]), direction=-1)
    state = (np.zeros((2, N)),) * cell.n_states
    np.testing.assert_allclose(out, numpy_cells.run(unit, {}, params, x, [5, 3], state, -1)[0], atol=1e-12)


NOISE = [
    ("nativelstm2", {"rec_weight_dropout": 0.5}),
    ("nativelstm2", {"rec_weight_dropout": 0.5, "rec_weight_dropout_shape": [N, 1]}),
    ("zoneoutlstm", {"zoneout_factor_cell": 0.5, "zoneout_factor_output": 0.3}),
    ("rhn", {"dropout": 0.5}),
    ("layernormvariantslstm", {"dropout": 0.5}),
    ("layernormvariantslstm", {"dropout_h": 0.5}),
]


@pytest.mark.parametrize("unit,opts", NOISE, ids=str)
def test_noise_only_in_training(unit, opts):
    rng = np.random.RandomState(1)
    cell, plain = (unit_class(unit)(N, IN, unit_opts=o) for o in (opts, {}))
    params = make_params(cell, rng)
    x, lengths = tf.constant(rng.normal(size=(5, 2, IN))), tf.constant([5, 3])

    def run(cell, seed):
        return run_cell(cell, params, x, lengths, seed=seed)[0].numpy()

    one, two = tf.constant([1, 2]), tf.constant([5, 6])
    np.testing.assert_array_equal(run(cell, one), run(cell, one))
    assert abs(run(cell, one) - run(cell, two)).max() > 1e-3
    if "zoneout_factor_cell" not in opts:
        np.testing.assert_allclose(run(cell, None), run(plain, None))


def test_zoneout_keeps_units_with_the_given_rate():
    opts = {"zoneout_factor_cell": 0.25, "zoneout_factor_output": 0.6, "use_zoneout_output": True}
    cell = unit_class("zoneoutlstm")(50, IN, unit_opts=opts)
    rng = np.random.RandomState(1)
    params = cell.split_kernels(make_params(cell, rng))
    weights = cell.prepare(params, batch=40, seed=None)
    old = tuple(tf.constant(rng.normal(size=(40, 50))) for _ in range(2))
    z = cell.project_input(params, tf.constant(rng.normal(size=(40, IN))))
    _, new = cell.step(weights, z, old, tf.constant([1, 2]))
    plain = unit_class("standardlstm")(50, IN).step(weights, z, old, None)[1]
    for rate, old_part, new_part, plain_part in zip((0.25, 0.6), old, new, plain):
        kept = abs(new_part - old_part) < 1e-12
        assert np.mean(kept) == pytest.approx(rate, abs=0.05)
        np.testing.assert_allclose(new_part[~kept], plain_part[~kept])


@pytest.mark.parametrize(
    "name,unit",
    [
        ("LSTM", "nativelstm2"),
        ("lstmp", "nativelstm2"),
        ("NativeLSTM2", "nativelstm2"),
        ("NativeLstm2StoreStates", "nativelstm2"),
        ("LSTMBlockFused", "nativelstm2"),
        ("VanillaLSTMCell", "nativelstm2"),
        ("BasicLSTMCell", "basiclstm"),
        ("GRUCell", "gru"),
        ("LayerNormVariantsLSTMCell", "layernormvariantslstm"),
    ],
)
def test_names(name, unit):
    assert unit_class(name).unit == unit


def test_names_of_a_single_step():
    assert unit_class("LSTMBlock", single_step=True).unit == "standardlstm"
    assert unit_class("lstm", single_step=True).unit == "nativelstm2"


def test_zoneout_output_by_behavior_version():
    assert not unit_class("zoneoutlstm")(N, IN, behavior_version=16).opts.use_zoneout_output
    assert unit_class("zoneoutlstm")(N, IN, behavior_version=17).opts.use_zoneout_output


def test_initial_values():
    specs = {
        spec.name: spec
        for spec in unit_class("layernormvariantslstm")(
            2, IN, unit_opts={"forget_bias": 1.5, "norm_shift": 0.5}
        ).param_specs()
    }
    np.testing.assert_allclose(specs["beta_input_below"].default, [0.5, 0.5, 0.5, 0.5, 2, 2, 0.5, 0.5])
    assert specs["gamma_state_below"].default == 1.0 and "beta_state_below" not in specs
    specs = {spec.name: spec for spec in unit_class("rhn")(2, IN, unit_opts={"transform_bias": -1.0}).param_specs()}
    np.testing.assert_allclose(specs["b"].default, [0, 0, -1, -1])


@pytest.mark.parametrize(
    "unit,kwargs,message",
    [
        ("lsmt", {}, "net/rec: unknown unit 'lsmt'. Did you mean 'lstm'?"),
        (
            "standardlstm",
            {"unit_opts": {"peepholes": True}},
            "net/rec: unit_opts of 'standardlstm': unknown option 'peepholes'. Did you mean 'use_peepholes'",
        ),
        (
            "rhn",
            {"unit_opts": {"depth": 0}},
            "net/rec: unit_opts of 'rhn': option 'depth' must be from 1 to 1000, got 0",
        ),
        ("rhn", {"unit_opts": {"depth": True}}, "'depth' must be a whole number, got True"),
        ("zoneoutlstm", {"unit_opts": {"zoneout_factor_cell": 1.5}}, "must be in the range 0 <= x < 1, got 1.5"),
        ("gru", {"input_projection": False}, "unit 'gru' has no separate input projection"),
        ("lstm", {"input_projection": False}, r"needs a dense input of dim 16 \(4 \* n_out\), but the input has dim 3"),
        ("layernormvariantslstm", {"unit_opts": {"per_gate_norm": True}}, "'global_norm': False"),
    ],
)
def test_errors(unit, kwargs, message):
    with pytest.raises(ConfigError, match=message):
        unit_class(unit, where="net/rec")(N, IN, where="net/rec", **kwargs)


ALL_UNITS = sorted({cls.unit for _, cls in UNITS.items()})
#: Those whose gradients are of one kind each: loops, scans of numbers and of matrices, the delta rule.
OF_EACH_KIND = ["nativelstm2", "lru", "mamba2", "mlstm", "deltanet"]
#: Options with which they have 4 units.
SMALL = {"mamba2": {"headdim": 4}, "gla": {"key_ratio": 1.0, "num_heads": 2}}


@pytest.mark.slow
@pytest.mark.parametrize("unit", usual(ALL_UNITS, OF_EACH_KIND))
def test_second_derivatives(unit):
    """Penalties on gradients differentiate them: against difference quotients in float64, in which they are exact.

    In float32, these quotients are a few percent off, as is the norm of the gradient.
    """
    rng = np.random.RandomState(1)
    cell = unit_class(unit)(4, 4, unit_opts=SMALL.get(unit, {}))
    params = make_params(cell, rng)
    inputs = [rng.normal(size=(5, 2, 4)), *params.values()]
    weights = rng.normal(size=(5, 2, 4))

    @tf.function(autograph=False)
    def second(*inputs):
        with twice_differentiable_ops():
            out, _ = run_cell(cell, dict(zip(params, inputs[1:])), inputs[0], tf.constant([5, 2]))
            grads = tf.gradients(tf.reduce_sum(tf.sin(out) * weights), inputs)
            norm = tf.add_n([tf.reduce_sum(tf.square(grad)) for grad in grads])
            return norm, tf.gradients(norm, inputs, unconnected_gradients="zero")

    ways = [rng.normal(size=x.shape) for x in inputs]
    slopes = second(*map(tf.constant, inputs))[1]
    ends = [second(*(tf.constant(x + step * way) for x, way in zip(inputs, ways)))[0] for step in (1e-6, -1e-6)]
    slope = sum((found.numpy() * way).sum() for found, way in zip(slopes, ways))
    assert slope == pytest.approx((ends[0] - ends[1]).numpy() / 2e-6, rel=1e-5)
