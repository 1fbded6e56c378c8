"""Loops in the steps of other loops."""

from __future__ import annotations

from typing import Any

import numpy as np

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config


def run(**inner: Any) -> Any:
    """Return the output of a loop which takes the loop in it from the step before.

    :param inner: options of the loop inside
    """
    network: dict[str, Any] = {
        "loop": {
            "class": "rec",
            "from": "data",
            "unit": {
                "two": {"class": "expand_dims", "axis": "T", "dim": 2, "from": "data:source"},
                "inner": {
                    "class": "rec",
                    "from": "two",
                    "unit": {"output": {"class": "linear", "n_out": 3, "from": ["data:source", "prev:output"]}},
                    **inner,
                },
                "last": {"class": "reduce", "mode": "max", "axis": "T", "from": "prev:inner"},
                "next": {"class": "reduce", "mode": "max", "axis": "T", "from": "inner"},
                "output": {"class": "combine", "kind": "add", "from": ["last", "next", "prev:output"]},
            },
        },
        "output": {"class": "copy", "from": "loop"},
    }
    config = Config({"behavior_version": 21, "extern_data": {"data": {"dim": 3}}, "network": network})
    data = np.random.default_rng(3).normal(size=(2, 4, 3)).astype("float32")
    return Network.from_config(config).run({"data": data, "data/size0": np.array([4, 2], "int32")}).layers["output"]


def test_a_loop_is_zero_before_the_first_step() -> None:
    """Unlike a cell, it has no initial state."""
    got = run()
    assert np.abs(got.value).max() > 0.1
    np.testing.assert_array_equal(got.value, run(initial_output=0).value)
