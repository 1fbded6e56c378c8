"""Small networks run on given arrays, for the tests of single layers."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError
from returnn_tf.tensor import FeatureDim, SpatialDim, batch_dim

LENS = np.array([4, 2, 3], "int32")
TIME, STATIC, FEATURE = SpatialDim("time"), SpatialDim("s", 2), FeatureDim("f", 3)
#: [batch, time, feature], the same with a static axis, indices, and numbers by sequence; all with the same time dim.
EXTERN_DATA = {
    "data": {"dim_tags": [batch_dim, TIME, FEATURE]},
    "wide": {"dim_tags": [batch_dim, TIME, STATIC, FEATURE]},
    "labels": {"dim_tags": [batch_dim, TIME], "sparse_dim": FeatureDim("labels", 5), "dtype": "int32"},
    "ints": {"dim_tags": [batch_dim, TIME], "dtype": "int32", "feature_dim_axis": None},
    "numbers": {"dim_tags": [batch_dim], "dtype": "int32", "feature_dim_axis": None},
    "other": {"dim": 3},
}


def feed(**arrays: Any) -> dict[str, np.ndarray]:
    """Return random arrays for all keys, three sequences of the lengths 4, 2, 3; some may be given."""
    rng = np.random.default_rng(3)
    values: dict[str, Any] = {
        "data": rng.normal(size=(3, 4, 3)),
        "wide": rng.normal(size=(3, 4, 2, 3)),
        "labels": rng.integers(0, 5, (3, 4)),
        "ints": rng.integers(0, 3, (3, 4)),
        "numbers": np.array([1, 0, 2]),
        "other": rng.normal(size=(3, 4, 3)),
    }
    values.update(arrays)
    result = {}
    for key, value in values.items():
        value = np.asarray(value)
        result[key] = value.astype("float32" if value.dtype.kind == "f" else "int32")
        if key != "numbers":
            result[key + "/size0"] = LENS
    return result


def config_of(network: dict[str, Any], *, behavior_version: int = 21, **config: Any) -> Config:
    """Return a config with the data keys above."""
    return Config({"extern_data": EXTERN_DATA, "network": network, "behavior_version": behavior_version, **config})


def net_of(network: dict[str, Any], *, train: bool = False, **config: Any) -> Network:
    """Return a network on the data keys above."""
    return Network.from_config(config_of(network, **config), train=train)


def run(network: dict[str, Any], arrays: Optional[dict[str, Any]] = None, **config: Any) -> Any:
    """Return the results by layer path."""
    return net_of(network, **config).run(feed() if arrays is None else arrays).layers


def output(layer: dict[str, Any], arrays: Optional[dict[str, Any]] = None, **config: Any) -> Any:
    """Return the result of one layer."""
    return run({"output": layer}, arrays, **config)["output"]


def template(network: dict[str, Any], **config: Any) -> Any:
    """Return the template of the layer "output"; nothing is run."""
    return plan_from_config(config_of(network, **config)).by_path()["output"].output


def fails(layer: dict[str, Any], match: str, **config: Any) -> None:
    """Check that planning ends with this message, which names the layer."""
    with pytest.raises(ConfigError, match=match) as info:
        template({"output": layer}, **config)
    assert "Layer 'output' (class %r)" % layer["class"] in str(info.value)


def renamed(layers: dict[str, Any], suffix: str) -> dict[str, Any]:
    """Return layers with a suffix to their names wherever these stand, so that others may stand beside them."""

    def new(value: Any) -> Any:
        if isinstance(value, str):
            return value + suffix if value[value.startswith("prev:") and 5 :] in layers else value
        if isinstance(value, (list, tuple)):
            return type(value)(new(v) for v in value)
        return {key: new(v) for key, v in value.items()} if isinstance(value, dict) else value

    return {name + suffix: new(layer) for name, layer in layers.items()}


def gradient(layer: dict[str, Any], arrays: Optional[dict[str, Any]] = None, **config: Any) -> np.ndarray:
    """Return d(sum of squares of the output)/d(bias), where the layer sees ``a = data + bias``."""
    return result_and_gradient(layer, arrays, **config)[1]


def result_and_gradient(layer: dict[str, Any], arrays: Optional[dict[str, Any]] = None, **config: Any) -> Any:
    """Return the result of a layer for ``a = data + bias``, where the bias is zero, and the gradient as above."""
    network = {
        "bias": {"class": "variable", "shape": [FEATURE]},
        "a": {"class": "combine", "kind": "add", "from": ["data", "bias"]},
        "output": layer,
        "loss": {"class": "eval", "eval": "source(0) ** 2", "from": "output", "loss": "as_is"},
    }
    net = net_of(network, **config)
    out = net.run(feed() if arrays is None else arrays, with_grad=True)
    return out.layers["output"], out.grads["bias/bias"]
