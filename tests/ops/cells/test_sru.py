"""SRU against numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.ops.cells import unit_class
from tests.ops.cells.frame_by_frame import check_unit, sigmoid


@pytest.mark.parametrize(
    "n,opts,direction",
    [
        (4, {}, 1),
        (3, {}, -1),
        (3, {"recurrent_vectors": False, "rescale": True, "highway_bias": -2.0}, 1),
        (4, {"recurrent_vectors": False}, -1),
    ],
    ids=str,
)
def test_as_in_numpy(n: int, opts: dict[str, Any], direction: int) -> None:
    scale = math.sqrt(1 + 2 * math.exp(-2.0)) if opts.get("rescale") else 1.0

    def formula(p: Any, x: Any, state: Any) -> Any:
        (c,), parts = state, np.split(x @ p["W"], p["W"].shape[1] // n)
        b_f, b_r = np.split(p["b"], 2)
        v_f, v_r = p.get("v_f", 0.0), p.get("v_r", 0.0)
        f, r = sigmoid(parts[1] + v_f * c + b_f), sigmoid(parts[2] + v_r * c + b_r)
        after = f * c + (1 - f) * parts[0]
        return r * after + (1 - r) * scale * (x if n == 3 else parts[3]), [after]

    check_unit("sru", opts, formula, n=n, direction=direction, parallel=not opts.get("recurrent_vectors", True))


def test_parameters() -> None:
    shapes = {spec.name: spec.shape for spec in unit_class("sru")(4, 3).param_specs()}
    assert shapes == {"W": (3, 16), "b": (8,), "v_f": (4,), "v_r": (4,)}
    same, classes = (unit_class("sru")(3, 3, sparse_input=flag) for flag in (False, True))
    assert [cell.param_specs()[0].shape for cell in (same, classes)] == [(3, 9), (3, 12)]
    (_, bias) = unit_class("sru")(2, 3, unit_opts={"highway_bias": -1.5, "recurrent_vectors": False}).param_specs()
    np.testing.assert_allclose(bias.default, [0, 0, -1.5, -1.5])


def test_errors() -> None:
    with pytest.raises(ConfigError, match=r"needs a dense input of dim 16 \(4 \* n_out\), but the input has dim 3"):
        unit_class("sru")(4, 3, input_projection=False)
    with pytest.raises(ConfigError, match="unknown option 'highway'. Did you mean 'highway_bias'"):
        unit_class("sru")(4, 3, unit_opts={"highway": 1})
