"""Sources with different axes: `combine`, `eval`, `linear`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf import Config, ConfigError, Network
from returnn_tf.tensor import FeatureDim, SpatialDim, batch_dim

TIME, OTHER, INPUT, FEAT = SpatialDim("time"), SpatialDim("other"), FeatureDim("input", 3), FeatureDim("feat", 3)
EXTERN = {
    "data": {"dim_tags": [batch_dim, TIME, INPUT]},
    "vector": {"dim_tags": [batch_dim, FEAT]},
    "other": {"dim_tags": [batch_dim, OTHER, INPUT]},
}
LENS = {"data": [3, 2], "other": [2, 4]}


def run(layers: dict[str, Any], *, behavior_version: int = 21) -> tuple[Any, dict[str, np.ndarray]]:
    """Return the result of "output", and the inputs."""
    settings = {"extern_data": EXTERN, "network": layers, "behavior_version": behavior_version}
    net = Network.from_config(Config(settings))
    rng = np.random.RandomState(1)
    feed: dict[str, np.ndarray] = {"vector": rng.normal(size=(2, 3)).astype("float32")}
    for key, lens in LENS.items():
        feed[key] = rng.normal(size=(2, max(lens), 3)).astype("float32")
        feed[key + "/size0"] = np.array(lens, "int32")
    return net.run(feed).layers["output"], feed


def test_axes_of_equal_size_keep_their_order() -> None:
    layer = {"class": "combine", "kind": "sub", "from": ["data", "data:vector"], "allow_broadcast_all_sources": True}
    output, feed = run({"output": layer})
    assert output.axes == ("B", "T", "S", "F")
    np.testing.assert_allclose(output.value, feed["data"][..., None] - feed["vector"][:, None, None], rtol=1e-6)


@pytest.mark.parametrize("kind", ["combine", "eval"])
def test_out_type_reorders_the_axes_of_the_sources(kind: str) -> None:
    layers = {
        "turned": {"class": "transpose", "perm": [INPUT, batch_dim, TIME], "from": "data"},
        "output": {"class": kind, "from": ["turned", "data"], "out_type": {"dims": [batch_dim, INPUT, TIME]}},
    }
    layers["output"]["kind" if kind == "combine" else "eval"] = "sub" if kind == "combine" else "source(0) * source(1)"
    output, feed = run(layers)
    assert output.axes == ("B", "F", "T")
    expected = np.transpose(feed["data"], (0, 2, 1))
    expected = expected - expected if kind == "combine" else expected**2
    np.testing.assert_allclose(output.value, expected, rtol=1e-6)


def test_out_type_must_have_the_axes_of_the_sources() -> None:
    layer = {"class": "combine", "kind": "add", "from": ["data", "data"], "out_type": {"dims": [batch_dim, INPUT]}}
    with pytest.raises(ConfigError, match="out_type gives .*, but the sources have the axes"):
        run({"output": layer})


@pytest.mark.parametrize(
    "options, behavior_version", [({"out_shape": {batch_dim, TIME, OTHER, FEAT}}, 21), ({}, 3), ({}, 0)]
)
def test_linear_over_two_time_axes(options: dict[str, Any], behavior_version: int) -> None:
    layer = {"class": "linear", "activation": None, "out_dim": FEAT, "forward_weights_init": "ones"}
    layer.update({"from": ["data", "data:other"], "with_bias": False, **options})
    output, feed = run({"output": layer}, behavior_version=behavior_version)
    assert output.axes == ("B", "T", "T", "F")
    expected = feed["data"].sum(-1)[:, :, None] + feed["other"].sum(-1)[:, None]
    np.testing.assert_allclose(output.value, np.repeat(expected[..., None], 3, axis=-1), rtol=1e-5, atol=1e-5)
    assert [output.sizes[1].tolist(), output.sizes[2].tolist()] == [LENS["data"], LENS["other"]]


@pytest.mark.parametrize("layer", [{"class": "linear", "n_out": 2, "activation": None}, {"class": "copy"}])
def test_broadcast_of_all_sources_is_an_error_since_behavior_version_4(layer: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="has the axis other, which is in no other source"):
        run({"output": {**layer, "from": ["data", "data:other"]}}, behavior_version=4)


@pytest.mark.parametrize("axes", [["T", "stag:nothing"], ["stag:nothing", "dim:3"], ["F", OTHER]])
@pytest.mark.parametrize("layer", [{"class": "reduce", "mode": "max"}, {"class": "merge_dims"}])
def test_a_name_in_a_list_of_axes_must_match(axes: list[Any], layer: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Layer 'output' .*: Axis ('stag:nothing'|other) means no axis"):
        run({"output": {**layer, "axes": axes, "from": "data"}})


@pytest.mark.parametrize(
    "version,allow,size,shape",
    [
        (21, True, 3, (2, 3, 3, 3)),  # a dim of the user is no other one of its size
        (3, None, 3, (2, 3, 3, 3)),
        (21, None, 3, (2, 3, 3)),  # no axis may be added, so both must be meant to be one
        (10, True, 1, (2, 3, 3)),
        (11, True, 1, (2, 3, 3, 1)),  # since 11 one of size 1 is no other dim
        (21, None, 1, (2, 3, 3)),
    ],
)
def test_dims_of_users_and_automatic_ones(version: int, allow: Any, size: int, shape: tuple[int, ...]) -> None:
    layers = {
        "h": {"class": "linear", "activation": None, "n_out": size, "from": "data", "is_output_layer": True},
        "output": {"class": "combine", "kind": "sub", "from": ["data", "h"], "allow_broadcast_all_sources": allow},
    }
    settings = {"extern_data": EXTERN, "network": layers, "behavior_version": version}
    net = Network.from_config(Config(settings))
    data = np.random.RandomState(1).normal(size=(2, 3, 3)).astype("float32")
    result = net.run({"data": data, "data/size0": np.array([3, 2], "int32")}).layers
    h, out = result["h"].value, result["output"].value
    assert out.shape == shape
    expected = data - h if len(shape) == 3 else data[..., None] - h[:, :, None]
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
