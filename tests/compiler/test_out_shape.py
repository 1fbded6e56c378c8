"""The option ``out_shape``: a set of dims, in a loop those of one step, wherever the layer is computed."""

from __future__ import annotations

from typing import Any

import pytest

from returnn_tf.config import ConfigError
from returnn_tf.tensor import Dim, FeatureDim, ImplicitDim, ImplicitDynSizeDim, OptionalDim, SpatialDim, batch_dim
from tests.layers.nets import FEATURE, STATIC, TIME, template

HID = FeatureDim("hid", 5)
OTHER = SpatialDim("other")


def linear(out_shape: Any, source: str = "data", **options: Any) -> dict[str, Any]:
    """Return a layer with the features HID and the option."""
    return {"class": "linear", "activation": None, "out_dim": HID, "from": source, "out_shape": out_shape, **options}


def loop(layer: dict[str, Any], *, moved: bool = True, **options: Any) -> dict[str, Any]:
    """Return a loop over the time axis with the layer as "x", which the output adds up."""
    unit = {"x": layer, "output": {"class": "combine", "kind": "add", "from": ["x", "prev:output"]}}
    return {"class": "rec", "from": "data", "optimize_move_layers_out": moved, "unit": unit, **options}


@pytest.mark.parametrize("shape", [
    {batch_dim, TIME, HID}, [HID, batch_dim, TIME], {batch_dim, TIME, HID, OptionalDim(OTHER)},
    {OptionalDim(batch_dim), TIME, HID}, {batch_dim, TIME, HID, ImplicitDim(batch_dim)},
])  # fmt: skip
def test_equal_sets(shape: Any) -> None:
    """The order and optional dims don't matter."""
    assert template({"output": linear(shape)}).dims[-1] is HID


@pytest.mark.parametrize(("shape", "match"), [
    ({batch_dim, HID}, "has the axis time, which out_shape lacks"),
    ({batch_dim, TIME, HID, OTHER}, "out_shape has the dim other, but"),
    (set(), "which out_shape lacks"),
    ((), "which out_shape lacks"),
    ({batch_dim, TIME, HID, ImplicitDim(FEATURE)}, "implicit dim f=3"),
    ({batch_dim, TIME, HID, "T"}, "has the entry 'T'"),
])  # fmt: skip
def test_other_sets(shape: Any, match: str) -> None:
    """Missing, further and implicit dims that do not exist, and other values."""
    with pytest.raises(ConfigError, match=match):
        template({"output": linear(shape)})


@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("source", ["data:source", ["data:source", "prev:output"]])
def test_one_step_in_loops(source: Any, moved: bool) -> None:
    """The same set fits whether the layer is computed step by step or for all steps at once."""
    assert template({"output": loop(linear({batch_dim, HID}, source), moved=moved, out_shape={batch_dim, TIME, HID})})
    for shape in ({batch_dim}, {batch_dim, HID, OTHER}, {batch_dim, HID, STATIC}):
        with pytest.raises(ConfigError, match=r"Layer 'output/x'[^\n]*out_shape"):
            template({"output": loop(linear(shape, source), moved=moved)})
    with pytest.raises(ConfigError, match=r"Layer 'output' [^\n]*out_shape lacks"):
        template({"output": loop(linear({batch_dim, HID}, source), moved=moved, out_shape={batch_dim, HID})})


def test_the_steps_may_be_named_if_moved_out() -> None:
    """Then the value has them."""
    assert template({"output": loop(linear({batch_dim, TIME, HID}, "data:source"))})


@pytest.mark.parametrize("moved", [True, False])
def test_scalars_in_loops(moved: bool) -> None:
    """A counter without a batch axis has no dims at all."""
    unit = {
        "i": {"class": "eval", "from": "prev:i", "eval": "source(0) + 1", "initial_output": 0, "out_shape": set(),
              "out_type": {"dtype": "int32"}},
        "f": {"class": "cast", "dtype": "float32", "from": "i", "out_shape": {}},
        "output": {"class": "combine", "kind": "mul", "from": ["data:source", "f"], "out_shape": {batch_dim, FEATURE}},
    }  # fmt: skip
    out = template({"output": {"class": "rec", "from": "data", "optimize_move_layers_out": moved, "unit": unit}})
    assert set(out.dims) == {batch_dim, TIME, FEATURE}


def test_masked_frames_in_loops() -> None:
    """In the unit of `masked_computation` the selected frames take the place of the steps."""
    unit: dict[str, Any] = {
        "sum": {"class": "reduce", "mode": "sum", "axis": "F", "from": "data:source", "out_shape": {batch_dim}},
        "mask": {"class": "compare", "kind": "greater", "value": 0.0, "from": "sum", "out_shape": {batch_dim}},
        "output": {"class": "masked_computation", "mask": "mask", "from": "data:source",
                   "unit": linear({batch_dim, HID})},
    }  # fmt: skip
    assert template({"output": {"class": "rec", "from": "data", "unit": unit}}).dims[-1] is HID


def test_a_guess_is_not_checked() -> None:
    """While the value of the previous step is unknown, a template may be wrong."""
    wide: set[Dim] = {batch_dim, STATIC, HID}
    unit = {
        "sum": {"class": "combine", "kind": "add", "from": ["prev:sum", "x"], "out_shape": wide},
        "x": linear(wide, "data:source"),
        "norm": {"class": "layer_norm", "from": "prev:sum", "out_shape": wide},
        "output": {"class": "copy", "from": "norm"},
    }
    out = template({"output": {"class": "rec", "from": "data:wide", "unit": unit}})
    assert set(out.dims) == {TIME, *wide}


RANGE = {"class": "range_in_axis", "from": "data", "axis": TIME}
_OTHERS = {
    "pooled": {"class": "pool", "mode": "max", "pool_size": (2,), "padding": "same", "from": "data"},
    "half": {"class": "range_in_axis", "from": "pooled", "axis": "T"},
    "features": {"class": "range_in_axis", "from": "data", "axis": FEATURE},
    "frames": RANGE,
    "length": {"class": "constant", "value": 7, "dtype": "int32", "shape": ()},
}
_NEEDS = r"has no batch axis, but the lengths of %s differ by sequence.* Add ImplicitDynSizeDim\(batch_dim\)"


@pytest.mark.parametrize("mark", [ImplicitDim, ImplicitDynSizeDim, OptionalDim])
def test_batch_as_implicit_dim(mark: Any) -> None:
    assert template({"output": {**RANGE, "out_shape": {TIME, mark(batch_dim)}}})


@pytest.mark.parametrize(
    "layer, shape, lengths",
    [
        (RANGE, {TIME}, "time"),
        ({"class": "copy", "from": "half"}, {TIME.ceildiv_right(2)}, r"ceil\(time/2\)"),
        ({"class": "combine", "kind": "add", "from": ["frames", "features"]}, {TIME, FEATURE}, "time"),
        (RANGE, {TIME, OptionalDim(OTHER)}, "time"),
    ],
)
def test_implicit_batch_is_needed(layer: dict[str, Any], shape: Any, lengths: str) -> None:
    """Where the lengths of an axis come from a key with a batch axis."""
    with pytest.raises(ConfigError, match=_NEEDS % lengths):
        template({**_OTHERS, "output": {**layer, "out_shape": shape}})
    assert template({**_OTHERS, "output": {**layer, "out_shape": {*shape, ImplicitDynSizeDim(batch_dim)}}})


def test_one_length_for_all_has_no_implicit_batch() -> None:
    layer = {"class": "range_from_length", "from": "length", "out_spatial_dim": OTHER, "out_shape": {OTHER}}
    assert template({**_OTHERS, "output": layer})
    assert template({**_OTHERS, "output": {"class": "copy", "from": "features", "out_shape": {FEATURE}}})


@pytest.mark.parametrize("moved", [True, False])
def test_implicit_batch_in_loops(moved: bool) -> None:
    """The lengths of the steps of the loop don't count, those of another axis do."""
    unit = {
        "i": {"class": "eval", "from": "prev:i", "eval": "source(0) + 1.0", "initial_output": 0, "out_shape": set()},
        "j": {"class": "eval", "from": "i", "eval": "source(0) * 2", "out_shape": set()},
        "output": {"class": "combine", "kind": "add", "from": ["data:source", "j"]},
    }
    network = {**_OTHERS, "output": {"class": "rec", "from": "data", "unit": unit, "optimize_move_layers_out": moved}}
    assert template(network)
    unit["k"] = {"class": "eval", "from": "base:half", "eval": "source(0)", "out_shape": {TIME.ceildiv_right(2)}}
    unit["k"]["is_output_layer"] = True
    with pytest.raises(ConfigError, match="Layer 'output/k' .*" + _NEEDS % r"ceil\(time/2\)"):
        template(network)
