"""The number of steps of a loop: what determines it, and the dim that the loop defines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError
from returnn_tf.tensor import FeatureDim, SpatialDim, batch_dim

TIME, FEATURE = SpatialDim("time"), FeatureDim("f", 3)
LENS, LABEL_LENS = np.array([5, 2, 4], "int32"), np.array([3, 2, 1], "int32")
EXTERN = {"data": {"dim_tags": [batch_dim, TIME, FEATURE]}, "classes": {"dim": 6, "sparse": True}}
#: The last step of each sequence: 1, 2, 3.
BY_SEQUENCE: dict[str, Any] = {
    "ends": {"class": "eval", "from": "base:data:classes", "eval": "source(0)[:, 0]",
             "out_type": {"shape": (), "time_dim_axis": None, "dtype": "int32", "sparse": False, "dim": None,
                          "feature_dim_axis": None}},
    "end": {"class": "compare", "kind": "greater_equal", "from": [":i", "ends"]},
}  # fmt: skip
SCALAR: dict[str, Any] = {"end": {"class": "compare", "kind": "greater_equal", "from": ":i", "value": 2}}
COUNT: dict[str, Any] = {
    "n": {"class": "eval", "from": ":i", "eval": "tf.cast(source(0), tf.float32)", "out_type": {"dtype": "float32"}},
    "mean": {"class": "reduce", "mode": "mean", "axis": TIME, "from": "base:data"},
    "output": {"class": "combine", "kind": "add", "from": ["mean", "n"]},
}


def feed() -> dict[str, np.ndarray]:
    """Return frames and labels of different lengths; the first label of each sequence is 1, 2, 3."""
    data = np.random.default_rng(5).normal(size=(3, 5, 3)).astype("float32")
    classes = np.array([[1, 0, 5], [2, 4, 0], [3, 0, 0]], "int32")
    return {"data": data, "data/size0": LENS, "classes": classes, "classes/size0": LABEL_LENS}


def net_of(loop: dict[str, Any], *, train: bool = False, **layers: Any) -> Network:
    """Return a network with a loop as output."""
    config = Config({"extern_data": EXTERN, "network": {"output": loop, **layers}, "behavior_version": 21})
    return Network.from_config(config, train=train)


def loop(unit: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Return a loop without source over a new dim, of at most 9 steps."""
    return {"class": "rec", "from": [], "axis": SpatialDim("steps"), "max_seq_len": 9, "unit": unit, **options}


@pytest.mark.parametrize("include_eos", [True, False])
def test_new_dim_by_sequence(include_eos: bool) -> None:
    """The lengths of the dim are those that the layer "end" finds; later layers know them."""
    spec = loop({**COUNT, **BY_SEQUENCE}, include_eos=include_eos)
    last = {"class": "reduce", "mode": "sum", "axis": spec["axis"], "from": "output", "is_output_layer": True}
    out = net_of(spec, sum=last).run(feed()).layers
    lens = np.array([1, 2, 3]) + include_eos
    assert out["output"].sizes[1].tolist() == lens.tolist()
    for b, n in enumerate(lens):
        mean = feed()["data"][b, : LENS[b]].mean(axis=0)
        expected = mean * n + sum(range(n))
        np.testing.assert_allclose(out["sum"].value[b], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("options", "length"), [
    ({"include_eos": True}, 3), ({"include_eos": False}, 2), ({"max_seq_len": 2, "include_eos": True}, 2),
    ({"max_seq_len": "max_len_from('base:data') - 4"}, 1), ({"max_seq_len": "max_len_from('data:classes')"}, 2),
    ({"max_seq_len": None, "max_seq_len_via": "two"}, 2),
])  # fmt: skip
@pytest.mark.parametrize("source", [[], "data"])
def test_new_dim_by_a_scalar(options: dict[str, Any], length: int, source: Any) -> None:
    """One length for all sequences, also with a source."""
    unit = {**COUNT, **SCALAR}
    if source:
        unit["output"] = {"class": "combine", "kind": "add", "from": ["data:source", "n"]}
    two = {"class": "constant", "value": 2}
    out = net_of(loop(unit, **{"from": source, **options}), two=two).run(feed()).layers["output"]
    assert out.value.shape == (3, length, 3)
    assert out.sizes[1].shape == () and int(out.sizes[1]) == length
    if source:
        expected = feed()["data"][:, :length] + np.arange(length)[:, None]
        np.testing.assert_allclose(out.value, expected, rtol=1e-5)


@pytest.mark.parametrize("limit", [{"max_seq_len": 4}, {"max_seq_len": None, "max_seq_len_via": "four"}])
@pytest.mark.parametrize("moved", [True, False])
def test_new_dim_by_the_limit_alone(limit: dict[str, Any], moved: bool) -> None:
    """Without a layer "end" all sequences have as many steps as the limit says."""
    spec = loop(COUNT, optimize_move_layers_out=moved, **limit)
    out = net_of(spec, four={"class": "constant", "value": 4}).run(feed()).layers["output"]
    assert out.value.shape[1] == 4 and int(out.sizes[1]) == 4
    np.testing.assert_allclose(out.value[:, 3] - out.value[:, 0], 3.0, rtol=1e-5)


@pytest.mark.parametrize("moved", [True, False])
def test_new_dim_of_what_is_unstacked(moved: bool) -> None:
    """Then it is the dim of that axis, and "end" has no effect."""
    unit: dict[str, Any] = {
        "x": {"class": "rec_unstack", "from": "base:data", "axis": TIME},
        "output": {"class": "combine", "kind": "add", "from": ["x", "prev:output"]},
    }
    out = net_of(loop(unit, optimize_move_layers_out=moved)).run(feed()).layers["output"]
    assert out.sizes[1].tolist() == LENS.tolist()
    np.testing.assert_allclose(out.value[0], np.cumsum(feed()["data"][0], axis=0), rtol=1e-4)


@pytest.mark.parametrize("moved", [True, False])
def test_a_known_axis_needs_no_end(moved: bool) -> None:
    """The option axis names the dim of an input."""
    spec = loop({**COUNT, **SCALAR}, axis=TIME, optimize_move_layers_out=moved)
    assert net_of(spec).run(feed()).layers["output"].sizes[1].tolist() == LENS.tolist()


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("moved", [True, False])
def test_with_an_end_the_target_counts(moved: bool, train: bool) -> None:
    """Not the source: it has a frame for each step, and may be longer."""
    unit: dict[str, Any] = {
        "x": {"class": "linear", "activation": None, "n_out": 3, "from": "data:source"},
        "s": {"class": "combine", "kind": "add", "from": ["x", "prev:s"]},
        "output": {"class": "copy", "from": "s"},
        "end": {"class": "compare", "kind": "greater_equal", "from": ":i", "value": 2},
    }
    spec = {"class": "rec", "from": "data", "target": "classes", "max_seq_len": 5, "unit": unit}
    net = net_of({**spec, "optimize_move_layers_out": moved}, train=train)
    values = net.get_param_values()
    out = net.run(feed()).layers["output"]
    assert out.sizes[1].tolist() == LABEL_LENS.tolist()
    x = feed()["data"][0, :3] @ values["output/rec/x/W"] + values["output/rec/x/b"]
    np.testing.assert_allclose(out.value[0, :3], np.cumsum(x, axis=0), rtol=1e-4, atol=1e-5)


def test_size_target() -> None:
    """It comes before the target."""
    spec = {"class": "rec", "from": [], "size_target": "data", "target": "classes", "unit": COUNT}
    assert net_of(spec).run(feed()).layers["output"].sizes[1].tolist() == LENS.tolist()


@pytest.mark.parametrize("moved", [True, False])
def test_the_target_of_the_step(moved: bool) -> None:
    """``data:<target>`` is one label, of the loop's target only; ``base:data:<key>`` are all."""
    unit: dict[str, Any] = {
        "now": {"class": "cast", "dtype": "float32", "from": "data:classes"},
        "before": {"class": "eval", "from": ["prev:now", "now"], "eval": "source(0) * 10 + source(1)"},
        "all": {"class": "length", "from": "base:data:classes", "axis": "T"},
        "other": {"class": "length", "from": "data:data", "axis": "T"},
        "lens": {"class": "eval", "from": ["all", "other"], "eval": "tf.cast(source(0) * 100 + source(1), tf.float32)",
                 "out_type": {"dtype": "float32"}},
        "output": {"class": "combine", "kind": "add", "from": ["before", "lens"]},
    }  # fmt: skip
    spec = {"class": "rec", "from": [], "target": "classes", "unit": unit, "optimize_move_layers_out": moved}
    out = net_of(spec, train=True).run(feed()).layers["output"]
    assert out.value[0].tolist() == [305 + value for value in (1, 10, 5)]


@pytest.mark.parametrize(("options", "match"), [
    ({"max_seq_len_via": "data"}, "max_seq_len and max_seq_len_via exclude each other"),
    ({"max_seq_len_via": "data", "max_seq_len": None}, "must name a layer with a single whole number"),
    ({"max_seq_len": "max_len_from('base:dta')"}, "there is no layer 'dta'"),
    ({"max_seq_len": None, "unit": COUNT}, "the number of steps is unknown"),
    ({"max_seq_len": None, "unit": COUNT, "axis": SpatialDim("other")},
     r"the number of steps is unknown: the axis other is neither one of an input"),
    ({"unit": {"output": {"class": "rec_unstack", "from": "base:data", "axis": SpatialDim("other")}}},
     r"/output' \(class 'rec_unstack'\): Axis other means no axis of"),
    ({"unit": {**COUNT, "end": {"class": "compare", "from": "base:data", "value": 0.0}}}, "'end' must be a bool per"),
    ({"unit": {**COUNT, "output": {"class": "copy", "from": "data:source"}}}, "the loop has no source"),
])  # fmt: skip
def test_errors(options: dict[str, Any], match: str) -> None:
    """One message that names the loop."""
    spec = {**loop({**COUNT, **SCALAR}), **options}
    config = Config({"extern_data": EXTERN, "network": {"output": spec}, "behavior_version": 21})
    with pytest.raises(ConfigError, match="Layer 'output.*" + match):
        plan_from_config(config)
