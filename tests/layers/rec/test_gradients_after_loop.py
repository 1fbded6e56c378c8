"""In training, the gradient of what all steps of a loop share is computed once, after the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.loops.frame import LoopFrame
from returnn_tf.loops.over_steps import OverSteps
from returnn_tf.util.lazy_tf import tf

_LINEAR: dict[str, Any] = {"class": "linear", "activation": "tanh", "n_out": 4}
_CELL: dict[str, Any] = {"class": "rnn_cell", "n_out": 4, "from": ["data:source", "prev:output"]}
_ENERGY: dict[str, Any] = {
    "query": {**_LINEAR, "from": "prev:output"},
    "sum": {"class": "combine", "kind": "add", "from": ["base:enc", "query"]},
    "energy": {**_LINEAR, "n_out": 1, "from": "sum"},
    "weights": {"class": "softmax_over_spatial", "from": "energy"},
}
_ATT: dict[str, Any] = {"class": "generic_attention", "weights": "weights", "base": "base:enc"}

#: Layers of a loop -> how many products give their gradients after it.
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "linear": ({"output": {**_LINEAR, "from": ["data:source", "prev:output"]}}, 1),
    "transposed weights": (
        {"output": {**_LINEAR, "use_transposed_weights": True, "from": ["data:source", "prev:output"]}},
        1,
    ),
    "weights of another layer": (
        {
            "first": {**_LINEAR, "from": ["data:source", "prev:output"]},
            "second": {**_LINEAR, "n_out": 2, "from": "first"},
            "output": {**_LINEAR, "reuse_params": "first", "from": ["second", "first"]},
        },
        3,
    ),
    "first value on zeros": (
        {"output": {**_LINEAR, "from": ["data:source", "prev:output"], "initial_output": "apply(0)"}},
        1,
    ),
    "lstm": ({"output": {**_CELL, "unit": "lstm"}}, 3),
    "peepholes": ({"output": {**_CELL, "unit": "LSTMBlock", "unit_opts": {"use_peepholes": True}}}, 3),
    "gru": ({"output": {**_CELL, "unit": "gru"}}, 4),
    "basic rnn": ({"output": {**_CELL, "unit": "basicrnn"}}, 3),
    "cell with dropout": ({"output": {**_CELL, "unit": "LSTMBlock", "dropout": 0.3}}, 2),
    "cell of layer norm": ({"output": {**_CELL, "unit": "layernormvariantslstm"}}, 0),
    "attention": ({**_ENERGY, "output": {**_LINEAR, "from": "att"}, "att": _ATT}, 3),
    "attention of heads": (
        {
            **_ENERGY,
            "energy": {**_LINEAR, "n_out": 2, "from": "sum"},
            "att": {**_ATT, "base": "base:heads"},
            "merged": {"class": "merge_dims", "axes": ["stag:heads_split_dims0", "F"], "from": "att"},
            "output": {**_LINEAR, "from": "merged"},
        },
        3,
    ),
    "gradient in a step": (
        {
            "x": {**_LINEAR, "from": ["data:source", "prev:output"]},
            "z": {**_LINEAR, "from": "x"},
            "y": {"class": "reduce", "mode": "sum", "axis": ["B", "F"], "from": "z"},
            "output": {"class": "gradient", "y": "y", "x": "x"},
        },
        2,
    ),
    "rows with another axis": (
        {
            "sum": {"class": "combine", "kind": "add", "from": ["base:enc", "prev:output"]},
            "all": {**_LINEAR, "from": "sum"},
            "output": {"class": "reduce", "mode": "mean", "axes": "T", "from": "all"},
        },
        0,
    ),
    "first value on zeros in an inner loop": (
        {
            "x": {**_LINEAR, "from": ["data:source", "prev:output"]},
            "inner": {"class": "rec", "from": "base:enc", "unit": {
                "output": {**_LINEAR, "from": ["data:source", "base:x", "prev:output"], "initial_output": "apply(0)"},
            }},
            "output": {"class": "reduce", "mode": "sum", "axes": "T", "from": "inner"},
        },
        2,
    ),
    "inner loop": (
        {
            "x": {**_LINEAR, "from": ["data:source", "prev:output"]},
            "inner": {"class": "rec", "from": "base:enc", "unit": {
                "output": {**_LINEAR, "from": ["data:source", "base:x", "prev:output"]},
            }},
            "output": {"class": "reduce", "mode": "sum", "axes": "T", "from": "inner"},
        },
        2,
    ),
}  # fmt: skip


def _run(unit: dict[str, Any], lens: tuple[int, ...] = (4, 2), **options: Any) -> Any:
    """Return the results of a loop over data, with gradients; ``enc`` has its time axis first."""
    config = Config({
        "extern_data": {"data": {"dim": 2}, "other": {"dim": 3}, "classes": {"dim": 2}},
        "network": {
            "enc": {"class": "rec", "unit": "lstm", "n_out": 4, "from": "data:other"},
            "heads": {"class": "split_dims", "axis": "F", "dims": (2, 2), "from": "enc"},
            "loop": {"class": "rec", "from": "data", "unit": unit, **options},
            "output": {
                "class": "linear", "activation": None, "n_out": 2, "from": "loop", "loss": "mse", "target": "classes",
            },
        },
        "behavior_version": 21,
    })  # fmt: skip
    net = Network.from_config(config, train=True)
    rng = np.random.RandomState(1)
    net.set_param_values({name: rng.normal(size=p.shape).astype("float32") for name, p in net.params.items()})
    batch, frames = len(lens), max(lens, default=0)
    feed = {
        "data": rng.normal(size=(batch, frames, 2)).astype("float32"), "data/size0": np.array(lens, "int32"),
        "other": rng.normal(size=(batch, 3, 3)).astype("float32"), "other/size0": np.array([3, 2, 3][:batch], "int32"),
        "classes": rng.normal(size=(batch, frames, 2)).astype("float32"), "classes/size0": np.array(lens, "int32"),
    }  # fmt: skip
    return net.run(feed, with_grad=True)


@pytest.mark.parametrize("case", CASES)
def test_same_gradients(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those that each step adds up."""
    made, begin = [], OverSteps.__init__

    def counted(self: OverSteps, *args: Any, **kwargs: Any) -> None:
        made.append(self)
        begin(self, *args, **kwargs)

    monkeypatch.setattr(OverSteps, "__init__", counted)
    unit, count = CASES[case]
    after = _run(unit)
    assert len(made) == count
    monkeypatch.setattr(LoopFrame, "_gradients_after_steps", lambda self: False)
    within = _run(unit)
    assert len(made) == count
    assert after.total_loss == within.total_loss
    assert set(after.grads) == set(within.grads)
    for name, grad in within.grads.items():
        assert np.any(grad)
        np.testing.assert_allclose(after.grads[name], grad, rtol=1e-4, atol=1e-5, err_msg=name)


def test_no_steps() -> None:
    """Without a frame the gradient is zero."""
    found = _run(CASES["attention"][0], lens=(0, 0))
    assert not np.any(found.grads["loop/rec/query/W"])


@pytest.mark.parametrize("options", [{"checkpoint_steps": True}, {"back_prop": False}])
def test_other_loops(options: dict[str, Any]) -> None:
    """A loop whose steps are computed again, or that has no gradient, keeps nothing for after its steps."""
    found = _run(CASES["lstm"][0], **options)
    assert np.isfinite(found.total_loss)


def test_product_of_a_step() -> None:
    """Value and gradients of a product, in a loop that does not run all of its steps."""
    rng = np.random.RandomState(2)
    xs, w = rng.normal(size=(5, 2, 3)).astype("float32"), rng.normal(size=(3, 4)).astype("float32")

    @tf.function(autograph=False)
    def gradients(xs: Any, w: Any) -> Any:
        product = OverSteps(lambda x, w: tf.einsum("...ij,jk->...ik", x, w), w, steps=5, argument=[2, 3], result=[2, 4])

        def body(i: Any, y: Any) -> Any:
            return i + 1, y + tf.square(product.product(xs[i], i))

        y = tf.while_loop(lambda i, _: i < 3, body, (0, tf.zeros([2, 4])), maximum_iterations=5)[1]
        return y, tf.gradients(y, [xs, w])

    y, (dx, dw) = gradients(tf.constant(xs), tf.constant(w))
    products = xs[:3] @ w
    np.testing.assert_allclose(y, np.sum(products**2, axis=0), rtol=1e-5)
    np.testing.assert_allclose(dx[:3], 2 * products @ w.T, rtol=1e-4)
    assert not np.any(dx[3:])
    np.testing.assert_allclose(dw, 2 * np.einsum("sbi,sbo->io", xs[:3], products), rtol=1e-4, atol=1e-5)


def test_derivative_of_a_loop() -> None:
    """Gradients of a loss on a derivative through all steps are what difference quotients are."""
    config = Config({
        "extern_data": {"data": {"dim": 2}},
        "network": {
            "loop": {"class": "rec", "from": "data", "unit": {
                "output": {**_LINEAR, "from": ["data:source", "prev:output"]},
            }},
            "y": {"class": "reduce", "mode": "sum", "axis": ["B", "T", "F"], "from": "loop"},
            "output": {"class": "gradient", "y": "y", "x": "data", "loss": "as_is"},
        },
        "behavior_version": 21,
    })  # fmt: skip
    net = Network.from_config(config, train=True)
    rng = np.random.RandomState(1)
    feed = {"data": rng.normal(size=(2, 3, 2)).astype("float32"), "data/size0": np.array([3, 2], "int32")}
    values = {name: rng.normal(0, 0.3, p.shape).astype("float32") for name, p in net.params.items()}
    net.set_param_values(values)
    grads = net.run(feed, with_grad=True).grads
    for name, value in values.items():
        direction = rng.normal(size=value.shape).astype("float32")
        losses = []
        for sign in (1, -1):
            net.set_param_values({**values, name: value + sign * 1e-2 * direction})
            losses.append(net.run(feed).total_loss)
        np.testing.assert_allclose(np.sum(grads[name] * direction), (losses[0] - losses[1]) / 2e-2, rtol=1e-3)
