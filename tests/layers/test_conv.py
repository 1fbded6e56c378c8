"""`conv`, `pool` and `transposed_conv`: axes, lengths, parameters, messages. The numbers are in tests/ops."""

import numpy as np
import pytest

from returnn_tf.tensor import FeatureDim, SpatialDim
from tests.layers.nets import (
    FEATURE,
    LENS,
    STATIC,
    TIME,
    fails,
    feed,
    net_of,
    output,
    result_and_gradient,
    run,
    template,
)

X = feed()["data"]


def conv(**options):
    return {"class": "conv", "from": "data", "filter_size": (3,), "padding": "same", "n_out": 6, **options}


def pool(**options):
    return {"class": "pool", "from": "data", "pool_size": (2,), "mode": "max", **options}


def tconv(**options):
    return {"class": "transposed_conv", "from": "data", "filter_size": (3,), "n_out": 2, **options}


@pytest.mark.parametrize(
    "layer,lens",
    [
        (conv(), [4, 2, 3]),
        (conv(strides=2), [2, 1, 2]),
        (conv(padding="VALID"), [2, 0, 1]),
        (conv(padding="valid", dilation_rate=2), [0, 0, 0]),
        (conv(padding="valid", filter_size=5), [0, 0, 0]),
        (conv(padding=2, strides=3), [2, 2, 2]),
        (conv(padding=(1, 0)), None),
        (conv(padding=[(1, 0)]), [3, 1, 2]),
        (conv(padding="same_static", strides=2), [2, 1, 2]),
        (conv(groups=3, strides=2, dilation_rate=2), [2, 1, 2]),
        (pool(), [2, 1, 1]),
        (pool(padding="same"), [2, 1, 2]),
        (pool(mode="avg", padding="same", strides=1, use_time_mask=True), [4, 2, 3]),
        (pool(padding="same", strides=3), [2, 1, 1]),
        (pool(mode="avg", strides=3), [1, 1, 1]),
        (tconv(), [12, 6, 9]),
        (tconv(strides=2, padding="valid"), [9, 5, 7]),
        (tconv(strides=2, output_padding=1), [8, 4, 6]),
        (tconv(strides=2, padding="valid", remove_padding=1), [7, 3, 5]),
    ],
)
def test_lengths_fit_the_array(layer, lens):
    if lens is None:
        fails(layer, "padding has 2 entries for 1 axes")
        return
    result, gradient = result_and_gradient({**layer, "from": "a"})
    assert result.axes == ("B", "T", "F")
    np.testing.assert_array_equal(result.sizes[1], lens)
    assert result.value.shape[1] == max(lens)
    assert np.isfinite(gradient).all()


def test_time_major_input_gives_batch_major_output():
    network = {
        "t": {"class": "cumsum", "axis": "T", "from": "w"},
        "w": {"class": "window", "window_size": 1, "from": "data"},
    }
    network["m"] = {"class": "reduce", "mode": "sum", "axis": "stag:window", "from": "t"}
    for layer in (conv(), pool(), tconv()):
        data = template({**network, "output": {**layer, "from": "m"}})
        assert (data.batch_axis, data.time_axis, data.feature_axis) == (0, 1, 2)


@pytest.mark.parametrize("layer", [conv(), conv(groups=3), pool(mode="avg", padding="same"), tconv(strides=1)])
def test_other_axes_count_as_batch(layer):
    options = {**layer, "in_spatial_dims": [TIME], "from": "data:wide"}
    net = net_of({"output": options})
    value = net.run(feed()).layers["output"].value
    assert net.plan.by_path()["output"].output.axis_kinds == ("B", "S", "T", "F")
    for s in range(2):
        single = net_of({"output": layer})
        single.set_param_values(net.get_param_values())
        alone = single.run(feed(data=feed()["wide"][:, :, s])).layers["output"].value
        np.testing.assert_allclose(value[:, s], alone, rtol=1e-4, atol=1e-5)


def test_masked_pooling_with_other_axes():
    layer = pool(
        mode="avg", padding="same", strides=1, use_time_mask=True, in_spatial_dims=[TIME], **{"from": "data:wide"}
    )
    value, x = output(layer).value, feed()["wide"]
    for b, n in enumerate(LENS):
        np.testing.assert_allclose(value[b, :, n - 1], x[b, n - 1], rtol=1e-5)


@pytest.mark.sampled
@pytest.mark.parametrize("mode", ["max", "avg"])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_masked_pooling_behind_the_ends_is_zero(mode, padding):
    """The lowest number there would give NaN in the gradients of whatever comes next."""
    value = output(pool(mode=mode, padding=padding, use_time_mask=True)).value
    assert value[1].shape[0] == 2 and (value[1, 1] == 0).all() and (value[0] != 0).all()


def test_time_mask_hides_what_is_behind_the_ends():
    arrays = feed()
    for b, n in enumerate(LENS):
        arrays["data"][b, n:] = 1e6
    net = net_of({"output": conv(use_time_mask=True)})
    zeros = dict(arrays, data=np.where(arrays["data"] == 1e6, np.float32(0), arrays["data"]))
    results = [net.run(a).layers["output"].value for a in (arrays, zeros)]
    np.testing.assert_array_equal(*results)


def test_options_which_add_axes():
    split = template({"output": conv(filter_size=(2, 1), input_split_feature_dim=1)})
    assert split.static_shape == (None, None, 3, 6) and split.axis_kinds == ("B", "T", "S", "F")
    added = template({"output": conv(filter_size=(2, 2), input_add_feature_dim=True)})
    assert added.static_shape == (None, None, 3, 6)
    expanded = net_of({"output": conv(filter_size=(2, 2), input_expand_dims=1)})
    assert expanded.run(feed()).layers["output"].value.shape == (3, 4, 1, 6)


def test_filter_and_bias_of_layers():
    k, o = SpatialDim("k", 2), FeatureDim("o", 6)
    network = {
        "w": {"class": "variable", "shape": [o, k, FEATURE], "init": "glorot_uniform"},
        "b": {"class": "variable", "shape": [o], "init": 0.5},
        "output": conv(filter_size=2, n_out=None, out_dim=o, filter="w", filter_perm=[k, FEATURE, o], bias="b"),
    }
    del network["output"]["n_out"]
    net = net_of(network)
    w = net.get_param_values()["w/w"]
    x = np.pad(X, [(0, 0), (0, 1), (0, 0)])
    expected = sum(x[:, i : i + 4] @ w[:, i].T for i in range(2)) + 0.5
    np.testing.assert_allclose(net.run(feed()).layers["output"].value, expected, rtol=1e-4, atol=1e-5)
    network["output"]["filter_perm"] = {o: k, k: FEATURE, FEATURE: o}
    assert template(network).dim == 6


def test_out_spatial_dims_are_the_new_dims():
    out = SpatialDim("out")
    network = {
        "c": conv(padding="valid", out_spatial_dims=[out]),
        "output": {"class": "reduce", "mode": "mean", "axis": out, "from": "c"},
    }
    assert run(network)["output"].axes == ("B", "F")


def test_old_bias_default():
    assert set(net_of({"output": conv()}, behavior_version=9).params) == {"output/W"}
    assert set(net_of({"output": conv()}, behavior_version=10).params) == {"output/W", "output/bias"}


def test_old_versions_guess_the_axis():
    data = template({"output": conv(**{"from": "data:wide"})}, behavior_version=7)
    assert data.dims[2] is TIME


@pytest.mark.parametrize(
    "layer,match",
    [
        (
            conv(**{"from": "data:wide"}),
            "filter_size has 1 axis, .* time, s=2. Name the axes by the option 'in_spatial_dims'",
        ),
        (conv(in_spatial_dims=["T", "F"]), "filter_size has 1 axis, but in_spatial_dims has 2"),
        (conv(in_spatial_dims=["F"]), "other than batch and feature"),
        (conv(filter_size=(1, 1, 1, 1)), "1 to 3 entries"),
        (conv(groups=2), "3 input and 6 output features are not divisible by 2 groups"),
        (conv(padding="full"), "padding must be"),
        (conv(strides=0), "strides must be a positive number"),
        (conv(strides=(1, 2)), "strides must be .* 1 axes"),
        (conv(**{"from": "data:labels"}), "sparse"),
        (conv(activation="rel"), "relu"),
        (conv(filter="data"), "the filter .* must have the sizes"),
        (pool(mode="sum"), "mode must be 'max' or 'avg'"),
        (pool(n_out=7), "pooling keeps the 3 features"),
        (pool(**{"from": "data:wide"}), "pool_size has 1 axis"),
        (tconv(padding="same_static"), "'same' or 'valid'"),
        (tconv(remove_padding=(1, 2)), "remove_padding must be"),
        (tconv(out_spatial_dims=[TIME, STATIC]), "out_spatial_dims has 2 dims"),
    ],
)
def test_errors(layer, match):
    fails(layer, match)


@pytest.mark.parametrize("layer", [conv, tconv])
def test_filter_size_by_dim(layer):
    nets = [net_of({"output": layer(filter_size=size)}) for size in ((3,), (SpatialDim("filter", 3),))]
    shapes = [{name: tuple(p.shape) for name, p in net.params.items()} for net in nets]
    assert shapes[0] == shapes[1]


@pytest.mark.sampled
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_time_mask_of_a_transposed_convolution(padding, wide):
    options = {"padding": padding, "filter_size": (5,) if not wide else (5, 2), "strides": 2 if not wide else (2, 1)}
    options["from"] = "data:wide" if wide else "data"
    masked, plain = net_of({"output": tconv(use_time_mask=True, **options)}), net_of({"output": tconv(**options)})
    plain.set_param_values(masked.get_param_values())
    arrays = feed()
    valid = np.arange(4)[None] < LENS[:, None]
    zeros = dict(arrays, data=X * valid[..., None], wide=arrays["wide"] * valid[..., None, None])
    expected = plain.run(zeros).layers["output"]
    result = masked.run(arrays).layers["output"]
    np.testing.assert_array_equal(result.sizes[1], expected.sizes[1])
    np.testing.assert_allclose(result.value, expected.value, rtol=1e-5, atol=1e-6)
    assert not np.allclose(
        plain.run(arrays).layers["output"].value[1, : result.sizes[1][1]], result.value[1, : result.sizes[1][1]]
    )
