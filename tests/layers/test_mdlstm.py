"""`mdlstm`: against numpy through the layer, options, images among other axes, and wrong configs."""

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError
from tests.native import reference

EXTERN = {"data": {"shape": (None, None, 3)}, "other": {"dim": 3}}
FLIPS = {"upper_left": (0, 0), "lower_right": (1, 1), "upper_right": (0, 1), "lower_left": (1, 0)}
HEIGHTS, WIDTHS = np.array([4, 2, 1], "int32"), np.array([2, 5, 3], "int32")


def config(extern=None, **options):
    layer = {"class": "mdlstm", "n_out": 4, "from": "data", "is_output_layer": True, **options}
    return Config({"network": {"output": layer}, "extern_data": extern or EXTERN, "behavior_version": 21})


def feed():
    x = np.random.default_rng(3).normal(size=(3, 4, 5, 3)).astype("float32")
    return {"data": x, "data/size0": HEIGHTS, "data/size1": WIDTHS}


def expected(net, x, corners, stable=True):
    params = net.get_param_values()
    parts = []
    for corner in corners:
        w, b, left, up = (params["output/%s/%s" % (corner, name)] for name in ("W", "b", "V_h", "V_v"))
        parts.append(reference.mdlstm(x @ w + b, left, up, HEIGHTS, WIDTHS, FLIPS[corner], stable))
    return parts


@pytest.mark.parametrize(
    "options, corners",
    [
        ({"directions": 1, "stable": False}, ["upper_left"]),
        ({"combine": "sum"}, list(FLIPS)),
        ({"directions": ["lower_left", "upper_right"], "combine": "concat", "n_out": 6}, ["lower_left", "upper_right"]),
        ({"directions": 3, "bias_init": 0.5}, ["upper_left", "lower_right", "upper_right"]),
    ],
)
def test_against_numpy(options, corners):
    net = Network.from_config(config(**options))
    inputs = feed()
    out = net.run(inputs).layers["output"]
    parts = expected(net, inputs["data"], corners, options.get("stable", True))
    combine = {"sum": sum, "concat": lambda x: np.concatenate(x, -1), "mean": lambda x: sum(x) / len(x)}
    np.testing.assert_allclose(out.value, combine[options.get("combine", "mean")](parts), atol=1e-5)
    assert len(net.get_param_values()) == 4 * len(corners)


def test_a_static_axis_and_the_order_of_the_axes():
    """Lines of 2 pixels height with the columns as time axis, as images of 2 rows."""
    extern = {"data": {"shape": (None, 2, 3)}}
    x = np.random.default_rng(3).normal(size=(2, 5, 2, 3)).astype("float32")
    lens = np.array([5, 2], "int32")
    net = Network.from_config(config(extern, directions=1, in_spatial_dims=["dim:2", "T"]))
    params = {name.rpartition("/")[2]: value for name, value in net.get_param_values().items()}
    out = net.run({"data": x, "data/size0": lens}).layers["output"]
    z = x.transpose(0, 2, 1, 3) @ params["W"] + params["b"]
    value = reference.mdlstm(z, params["V_h"], params["V_v"], [2, 2], lens, (0, 0))
    assert out.value.shape == (2, 2, 5, 4)
    np.testing.assert_allclose(out.value, value, atol=1e-5)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"combine": "meann"}, "unknown combine 'meann'.*mean"),
        ({"directions": 5}, "directions must be 1 to 4, got 5"),
        ({"directions": ["upper_let"]}, "unknown corner 'upper_let'.*upper_left"),
        ({"directions": []}, "at least one"),
        ({"directions": ["upper_left"] * 2}, "different corners"),
        ({"combine": "concat", "n_out": 6}, "n_out 6 is not divisible by the 4 directions"),
        ({"from": "data:other"}, "an image has 2 axes"),
    ],
)
def test_wrong_configs(options, message):
    with pytest.raises(ConfigError, match=message):
        plan_from_config(config(**options))
