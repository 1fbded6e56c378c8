"""`cumsum` in loops: the initial output counts, whether the layer is computed step by step or for all steps at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from tests.layers.nets import LENS, STATIC, feed, net_of, template

INITIAL: dict[str, Any] = {
    "none": (None, 0.0),
    "number": (1, 1.0),
    "float": (0.5, 0.5),
    "zeros": ("zeros", 0.0),
    "ones": ("ones", 1.0),
    "var": ("var", None),
    "layer": ("base:mean", None),
}


def network(layer: dict[str, Any], moved: bool, key: str = "data") -> dict[str, Any]:
    """A loop over the frames of a data key with the layer as "sum", and the value of the step before as "before"."""
    unit = {"sum": layer, "before": {"class": "copy", "from": "prev:sum", "is_output_layer": True},
            "output": {"class": "copy", "from": "sum"}}  # fmt: skip
    return {
        "mean": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data:" + key},
        "output": {"class": "rec", "from": "data:" + key, "optimize_move_layers_out": moved, "unit": unit},
    }


@pytest.mark.sampled(2)
@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("key", ["data", "wide"])
@pytest.mark.parametrize("form", INITIAL)
def test_initial_output_is_added(form: str, key: str, moved: bool) -> None:
    """The sum starts with the initial output, which is also the value of prev: in the first step."""
    given, expected = INITIAL[form]
    layer = {"class": "cumsum", "from": "data:source", **({} if given is None else {"initial_output": given})}
    net = net_of(network(layer, moved, key))
    arrays = feed()
    initial: Any = expected
    if given == "var":
        initial = np.array([3.0, 1.0, 2.0], "float32")
        net.set_param_values({"output/rec/sum/init_sum_var": initial})
    out = net.run(arrays).layers
    for b, n in enumerate(LENS):
        x = arrays[key][b, :n]
        start = x.mean(axis=0) if given == "base:mean" else np.zeros_like(x[0]) + initial
        sums = start + np.cumsum(x, axis=0)
        np.testing.assert_allclose(out["output"].value[b, :n], sums, rtol=1e-5, atol=1e-5)
        before = np.concatenate([start[None], sums[:-1]])
        np.testing.assert_allclose(out["output/before"].value[b, :n], before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("moved", [True, False])
def test_another_axis_has_no_initial_value(moved: bool) -> None:
    """A sum along an axis of the step, and one outside of loops, begins with zero."""
    unit = {"output": {"class": "cumsum", "from": "data:source", "axis": STATIC, "initial_output": 1}}
    loop = {"class": "rec", "from": "data:wide", "optimize_move_layers_out": moved, "unit": unit}
    outside = {"class": "cumsum", "axis": "T", "from": "data", "initial_output": 7, "is_output_layer": True}
    arrays = feed()
    out = net_of({"output": loop, "outside": outside}).run(arrays).layers
    np.testing.assert_allclose(out["output"].value[0], np.cumsum(arrays["wide"][0], axis=1), rtol=1e-5)
    np.testing.assert_allclose(out["outside"].value[0], np.cumsum(arrays["data"][0], axis=0), rtol=1e-5)


@pytest.mark.parametrize(("given", "match"), [
    ("apply(0)", "initial_output must be a number"),
    ("x", "has no value before the first step"),
    ("data:source", "has no value before the first step"),
    ("base:nothing", "there is no layer"),
])  # fmt: skip
@pytest.mark.parametrize("moved", [True, False])
def test_bad_initial_output(given: str, match: str, moved: bool) -> None:
    """What has no value before the first step is refused."""
    unit = {"x": {"class": "linear", "activation": None, "n_out": 3, "from": "data:source"},
            "output": {"class": "cumsum", "from": "data:source", "initial_output": given}}  # fmt: skip
    loop = {"class": "rec", "from": "data", "optimize_move_layers_out": moved, "unit": unit}
    with pytest.raises(ConfigError, match="Layer 'output.*" + match):
        template({"output": loop})
