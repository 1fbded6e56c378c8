"""Updates of all parameters in one op: each optimizer against its ops for single parameters, locks, copies, errors."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from returnn_tf.engine.update import gradients
from returnn_tf.engine.update.optimizers import base, create_optimizer
from returnn_tf.engine.update.optimizers.adam import Adam
from returnn_tf.native.fused import update_trials
from returnn_tf.native.fused.update import (
    _FORMULAS,
    AdafactorRule,
    LambRule,
    SgdRule,
    native_update,
    update_ops,
)
from returnn_tf.native.portable import portable_ops
from returnn_tf.native.sources import source_folder
from returnn_tf.util.lazy_tf import tf

SHAPES = [(3, 5), (), (130,), (0, 2)]
OPTIMIZERS = [
    {"class": "adam"},
    {"class": "nadam", "epsilon": 1e-4},
    {"class": "adamw", "weight_decay": 0.1},
    {"class": "amsgrad", "learning_rate_multiplier": 2.0},
    {"class": "nadamkeras", "count_updates": True},
    {"class": "rmsprop", "momentum": 0.5},
    {"class": "rmsprop", "centered": True, "epsilon": 1.0},
    {"class": "momentum", "momentum": 0.9},
    {"class": "momentum", "momentum": 0.9, "use_nesterov": True, "use_locking": True},
    {"class": "gradientdescent"},
    {"class": "sgd"},
    {"class": "sgd", "momentum": 0.9},
    {"class": "sgd", "momentum": 0.9, "nesterov": True},
    {"class": "adagrad"},
    {"class": "adadelta", "epsilon": 1e-6},
    {"class": "radam", "weight_decay": 0.1},
    {"class": "radam", "beta2": 0.6},
    {"class": "lion", "weight_decay": 0.1},
    {"class": "lamb"},
    {"class": "scaledadam"},
    {"class": "adafactor", "weight_decay": 0.1, "clip_threshold": 0.7},
    {"class": "adafactor", "scale_parameter": False, "relative_step": False},
    {"class": "schedulefreeadamw", "weight_decay": 0.1, "warmup_steps": 2},
]


@pytest.fixture(scope="module")
def ops():
    found = update_ops()
    assert found is not None, "the native op has to compile where the tests run"
    return found


def trained(options, dtypes=("float32",), *, skips=False, factor=None, scaled=False):
    """Return variables and state after three steps, and the types of the ops of a step.

    :param factor: of the gradients
    :param scaled: whether they are multiplied by it before
    :param skips: whether a step that is to change nothing comes before each, with NaN as gradients
    """
    rng = np.random.RandomState(1)
    variables = {
        "%s %d" % (dtype, i): tf.Variable(rng.normal(0, 1, shape), dtype=dtype)
        for dtype in dtypes
        for i, shape in enumerate(SHAPES)
    }
    optimizer = create_optimizer(dict(options), where="optimizer")
    optimizer.build(variables, "all")

    def step(when, *grads):
        values = [grad * factor for grad in grads] if scaled else grads
        pairs = [(name, grad, variables[name]) for name, grad in zip(variables, values)]
        optimizer.apply(pairs, tf.constant(0.01), when, None if scaled else factor)

    function = tf.function(step, autograph=False)
    for _ in range(3):
        grads = [tf.constant(rng.normal(0, 1, var.shape), var.dtype) for var in variables.values()]
        if skips:
            function(tf.constant(False), *(grad * np.nan for grad in grads))
        function(tf.constant(True), *grads)
    types = [op.type for op in function.get_concrete_function(tf.constant(True), *grads).graph.get_operations()]
    return {**{name: var.numpy() for name, var in variables.items()}, **optimizer.state()}, types


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("options", OPTIMIZERS, ids=str)
def test_as_one_by_one(ops, monkeypatch, options):
    monkeypatch.setattr(base, "LEAST_SIZE", 0)
    dtypes = ("float32", "float64") if options["class"] == "adam" else ("float32",)
    fused, types = trained(options, dtypes, skips=True)
    with portable_ops():
        plain, plain_types = trained(options, dtypes)
    assert types.count("RtfUpdate") == 1 and "RtfUpdate" not in plain_types
    one_by_one = len(dtypes) > 1 or options["class"] == "adafactor"  # its native rule is for matrices
    assert ("If" in types) == one_by_one
    for name, value in plain.items():
        np.testing.assert_allclose(fused[name], value, rtol=2e-6, atol=1e-7, err_msg=name)


def test_rules_of_a_trial_have_the_same_launches(ops, monkeypatch):
    """On a GPU one rule is tried out for all that sum the same."""
    sums = {rule.name: rule.sums for rule, *_ in _FORMULAS}
    folder = Path(source_folder(), "update")
    names = re.search(r"kNames\[\] = {(.*?)}", (folder / "update_op.cc").read_text(), re.DOTALL)[1]
    launches = re.findall(r"&Launches::(\w+)", (folder / "update_cuda.cu").read_text())
    kinds = {"": "simple", "entries": "by_sums", "rows and columns": "adafactor"}
    assert [kinds[sums[name]] for name in re.findall(r'"(\w+)"', names)] == launches
    asked = []
    monkeypatch.setattr(update_trials, "pays", lambda trial, width, dtype: asked.append((trial.name, width)))
    for rule in (SgdRule(0.1), LambRule(*[0.1] * 7), AdafactorRule(*[0.1] * 7)):
        assert update_trials.update_ops_for(rule, 1000) is None
    assert asked == [
        ("update of all parameters", 1024), ("update by sums of each parameter", 1024),
        ("update by rows and columns", 1024),
    ]  # fmt: skip


@pytest.mark.parametrize("options", OPTIMIZERS, ids=str)
def test_factor_of_all_gradients(ops, monkeypatch, options):
    """Bit for bit as if each gradient had been multiplied by it before; also for more than is scaled at once."""
    monkeypatch.setattr(base, "LEAST_SIZE", 0)
    monkeypatch.setattr(sys.modules[__name__], "SHAPES", [(3, 5), (), (130, 70), (0, 2)])
    (fused, types), (expected, others) = (trained(options, factor=0.3, scaled=scaled) for scaled in (False, True))
    fused_count = len(SHAPES) - (options["class"] == "adafactor")  # its rule is for matrices
    assert types.count("RtfUpdate") == 1 and types.count("Mul") == others.count("Mul") - fused_count
    for name, value in expected.items():
        np.testing.assert_array_equal(fused[name], value, err_msg=name)


def test_own_rule_of_a_subclass_is_not_replaced(ops, monkeypatch):
    class Backwards(Adam):
        def update(self, grad, var, slots, hyper):
            var.assign_add(grad)

    monkeypatch.setattr(base, "LEAST_SIZE", 0)
    optimizer, var = Backwards(), tf.Variable(1.0)
    optimizer.build({"w": var}, "all")
    optimizer.apply([("w", tf.constant(2.0), var)], 0.1)
    assert var.numpy() == 3


@pytest.mark.usefixtures("device")
def test_what_was_read_before_keeps_its_value(ops):
    var, copy = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])

    @tf.function(autograph=False)
    def step():
        before = tf.convert_to_tensor(var)
        native_update(ops, SgdRule(1.0), [var, copy], [[], []], [tf.ones(2), tf.ones(2)])
        return before, tf.convert_to_tensor(var)

    kept = var.read_value()
    before, after = step()
    np.testing.assert_array_equal([kept, before, after, copy], [[1, 2], [1, 2], [0, 1], [2, 3]])


@pytest.mark.usefixtures("device")
def test_norm(ops, monkeypatch):
    monkeypatch.setattr(gradients, "LEAST_SIZE", 0)
    grads = [tf.constant([3.0, 0.0]), tf.constant([[4.0]]), tf.zeros([0])]
    assert gradients.fused_global_norm(grads).numpy() == 5 == gradients.global_norm(grads).numpy()
    for bad in (float("nan"), float("inf")):
        assert not np.isfinite(gradients.fused_global_norm([*grads, tf.constant([bad])]))
    assert gradients.fused_global_norm([]).numpy() == 0


@pytest.mark.parametrize(
    "rule, slots, numbers, when, text",
    [
        ("sgd", [], [1.0], True, "takes 1 numbers, and a factor"),
        ("sgd", [], [1.0, 1.0], [True, True], "has to be a scalar"),
        ("momentum", [], [1.0, 1.0, 0.0, 0.0], True, "momentum has 1 slots"),
        ("momentum", [tf.Variable([1.0])], [1.0, 1.0, 0.0, 0.0], True, "its gradient is [2]"),
        ("adafactor", [tf.Variable([1.0, 1.0])] * 2, 8 * [1.0], True, "is for matrices, but a gradient is [2]"),
    ],
)
def test_wrong_input(ops, rule, slots, numbers, when, text):
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        handles, var = [slot.handle for slot in slots], tf.Variable([1.0, 2.0])
        grads = [tf.ones(2)]
        ops.rtf_update(rule=rule, vars=[var.handle], slots=handles, grads=grads, numbers=numbers, when=when)
    assert text in str(info.value)
