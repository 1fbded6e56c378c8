"""Where NaN and Inf come from: the data, or the first layer that makes them."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.engine.support.nonfinite import NonFiniteError, data_key, first_bad_layer

#: The names say nothing about the order: "a" needs "z".
LAYERS: dict[str, Any] = {
    "z": {"class": "activation", "activation": "log", "from": "data"},
    "same": {"class": "reinterpret_data", "size_base": "data", "from": "data:more"},
    "a": {"class": "linear", "activation": None, "n_out": 3, "from": ["z", "same"]},
    "output": {"class": "softmax", "from": "a", "target": "classes", "loss": "ce"},
}


def network() -> Network:
    extern_data = {"more": {"dim": 2}, "data": {"dim": 3}, "classes": {"dim": 3, "sparse": True}}
    return Network.from_config(Config({"network": LAYERS, "extern_data": extern_data}), train=True)


def feed() -> dict[str, np.ndarray]:
    lens = np.array([4, 2], "int32")
    arrays = {
        "data": np.ones((2, 4, 3), "float32"),
        "more": np.ones((2, 4, 2), "float32"),
        "classes": np.zeros((2, 4), "int32"),
    }
    return {**arrays, **{"%s/size0" % key: lens for key in arrays}}


@pytest.mark.parametrize(
    "key, value, place, expected",
    [
        ("data", 1.0, (1, 0, 2), None),
        ("data", np.nan, (1, 0, 2), "data"),
        ("data", np.inf, (0, 3, 0), "data"),
        ("more", np.nan, (0, 0, 1), "data:more"),
        ("data", -1.0, (1, 1, 0), "z"),
        ("data", 0.0, (1, 1, 0), "z"),
        ("more", 3e38, (0, 1), "a"),
        ("data", 0.0, (1, 3, 0), "z"),  # nothing but the padding is bad
    ],
)
def test_first_bad_layer(key: str, value: float, place: Any, expected: Optional[str]) -> None:
    net, bad = network(), feed()
    net.params["a/W"].assign(np.full(net.params["a/W"].shape, 2.0))
    bad[key][place] = value
    assert first_bad_layer(net, bad, step=1) == expected


def test_what_padding_becomes_is_not_blamed_for_what_is_bad_in_a_sequence() -> None:
    net, bad = network(), feed()
    net.params["a/W"].assign(np.full(net.params["a/W"].shape, 2.0))
    bad["data"][1, 2:] = 0.0  # its logarithm is -Inf
    bad["more"][0, 1] = 3e38
    assert first_bad_layer(net, bad, step=1) == "a"
    bad["data"][0, 0, 0] = np.nan
    assert first_bad_layer(net, bad, step=1) == "data"


def test_message() -> None:
    def text(path: Optional[str]) -> str:
        return str(NonFiniteError(7, float("nan"), 1.0, {}).at(["seq-3", "seq-7"], path))

    for path, key in (("data", "data"), ("data:more", "more")):
        assert data_key(path) == key
        assert "The data itself has NaN or Inf, in the key %r: check these sequences" % key in text(path)
        assert "seq-3, seq-7" in text(path) and "layer" not in text(path) and "learning_rate" not in text(path)
    for path in ("hidden", "database", None):
        assert data_key(path) is None
        assert "learning_rate" in text(path) and "The data" not in text(path)
    assert NonFiniteError(7, 1.0, None, {}).topic == "nan"
    assert "First layer with NaN or Inf in its output: 'hidden'" in text("hidden")
    assert "All layer outputs are finite" in text(None)
