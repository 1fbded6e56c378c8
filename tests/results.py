"""Comparing the results of two runs of networks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from returnn_tf.compiler.result import LayerResult, RunResult
from tests.parity import assert_close, valid_mask

#: names of what differs each time in a learning-rate file: durations, speed and memory
MEASURED = re.compile(":meta:(epoch_train_time_secs|speed:|memory:)")


def reproducible(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return scores and facts of an epoch without those that differ each time."""
    return {key: value for key, value in error.items() if not MEASURED.match(key)}


def assert_same_results(first: RunResult, other: RunResult, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Compare all results; outputs where they are valid."""
    for path, result in first.layers.items():
        _assert_same_layer(path, other.layers[path], result, rtol, atol)
    for kind in ("losses", "errors", "counts", "grads"):
        expected, got = getattr(first, kind), getattr(other, kind)
        assert expected.keys() == got.keys()
        for key, value in expected.items():
            scale = 10 if kind == "grads" else 1
            assert_close("%s of %s" % (kind, key), got[key], value, scale * rtol, scale * atol)


def _assert_same_layer(path: str, got: LayerResult, expected: LayerResult, rtol: float, atol: float) -> None:
    """Compare lengths, and values where they are valid; the array that is looked at may be larger."""
    assert got.axes == expected.axes and got.sizes.keys() == expected.sizes.keys(), path
    for axis, lens in expected.sizes.items():
        np.testing.assert_array_equal(got.sizes[axis], lens, err_msg=path)
    value = got.value[tuple(slice(size) for size in expected.value.shape)]
    mask = valid_mask(expected.value, list(expected.axes), expected.sizes)
    if expected.value.dtype.kind in "fc":
        assert_close(path, value, expected.value, rtol, atol, mask)
    else:
        assert_close(path, value, expected.value, 0, 0, mask)
