"""`masked_computation` without a source, and along an axis that it names: what the unit uses is selected likewise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.tensor import SpatialDim
from tests.layers.nets import EXTERN_DATA, LENS, TIME, feed, net_of, template

SUM = {"class": "reduce", "mode": "sum", "axis": "F"}
MASK = {"class": "compare", "kind": "greater", "value": 0.0, "from": "sum"}
UNITS: dict[str, dict[str, Any]] = {
    "subnetwork": {"class": "subnetwork", "from": [], "subnetwork": {
        "output": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "base:in"}}},
    "layer": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "in"},
}  # fmt: skip


def masked(unit: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Return the layer, without a source."""
    return {"class": "masked_computation", "mask": "mask", "from": [], "unit": unit, **options}


def params_of(net: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return random weights for the only matrix and bias."""
    rng = np.random.default_rng(4)
    values = {name: rng.normal(size=old.shape).astype("float32") for name, old in net.get_param_values().items()}
    net.set_param_values(values)
    (w,) = [value for name, value in values.items() if name.endswith("/W")]
    (b,) = [value for name, value in values.items() if name.endswith("/b")]
    return w, b


@pytest.mark.sampled(2)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("written", [True, False])
def test_in_loops(unit: str, moved: bool, written: bool) -> None:
    """The output stays as it was in steps outside of the mask; ``from`` may be absent."""
    layer = masked(UNITS[unit])
    if not written:
        del layer["from"]
    steps = {"in": {"class": "eval", "eval": "source(0) * 2", "from": "data:source"},
             "sum": {**SUM, "from": "data:source"}, "mask": MASK, "output": layer}  # fmt: skip
    net = net_of({"output": {"class": "rec", "from": "data", "optimize_move_layers_out": moved, "unit": steps}})
    w, b = params_of(net)
    arrays = feed()
    value = net.run(arrays).layers["output"].value
    for row, n in enumerate(LENS):
        expected = np.zeros(3)
        for t in range(n):
            x = arrays["data"][row, t]
            expected = np.tanh(2 * x @ w + b) if x.sum() > 0 else expected
            np.testing.assert_allclose(value[row, t], expected, rtol=1e-4, atol=1e-5)


FEEDBACK = {
    "around": {"output": {"class": "combine", "kind": "add", "from": ["base:prev:output", "base:data:source"]}},
    "own output": {"output": {"class": "combine", "kind": "add", "from": ["prev:output", "base:data:source"]}},
    "own layer": {
        "sum": {"class": "combine", "kind": "add", "from": ["prev:sum", "base:data:source"]},
        "output": {"class": "copy", "from": "sum"},
    },
    "nested": {
        "inner": {"class": "subnetwork", "from": [], "subnetwork": {
            "output": {"class": "combine", "kind": "add", "from": ["prev:output", "base:base:data:source"]}}},
        "output": {"class": "copy", "from": "inner"},
    },
}  # fmt: skip


@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("kind", FEEDBACK)
def test_feedback(kind: str, moved: bool) -> None:
    """The unit may use the previous step of the loop, and its own layers there, which are held as its output is."""
    unit = {"class": "subnetwork", "from": [], "subnetwork": FEEDBACK[kind]}
    steps = {"sum": {**SUM, "from": "data:source"}, "mask": MASK, "m": masked(unit),
             "output": {"class": "copy", "from": "m"}}  # fmt: skip
    net = net_of({"output": {"class": "rec", "from": "data", "optimize_move_layers_out": moved, "unit": steps}})
    arrays = feed()
    value = net.run(arrays).layers["output"].value
    for row, n in enumerate(LENS):
        x = arrays["data"][row, :n]
        expected = np.cumsum(np.where(x.sum(axis=-1, keepdims=True) > 0, x, 0.0), axis=0)
        np.testing.assert_allclose(value[row, :n], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("unit", UNITS)
def test_outside_of_loops(unit: str) -> None:
    """The dim of the selected frames is that of the option; its lengths are their numbers."""
    part = SpatialDim("part")
    network = {
        "in": {"class": "eval", "eval": "source(0) * 2", "from": "data"},
        "sum": {**SUM, "from": "data"}, "mask": MASK,
        "masked": masked(UNITS[unit], in_spatial_dim=TIME, out_spatial_dim=part, is_output_layer=True),
        "back": {"class": "unmask", "mask": "mask", "from": "masked", "is_output_layer": True},
        "output": {"class": "reduce", "mode": "sum", "axis": part, "from": "masked"},
    }  # fmt: skip
    net = net_of(network)
    w, b = params_of(net)
    arrays = feed()
    out = net.run(arrays).layers
    for row, n in enumerate(LENS):
        x = arrays["data"][row, :n]
        picked = x.sum(axis=-1) > 0
        expected = np.tanh(2 * x[picked] @ w + b)
        assert out["masked"].sizes[1][row] == picked.sum()
        np.testing.assert_allclose(out["masked"].value[row, : picked.sum()], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(out["output"].value[row], expected.sum(axis=0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(out["back"].value[row, :n][picked], expected, rtol=1e-4, atol=1e-5)


def test_data_of_the_network_around() -> None:
    """Without a source, "data" of a subnetwork as the unit is that of the network around, its frames selected."""
    part = SpatialDim("part")
    unit = {"class": "subnetwork", "from": [], "subnetwork": {
        "output": {"class": "combine", "kind": "add", "from": ["base:data", "base:data:other"]}}}  # fmt: skip
    network = {
        "sum": {**SUM, "from": "data"}, "mask": MASK,
        "output": masked(unit, in_spatial_dim=TIME, out_spatial_dim=part),
    }  # fmt: skip
    arrays = feed()
    config = {"extern_data": {**EXTERN_DATA, "other": EXTERN_DATA["data"]}}
    value = net_of(network, **config).run(arrays).layers["output"].value
    for row, n in enumerate(LENS):
        picked = arrays["data"][row, :n].sum(axis=-1) > 0
        expected = (arrays["data"] + arrays["other"])[row, :n][picked]
        np.testing.assert_allclose(value[row, : len(expected)], expected, rtol=1e-5)


def test_the_unit_can_name_the_new_dim() -> None:
    """For example to sum over the selected frames."""
    part = SpatialDim("part")
    unit = {"class": "cumsum", "axis": part, "from": "data"}
    network = {
        "sum": {**SUM, "from": "data"}, "mask": MASK,
        "output": {**masked(unit, in_spatial_dim=TIME, out_spatial_dim=part), "from": "data"},
    }  # fmt: skip
    arrays = feed()
    value = net_of(network).run(arrays).layers["output"].value
    for row, n in enumerate(LENS):
        x = arrays["data"][row, :n]
        expected = np.cumsum(x[x.sum(axis=-1) > 0], axis=0)
        np.testing.assert_allclose(value[row, : len(expected)], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("options", "match"), [
    ({}, "without a source it needs in_spatial_dim and out_spatial_dim"),
    ({"in_spatial_dim": TIME}, "in_spatial_dim and out_spatial_dim belong together"),
    ({"out_spatial_dim": SpatialDim("part"), "from": "data"}, "in_spatial_dim and out_spatial_dim belong together"),
    ({"from": ["data", "data"]}, "needs exactly one source"),
    ({"in_spatial_dim": SpatialDim("x"), "out_spatial_dim": SpatialDim("part")}, "must have one value for each"),
])  # fmt: skip
def test_errors(options: dict[str, Any], match: str) -> None:
    """One message that names the layer."""
    network = {"in": {"class": "copy", "from": "data"}, "sum": {**SUM, "from": "data"}, "mask": MASK,
               "output": masked(UNITS["layer"], **options)}  # fmt: skip
    with pytest.raises(ConfigError, match="Layer 'output' .*" + match):
        template(network)
