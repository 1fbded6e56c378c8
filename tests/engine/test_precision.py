"""Training in each precision: float64, and bfloat16 or float16 with parameters of float32."""

from __future__ import annotations

import re
from typing import Any, Optional

import numpy as np
import pytest
import tensorflow as tf

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.support import product_speed
from returnn_tf.engine.update.loss_scaling import LossScaling
from tests.tiers import usual

NETWORK = {
    "conv": {
        "class": "conv",
        "filter_size": 3,
        "padding": "same",
        "n_out": 12,
        "activation": "relu",
        "from": "data",
        "in_spatial_dims": ["T"],
    },
    "lstm": {"class": "rec", "unit": "lstm", "n_out": 12, "from": "conv"},
    "att": {"class": "self_attention", "num_heads": 2, "total_key_dim": 8, "n_out": 12, "from": "lstm"},
    "sum": {"class": "combine", "kind": "add", "from": ["lstm", "att"]},
    "norm": {"class": "layer_norm", "from": "sum"},
    "output": {"class": "softmax", "from": "norm", "target": "classes", "loss": "ce", "dropout": 0.1},
}
PRECISIONS: dict[str, dict[str, Any]] = {
    "float64": {"float_dtype": "float64"},
    "bfloat16": {"mixed_precision": "bfloat16"},
    "float16": {"mixed_precision": "float16"},
    "bfloat16, fixed factor": {"mixed_precision": "bfloat16", "loss_scaling": 128.0},
}


def _config(**settings: Any) -> Config:
    extern = {"data": {"dim": 6}, "classes": {"dim": 4, "sparse": True}}
    common = {"behavior_version": 21, "optimizer": {"class": "adam"}, "learning_rate": 0.02, "random_seed": 3}
    return Config({"network": NETWORK, "extern_data": extern, **common, **settings})


def _feed() -> dict[str, Any]:
    rnd = np.random.RandomState(7)
    labels = rnd.randint(0, 4, size=(3, 8)).astype("int32")
    data = rnd.normal(size=(3, 8, 6)) + 2.0 * np.eye(6)[labels]
    lens = np.array([8, 5, 6], "int32")
    return {"data": data.astype("float32"), "data/size0": lens, "classes": labels, "classes/size0": lens}


def _trainer(**settings: Any) -> StepTrainer:
    config = _config(**settings)
    return StepTrainer(Network.from_config(config, train=True), config)


def _losses(trainer: StepTrainer, steps: int) -> list[float]:
    return [float(trainer.step(_feed()).total_loss) for _ in range(steps)]


@pytest.fixture(scope="module")
def reference() -> list[float]:
    """Return the losses of 20 steps in float32."""
    return _losses(_trainer(), 20)


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(sorted(PRECISIONS), set(PRECISIONS) - {"bfloat16"}))
def test_trains_alike(name: str, reference: list[float]) -> None:
    """The loss falls as in float32, though it is not the same; the parameters keep their type."""
    trainer = _trainer(**PRECISIONS[name])
    losses = _losses(trainer, 20)
    assert reference[-1] < 0.3 * reference[0]
    np.testing.assert_allclose(losses[0], reference[0], rtol=2e-2)
    assert losses[-1] < 0.4 * losses[0]
    types = {variable.dtype.name for variable in trainer.net.params.values()}
    assert types == {"float64" if name == "float64" else "float32"}


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_evaluation_has_the_types_of_training(dtype: Optional[str]) -> None:
    """Matrices have as many digits as the type, but for those of recurrent products on a CPU."""
    net = Network.from_config(_config(mixed_precision=dtype))
    rnd, values = np.random.RandomState(1), net.get_param_values()
    values = {name: rnd.normal(0, 0.3, value.shape).astype("float32") for name, value in sorted(values.items())}
    matrices = {name for name, value in values.items() if value.ndim > 1}
    recurrent = {"lstm/rec/W_re"}
    assert recurrent < matrices and len(matrices) == 5
    if tf.config.get_visible_devices("GPU"):  # whose kernel, if it is used, multiplies in the type, too
        matrices -= recurrent

    def probabilities(**changed: Any) -> Any:
        net.set_param_values({**values, **changed})
        return net.run(_feed()).layers["output"].value

    expected = probabilities()
    rounded = {name: tf.cast(tf.cast(values[name], tf.bfloat16), tf.float32).numpy() for name in matrices}
    same = {name for name in matrices if np.array_equal(probabilities(**{name: rounded[name]}), expected)}
    assert same == (matrices - recurrent if dtype else set())


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(["float64", "bfloat16", "float16"], ["float64", "float16"]))
def test_resume_is_exact(name: str) -> None:
    """Parameters and state, the factor of the loss included, determine all further steps, bit by bit."""
    first, second = _trainer(**PRECISIONS[name]), _trainer(**PRECISIONS[name])
    _losses(first, 3)
    saved = {n: v.numpy() for n, v in {**first.net.params, **first.state()}.items()}
    assert ("loss_scaling/scale" in saved) == (name == "float16")
    expected = _losses(first, 2)
    for key, variable in {**second.net.params, **second.state()}.items():
        variable.assign(saved[key])
    second.net.global_step.assign(3)
    assert _losses(second, 2) == expected
    for key, variable in first.net.params.items():
        np.testing.assert_array_equal(variable.numpy(), second.net.params[key].numpy())


@pytest.mark.slow
def test_overflow_skips_the_step() -> None:
    """A factor that is too large is halved until the gradient is finite; no parameter changes meanwhile."""
    trainer = _trainer(mixed_precision="float16")
    scale, good = (trainer.state()["loss_scaling/" + name] for name in ("scale", "good_steps"))
    scale.assign(2.0**40)
    before = {name: variable.numpy() for name, variable in trainer.net.params.items()}
    result = trainer.step(_feed())
    assert result.finite and not result.updated
    assert float(scale.numpy()) == 2.0**39 and int(good.numpy()) == 0
    for name, value in before.items():
        np.testing.assert_array_equal(trainer.net.params[name].numpy(), value)
    for _ in range(40):
        result = trainer.step(_feed())
        if result.updated:
            break
    assert result.updated and 2.0**8 < float(scale.numpy()) < 2.0**39
    good.assign(1999)
    largest = float(scale.numpy())
    scale.assign(1024.0)
    assert trainer.step(_feed()).updated and float(scale.numpy()) == 2048.0 and int(good.numpy()) == 0, largest


def test_only_finite_steps_in_a_row_count() -> None:
    """A step whose loss is not finite is no good one, so the factor does not grow by it."""
    scaling = LossScaling(Config({"loss_scaling": "dynamic"}))
    scale, good = (scaling.state()["loss_scaling/" + name] for name in ("scale", "good_steps"))
    good.assign(1999)
    before = float(scale.numpy())
    overflow = scaling.emit(scaling.factor(), tf.constant(False), tf.constant(float("nan")))
    assert not overflow and int(good.numpy()) == 0 and float(scale.numpy()) == before


@pytest.mark.slow
def test_a_factor_changes_nothing_else() -> None:
    """In float32, a power of two as factor leaves losses and parameters as they are."""
    plain, scaled = _trainer(), _trainer(loss_scaling=64.0)
    assert _losses(plain, 3) == pytest.approx(_losses(scaled, 3), rel=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_is_reduced(dtype: str) -> None:
    """Products are, losses, softmax, norms and reductions are not: these agree with float32 for the same input."""
    extern = {"data": {"dim": 6}, "classes": {"dim": 6, "sparse": True}}
    plain = {
        "norm": {"class": "layer_norm", "from": "data"},
        "sum": {"class": "reduce", "mode": "sum", "axis": "T", "from": "data"},
        "soft": {"class": "activation", "activation": "softmax", "from": "norm", "loss": "ce", "target": "classes"},
        "lin": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "data"},
        "output": {"class": "copy", "from": "data"},
    }
    network = {name: {**layer, "is_output_layer": True} for name, layer in plain.items()}
    results = []
    for settings in ({}, {"mixed_precision": dtype}):
        net = Network.from_config(
            Config({"network": network, "extern_data": extern, "behavior_version": 21, **settings})
        )
        results.append(net.run(_feed(), with_grad=True))
    for name in ("norm", "sum"):
        np.testing.assert_array_equal(results[0].layers[name].value, results[1].layers[name].value)
    values = [result.layers["lin"].value for result in results]
    assert values[1].dtype == "float32" and not np.array_equal(*values)
    np.testing.assert_allclose(values[1], values[0], rtol=0.05, atol=0.02)
    # as many digits as the type has
    np.testing.assert_array_equal(values[1], _rounded(values[1], dtype))


def _rounded(x: Any, dtype: str) -> Any:
    import tensorflow as tf

    return tf.cast(tf.cast(x, dtype), tf.float32).numpy()


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"mixed_precision": "bfloat16", "float_dtype": "float64"}, "needs parameters of float32, but float_dtype"),
        ({"mixed_precision": "float8"}, "mixed_precision"),
        ({"float_dtype": "bfloat16"}, "float_dtype"),
    ],
)
def test_refused(settings: dict[str, Any], message: str) -> None:
    """Combinations that make no sense, and unknown types."""
    with pytest.raises(ConfigError, match=message):
        plan_from_config(_config(**settings))


@pytest.mark.parametrize("value", ["static", 0, -1.0, True])
def test_wrong_factor(value: Any) -> None:
    """The factor is a number above 0, or dynamic."""
    with pytest.raises(ConfigError, match="loss_scaling"):
        _trainer(loss_scaling=value)


def test_speed_of_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says how fast they are here, whether or not the CPU has arithmetic for the type."""
    lines: list[str] = []
    monkeypatch.setattr(product_speed.log, "write", lambda level, text: lines.append(text))
    product_speed.report_speed(_config())
    assert not lines
    for dtype in ("bfloat16", "float16"):
        product_speed.report_speed(_config(mixed_precision=dtype))
        number = re.fullmatch(
            r"mixed_precision: a product in %s takes (\d+\.\d\d) times the CPU time of float32 .*" % dtype, lines[-1]
        )
        assert number and float(number.group(1)) > 0
    assert product_speed.speed_note("bfloat16", 0.5).endswith(
        "takes 0.50 times the CPU time of float32 on this machine"
    )
    assert product_speed.speed_note("bfloat16", 3.7).endswith("; without the setting, a step takes no longer")
