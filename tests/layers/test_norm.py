"""`batch_norm` (layer and option), `layer_norm`, `norm`."""

import numpy as np
import pytest

from returnn_tf.tensor import batch_dim
from tests.layers.nets import FEATURE, LENS, STATIC, TIME, fails, feed, gradient, net_of, output, template

X, WIDE = feed()["data"], feed()["wide"]
FRAMES = np.concatenate([X[b, :n] for b, n in enumerate(LENS)])


def batch_norm(**options):
    return {"class": "batch_norm", "masked_time": True, "from": "data", **options}


def stats(net, prefix="output/batch_norm/v2_"):
    values = net.get_param_values()
    return values[prefix + "mean"].ravel(), values[prefix + "variance"].ravel()


@pytest.mark.parametrize("masked, options, share", [(True, {"momentum": 0.25}, 0.25), (False, {}, 0.1)])
def test_running_statistics_move_in_training_only(masked, options, share):
    frames = FRAMES if masked else X.reshape(-1, 3)
    net = net_of({"output": batch_norm(masked_time=masked, **options)}, train=True)
    value = net.run(feed()).layers["output"].value
    expected = (X - frames.mean(0)) / np.sqrt(frames.var(0) + 1e-3)
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)
    for got, start, batch in zip(stats(net), (0, 1), (frames.mean(0), frames.var(0))):
        np.testing.assert_allclose(got, start + share * (batch - start), rtol=1e-4, atol=1e-6)
    net = net_of({"output": batch_norm(masked_time=masked)})
    np.testing.assert_allclose(net.run(feed()).layers["output"].value, X / np.sqrt(1 + 1e-3), rtol=1e-5)
    assert stats(net)[0].tolist() == [0, 0, 0] and stats(net)[1].tolist() == [1, 1, 1]


def test_old_versions_also_move_them_in_evaluation():
    prefix = "output/batch_norm/output_output_output_"
    net = net_of({"output": {"class": "batch_norm", "from": "data"}}, behavior_version=11)
    value = net.run(feed()).layers["output"].value
    mean, variance = 0.99 * FRAMES.mean(0), 1 + 0.99 * (FRAMES.var(0) - 1)
    np.testing.assert_allclose(stats(net, prefix), [mean, variance], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(value, (X - mean) / np.sqrt(variance + 1e-3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("force,share", [(False, 1.0), (True, 0.25)])
def test_force_sample_mixes_in_evaluation_too(force, share):
    value = output(batch_norm(use_sample=0.25, force_sample=force)).value
    mean, variance = (1 - share) * FRAMES.mean(0), (1 - share) * FRAMES.var(0) + share
    np.testing.assert_allclose(value, (X - mean) / np.sqrt(variance + 1e-3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options,shapes",
    [
        ({}, {"v2_mean": (3,), "v2_variance": (3,), "v2_gamma": (3,), "v2_beta": (3,)}),
        ({"use_std": False, "use_shift": False}, {"v2_mean": (3,), "v2_variance": (3,)}),
        ({"param_version": 1, "use_std": False}, {"mean": (1, 1, 3), "variance": (1, 1, 3), "beta": (1, 1, 3)}),
    ],
)
def test_parameters(options, shapes):
    net = net_of({"output": batch_norm(**options)})
    assert {k: tuple(v.shape) for k, v in net.params.items()} == {
        "output/batch_norm/" + k: v for k, v in shapes.items()
    }
    assert not [name for name in net.trainable_params if name.endswith(("mean", "variance"))]


def test_other_feature_axis():
    net = net_of({"output": batch_norm(in_dim=STATIC, **{"from": "data:wide"})}, train=True)
    result = net.run(feed()).layers["output"]
    assert result.axes == ("B", "T", "F", "S")
    frames = np.concatenate([WIDE[b, :n] for b, n in enumerate(LENS)])
    mean, variance = frames.mean((0, 2)), frames.var((0, 2))
    expected = (WIDE - mean[:, None]) / np.sqrt(variance[:, None] + 1e-3)
    np.testing.assert_allclose(result.value, expected, rtol=1e-4, atol=1e-5)


def test_option_of_another_layer():
    opts = {"masked_time": True, "momentum": 0.5, "axes": "F", "fused": True}
    layer = {"class": "linear", "activation": "tanh", "n_out": 2, "batch_norm": opts, "from": "data"}
    net = net_of({"output": layer}, train=True)
    value = net.run(feed()).layers["output"].value
    valid = np.concatenate([value[b, :n] for b, n in enumerate(LENS)])
    np.testing.assert_allclose(valid.mean(0), [0, 0], atol=1e-5)
    assert stats(net)[0].any()
    net = net_of({"output": {**layer, "batch_norm": True}}, behavior_version=11)
    assert "output/batch_norm/output_output_output_gamma" in net.params


def test_a_batch_without_frames_keeps_everything_finite():
    arrays = feed()
    arrays["data/size0"] = np.zeros([3], "int32")
    net = net_of({"output": batch_norm()}, train=True)
    assert np.isfinite(net.run(arrays).layers["output"].value).all() and np.isfinite(stats(net)).all()


@pytest.mark.parametrize(
    "layer,match",
    [
        ({"class": "batch_norm", "from": "data"}, "needs 'masked_time' since behavior version 12"),
        (batch_norm(param_version=3), "param_version must be 0, 1 or 2"),
        (batch_norm(axes="T"), "axes can only be 'F'"),
        (batch_norm(**{"from": "data:labels"}), "sparse"),
        ({"class": "copy", "batch_norm": {"masked": True}, "from": "data"}, "unknown option 'masked'.*masked_time"),
        ({"class": "norm", "from": "data"}, "exactly one of the options 'axis' and 'axes'"),
        ({"class": "norm", "axis": "F", "param_shape": "stag:x", "from": "data"}, "Axis 'stag:x' means no axis"),
        ({"class": "norm", "axis": "F", "param_shape": "T", "from": "data"}, "static size"),
        ({"class": "layer_norm", "from": "data:ints"}, "no feature axis"),
    ],
)
def test_errors(layer, match):
    fails(layer, match)


def test_layer_norm_of_another_axis():
    """The feature axis of the output is that of the source."""
    layer = {"class": "layer_norm", "in_dim": STATIC, "epsilon": 0.5, "from": "data:wide"}
    result = output(layer)
    expected = (WIDE - WIDE.mean(2, keepdims=True)) / np.sqrt(WIDE.var(2, keepdims=True) + 0.5)
    np.testing.assert_allclose(result.value, expected, rtol=1e-4, atol=1e-5)
    assert result.axes == ("B", "T", "S", "F")
    data = template({"output": layer})
    assert data.feature_dim is FEATURE and data.time_dim is TIME
    unmarked = {"wide": {"dims": [batch_dim, TIME, STATIC, FEATURE]}}
    data = template({"output": {**layer, "in_dim": FEATURE}}, extern_data=unmarked)
    assert data.feature_axis is None and data.time_axis is None


@pytest.mark.parametrize("scale,bias", [(True, True), (True, False), (False, True), (False, False)])
def test_norm_parameters_in_the_given_order(scale, bias):
    layer = {"class": "norm", "axis": ["T", "F"], "param_shape": [FEATURE, STATIC], "scale": scale, "bias": bias}
    net = net_of({"output": {**layer, "from": "data:wide"}})
    assert set(net.params) == {"output/" + n for n, has in (("scale", scale), ("bias", bias)) if has}
    values = {name: np.arange(6).reshape(3, 2).astype("float32") for name in net.params}
    net.set_param_values(values)
    expected = WIDE - WIDE.mean((1, 3), keepdims=True)
    expected = expected / np.sqrt(WIDE.var((1, 3), keepdims=True) + 1e-6)
    expected = expected * values.get("output/scale", np.ones([3, 2])).T + values.get("output/bias", np.zeros([3, 2])).T
    np.testing.assert_allclose(net.run(feed()).layers["output"].value, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled
@pytest.mark.parametrize("layer", [{"class": "layer_norm"}, {"class": "norm", "axis": "F"}, batch_norm()])
@pytest.mark.parametrize("train", [False, True])
def test_gradient_is_finite(layer, train):
    assert np.isfinite(gradient({**layer, "from": "a"}, train=train)).all()
