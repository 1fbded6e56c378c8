"""Encodings of positions against numpy."""

from typing import Any

import numpy as np
import pytest

from returnn_tf.tensor import SpatialDim
from tests.layers.nets import FEATURE, LENS, STATIC, fails, feed, net_of, output, run, template


def sinusoids(position: Any, channels: int) -> Any:
    count = channels // 2
    scales = 1e4 ** (np.arange(count) / max(count - 1, 1))
    angles = np.asarray(position, "float64")[..., None] / scales
    rest = np.zeros(angles.shape[:-1] + (channels % 2,))
    return np.concatenate([np.sin(angles), np.cos(angles), rest], axis=-1)


@pytest.mark.parametrize("source,n_out", [("data", 6), ("data", 5), ("data", 2), ("data", 1), ("data:labels", 4)])
def test_positional_encoding(source: str, n_out: int) -> None:
    result = output({"class": "positional_encoding", "n_out": n_out, "from": source})
    assert list(result.axes) == ["B", "T", "F"]
    expected = np.broadcast_to(sinusoids(np.arange(4), n_out), (3, 4, n_out))
    np.testing.assert_allclose(result.value, expected, atol=1e-5)


def test_in_the_precision_of_the_network() -> None:
    layer = {"class": "positional_encoding", "n_out": 4, "from": "data:labels"}
    assert template({"output": layer}, float_dtype="float64").dtype == "float64"


@pytest.mark.parametrize("source", ["data", "wide"])
def test_added_to_the_input(source: str) -> None:
    value = output({"class": "positional_encoding", "add_to_input": True, "from": "data:" + source}).value
    signal = sinusoids(np.arange(4), 3)
    signal = signal[None] if source == "data" else signal[None, :, None]
    np.testing.assert_allclose(value, feed()[source] + signal, atol=1e-5)


@pytest.mark.parametrize(
    "options,positions",
    [
        ({"constant": 3}, np.full([3, 4], 3)),
        ({"offset": 2}, np.arange(4)[None] + np.full([3, 1], 2)),
        ({"offset": "data:numbers"}, np.arange(4)[None] + feed()["numbers"][:, None]),
        ({"offset": "data:ints"}, np.arange(4)[None] + feed()["ints"]),
        ({"constant": 0, "offset": "data:numbers"}, np.zeros([1, 4]) + feed()["numbers"][:, None]),
    ],
)
def test_other_positions(options: Any, positions: Any) -> None:
    value = output({"class": "positional_encoding", "n_out": 4, "from": "data", **options}).value
    np.testing.assert_allclose(value, sinusoids(positions, 4), atol=1e-5)


def test_bad_positional_encoding() -> None:
    fails({"class": "positional_encoding", "add_to_input": True, "n_out": 5, "from": "data"}, "adds to 3 features")
    fails({"class": "positional_encoding", "n_out": 5, "offset": "data", "from": "data"}, "one number")
    fails({"class": "positional_encoding", "n_out": 5, "from": "data:numbers"}, "no axis")


@pytest.mark.parametrize("fixed", [False, True])
def test_relative_positional_encoding(fixed: bool) -> None:
    layer = {"class": "relative_positional_encoding", "n_out": 4, "clipping": 2, "fixed": fixed, "from": "data"}
    net = net_of({"output": layer})
    params = net.get_param_values()
    assert list(params) == ([] if fixed else ["output/encoding_matrix"])
    table = sinusoids(np.arange(5), 4) if fixed else params["output/encoding_matrix"]
    frames = np.arange(4)
    rows = np.clip(frames[None] - frames[:, None], -2, 2) + 2
    np.testing.assert_allclose(net.run(feed()).layers["output"].value, table[rows], atol=1e-5)


@pytest.mark.parametrize("offset", [None, 2, "offset"])
def test_relative_positions_of_other_axes(offset: Any) -> None:
    new, known, queries = SpatialDim("new"), SpatialDim("known", 7), SpatialDim("queries", 2)
    options = {"class": "relative_positional_encoding", "n_out": 4, "clipping": 3, "fixed": True, "from": "data"}
    options.update(is_output_layer=True, query_offset=offset)
    network = {
        "offset": {"class": "constant", "value": 2},
        "known": {**options, "key_value_spatial_dim": known},
        "new": {**options, "key_value_spatial_dim": new},
        "static": {**options, "from": "data:wide", "key_value_spatial_dim": STATIC},
        "output": {**options, "key_value_spatial_dim": "T", "query_spatial_dim": queries},
    }
    layers = run(network)
    sizes = {"known": (4, 7), "new": (4, 4), "static": (4, 2), "output": (2, 4)}
    for name, (q, k) in sizes.items():
        rows = np.clip(np.arange(k)[None] - np.arange(q)[:, None] - (2 if offset else 0), -3, 3) + 3
        np.testing.assert_allclose(layers[name].value, sinusoids(np.arange(7), 4)[rows], atol=1e-5)
    assert [layers[name].axes for name in sizes] == [("T", "S", "F"), ("T", "T", "F"), ("T", "S", "F"), ("S", "T", "F")]


def test_relative_positions_of_a_history() -> None:
    """In a loop, of all steps up to the current one, whose dim another layer makes."""
    history = SpatialDim("history")
    unit = {
        "h": {"class": "cum_concat", "out_spatial_dim": history, "from": "data:source"},
        "r": {
            "class": "relative_positional_encoding",
            "out_dim": FEATURE,
            "clipping": 2,
            "fixed": True,
            "key_value_spatial_dim": history,
            "from": "data:source",
        },
        "s": {"class": "combine", "kind": "mul", "allow_broadcast_all_sources": True, "from": ["h", "r"]},
        "output": {"class": "reduce", "mode": "sum", "axis": history, "from": "s"},
    }
    expected = np.zeros([3, 4, 3])
    for t in range(4):
        rows = sinusoids(np.clip(np.arange(t + 1) - t, -2, 2) + 2, 3)
        expected[:, t] = (feed()["data"][:, : t + 1] * rows).sum(axis=1)
    for moved in (True, False):
        layer = {"class": "rec", "unit": unit, "optimize_move_layers_out": moved, "from": "data"}
        result = run({"output": layer})["output"]
        for b, n in enumerate(LENS):
            np.testing.assert_allclose(result.value[b, :n], expected[b, :n], atol=1e-5)


def test_not_trainable() -> None:
    layer = {"class": "relative_positional_encoding", "n_out": 2, "trainable": False, "from": "data"}
    layers = {
        "r": layer,
        "output": {
            "class": "self_attention",
            "num_heads": 2,
            "total_key_dim": 4,
            "n_out": 4,
            "key_shift": "r",
            "from": "data",
        },
        "loss": {"class": "eval", "eval": "source(0) ** 2", "from": "output", "loss": "as_is"},
    }
    assert list(net_of(layers).run(feed(), with_grad=True).grads) == ["output/QKV"]
    assert run(layers)["output"].value.shape == (3, 4, 4)
