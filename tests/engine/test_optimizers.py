"""Update rules without a recorded run, against numpy; several dtypes; every registered optimizer descends."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.engine.update.optimizers import OPTIMIZERS, Optimizer, create_optimizer, optimizer_names
from returnn_tf.util.lazy_tf import tf
from tests.engine.recurrences import CASES, Muon, Recurrence, recurrence

RATE = 0.05
START = np.random.RandomState(0).randn(2, 3)
GRADS = [np.random.RandomState(step + 1).randn(2, 3) for step in range(5)]


def updated(options: dict[str, Any], dtype: str = "float64") -> np.ndarray:
    return values_and_averages(create_optimizer(options, where="optimizer"), START, GRADS, dtype)[-1][0]


def values_and_averages(optimizer: Optimizer, start: np.ndarray, grads: list[np.ndarray], dtype: str) -> list[Any]:
    """Return parameter and its average, if the optimizer has one, after each step."""
    variable = tf.Variable(start.astype(dtype))
    optimizer.build({"w": variable}, "optimizer_0")

    @tf.function(autograph=False)
    def step(grad: Any) -> None:
        optimizer.apply([("w", grad, variable)], tf.constant(RATE, "float64"))

    rows = []
    for grad in grads:
        step(tf.constant(grad.astype(dtype)))
        average = optimizer.averages({"w": variable}).get("w")
        rows.append((np.asarray(variable, "float64"), None if average is None else np.asarray(average, "float64")))
    assert optimizer.state()["optimizer_0/iterations"].numpy() == len(grads)
    return rows


def moments(b1: float = 0.9, b2: float = 0.999) -> list[Any]:
    """Return (t, gradient, m, v) of each update."""
    m, v, rows = np.zeros((2, 3)), np.zeros((2, 3)), []
    for t, grad in enumerate(GRADS, 1):
        m, v = b1 * m + (1 - b1) * grad, b2 * v + (1 - b2) * grad**2
        rows.append((t, grad, m, v))
    return rows


def adamw() -> np.ndarray:
    w = START
    for t, _, m, v in moments():
        w = w * (1 - RATE * 0.1) - RATE * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-3)
    return w


def amsgrad() -> np.ndarray:
    w, largest = START, np.zeros((2, 3))
    for t, _, m, v in moments():
        largest = np.maximum(largest, v)
        w = w - RATE * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(largest) + 1e-3)
    return w


def adamax() -> np.ndarray:
    w, largest = START, np.zeros((2, 3))
    for t, grad, m, _ in moments():
        largest = np.maximum(0.999 * largest, abs(grad))
        w = w - RATE / (1 - 0.9**t) * m / (largest + 1e-3)
    return w


def nadam() -> np.ndarray:
    w, product = START, 1.0
    for t, grad, m, v in moments():
        now, after = (0.9 * (1 - 0.5 * 0.96 ** (0.004 * k)) for k in (t, t + 1))
        product *= now
        step = (1 - now) * grad / (1 - product) + after * m / (1 - product * after)
        w = w - RATE * step / (np.sqrt(v / (1 - 0.999**t)) + 1e-3)
    return w


def nesterov() -> np.ndarray:
    w, velocity = START, np.zeros((2, 3))
    for grad in GRADS:
        velocity = 0.9 * velocity - RATE * grad
        w = w + 0.9 * velocity - RATE * grad
    return w


def rmsprop() -> np.ndarray:
    w, square, step = START, np.ones((2, 3)), np.zeros((2, 3))
    for grad in GRADS:
        square = 0.8 * square + 0.2 * grad**2
        step = 0.5 * step + RATE * grad / np.sqrt(square + 1e-3)
        w = w - step
    return w


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"class": "adamw", "weight_decay": 0.1, "epsilon": 1e-3}, adamw),
        ({"class": "amsgrad", "epsilon": 1e-3}, amsgrad),
        ({"class": "adamax", "count_updates": True, "epsilon": 1e-3}, adamax),
        ({"class": "nadamkeras", "count_updates": True, "epsilon": 1e-3}, nadam),
        ({"class": "sgd", "momentum": 0.9, "nesterov": True}, nesterov),
        ({"class": "rmsprop", "momentum": 0.5, "decay": 0.8, "epsilon": 1e-3}, rmsprop),
    ],
    ids=lambda value: value["class"] if isinstance(value, dict) else "",
)
def test_update_rule(options: dict[str, Any], expected: Callable[[], np.ndarray]) -> None:
    np.testing.assert_allclose(updated(options), expected(), rtol=1e-6)


@pytest.mark.parametrize("name", optimizer_names())
def test_every_optimizer_changes_variables_of_any_precision_in_the_same_way(name: str) -> None:
    options = {"class": name, "epsilon": 1e-3} if hasattr(OPTIMIZERS.find(name), "epsilon") else {"class": name}
    wide, narrow = updated(options), updated(options, "float32")
    assert np.abs(wide - START).min() > 0
    np.testing.assert_allclose(wide, narrow, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "options, cls, shape",
    [(*case, shape) for case in CASES for shape in [(3, 5), (5, 3), (4,)] if case[1] is not Muon or len(shape) > 1],
    ids=lambda value: str(value.get("class") if isinstance(value, dict) else value),
)
def test_recurrence_of_the_paper(
    options: dict[str, Any], cls: type[Recurrence], shape: tuple[int, ...], dtype: str
) -> None:
    random = np.random.RandomState(3)
    start, grads = random.randn(*shape), [random.randn(*shape) for _ in range(12)]
    paper = recurrence(options, cls, start, RATE)
    rows = values_and_averages(create_optimizer(options, where="optimizer"), start, grads, dtype)
    for grad, (value, average) in zip(grads, rows):
        np.testing.assert_allclose(value, paper.step(grad), rtol=1e-6, atol=2e-6 if dtype == "float32" else 1e-9)
        if average is not None:
            np.testing.assert_allclose(average, paper.x, rtol=1e-6, atol=2e-6 if dtype == "float32" else 1e-9)


@pytest.mark.parametrize("name", ["lamb", "scaledadam", "adafactor"])
def test_parameters_of_zeros_move_those_without_entries_stay(name: str) -> None:
    optimizer = create_optimizer({"class": name}, where="optimizer")
    ((zeros, _),) = values_and_averages(optimizer, np.zeros((2, 3)), [np.ones((2, 3))], "float32")
    assert (zeros < 0).all()
    ((empty, _),) = values_and_averages(optimizer, np.zeros((0, 3)), [np.zeros((0, 3))], "float32")
    assert empty.shape == (0, 3)


def test_scaled_adam_with_one_number() -> None:
    options = {"class": "scaledadam", "beta2": 0.9, "epsilon": 1e-4, "scale_rate": 0.3}
    rows = values_and_averages(
        create_optimizer(options, where="optimizer"), START[0, :1], [g[0, :1] for g in GRADS], "float64"
    )
    w = START[0, 0]
    for (t, _, m, v), (value, _) in zip(moments(0.9, 0.9), rows):
        w -= 0.3 * RATE * np.sqrt(1 - 0.9**t) / (1 - 0.9**t) * m[0, 0] / (np.sqrt(v[0, 0]) + 1e-4)
        np.testing.assert_allclose(value, [w], rtol=1e-6)


def test_adafactor_with_a_first_moment_and_weight_decay() -> None:
    options = {
        "class": "adafactor",
        "beta1": 0.5,
        "weight_decay": 0.1,
        "relative_step": False,
        "scale_parameter": False,
    }
    w, v, m = START[0], np.zeros(3), np.zeros(3)
    for t, grad in enumerate(GRADS, 1):
        v += t**-0.8 * (grad[0] ** 2 - v)
        u = grad[0] / np.sqrt(v)
        m = 0.5 * m + 0.5 * RATE * u / max(1, np.sqrt((u**2).mean()))
        w = w - m - RATE * 0.1 * w
    rows = values_and_averages(create_optimizer(options, where="optimizer"), START[0], [g[0] for g in GRADS], "float64")
    np.testing.assert_allclose(rows[-1][0], w, rtol=1e-6)


#: Class of Keras, options in its words, further ones of ours under which both rules are the same.
OF_KERAS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "SGD": ({"momentum": 0.9, "nesterov": True}, {}),
    "Adam": ({"beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-3}, {}),
    "AdamW": ({"beta_1": 0.8, "weight_decay": 0.1, "epsilon": 1e-3}, {}),
    "Adadelta": ({"rho": 0.9, "epsilon": 1e-3}, {}),
    "Adagrad": ({"initial_accumulator_value": 0.2}, {}),
    "Adamax": ({"beta_1": 0.8, "epsilon": 1e-3}, {"count_updates": True}),
    "Adafactor": ({"beta_2_decay": -0.7, "epsilon_2": 1e-2, "clip_threshold": 0.9}, {}),
    "Ftrl": ({"l1_regularization_strength": 0.1, "l2_regularization_strength": 0.2}, {}),
    "Lamb": ({"beta_1": 0.8, "epsilon": 1e-3}, {"weight_decay": 0.0}),
    "Lion": ({"beta_1": 0.8, "beta_2": 0.95}, {}),
}
#: Those with another rule than ours: Keras's Nadam schedules its momentum, its RMSprop begins with a mean square of 0.
OTHER_RULE = {"Nadam", "RMSprop"}


@pytest.mark.parametrize("name", OF_KERAS)
def test_classes_of_keras(name: str) -> None:
    options, ours = OF_KERAS[name]
    got = updated({"class": name, **options, **ours}, "float32")
    optimizer = getattr(tf.keras.optimizers, name)(learning_rate=RATE, **options)
    variable = tf.Variable(START, dtype="float32")
    for grad in GRADS:
        optimizer.apply_gradients([(tf.constant(grad, "float32"), variable)])
    np.testing.assert_allclose(got, variable.numpy(), rtol=1e-5, atol=1e-5)


def test_options_by_the_names_of_keras() -> None:
    assert vars(create_optimizer({"class": "RMSprop", "rho": 0.8}, where="optimizer"))["decay"] == 0.8
    assert vars(create_optimizer({"class": "Adadelta", "rho": 0.8}, where="optimizer"))["rho"] == 0.8
    assert vars(create_optimizer({"class": "momentum", "nesterov": True}, where="optimizer"))["use_nesterov"]


def test_all_classes_of_keras_are_known() -> None:
    found = {name for name in dir(tf.keras.optimizers) if isinstance(getattr(tf.keras.optimizers, name), type)}
    known = {name for name in found if OPTIMIZERS.find(name)}
    assert found - known <= {"Optimizer", "LossScaleOptimizer", "MultiOptimizer", "OptimizerMap"}
    assert known >= OTHER_RULE | set(OF_KERAS)  # later versions of Keras have more
    with pytest.raises(ConfigError, match="set loss_scaling or mixed_precision"):
        create_optimizer({"class": "LossScaleOptimizer"}, where="optimizer")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"class": "Adam", "clipnorm": 1.0}, "Use the setting gradient_clip_norm"),
        ({"class": "Adam", "use_ema": True}, "Use the setting weight_average"),
        ({"class": "Adam", "amsgrad": True}, '{"class": "amsgrad"}'),
        ({"class": "Adam", "weight_decay": 0.1}, "Use the class adamw, or the option L2 of layers"),
        ({"class": "MultiOptimizer"}, "is not available: give layers updater_opts"),
        ({"class": "lion", "epsilon": 1e-8}, "unknown option 'epsilon'"),
        ({"class": "lion", "beta2": 1.0}, "'beta2' must be from 0 to below 1"),
        ({"class": "adafactor", "beta2_decay": 0.8}, "'beta2_decay' must be below 0"),
        ({"class": "schedulefreeadamw", "beta1": 0.0}, "'beta1' must be between 0 and 1"),
        ({"class": "muon", "scale": "rms"}, "'scale' is 'rms'"),
        ({"class": "muon", "others": {"class": "adamx"}}, "others: unknown optimizer class 'adamx'"),
        ({"class": "muon", "others": {"class": "muon"}}, "Name another class, e.g. adamw"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as info:
        create_optimizer(options, where="optimizer")
    assert message in str(info.value)
