"""Axis descriptions by name."""

from __future__ import annotations

from typing import Any

import pytest

from returnn_tf.config import ConfigError
from returnn_tf.tensor import Data, FeatureDim, SpatialDim, batch_dim, resolve_axes, resolve_axis

time, other, width = SpatialDim("time"), SpatialDim("win:size"), SpatialDim("width", 5)
DATA = Data.from_dims([batch_dim, time, other, width, FeatureDim("feat", 7)])


@pytest.mark.parametrize(
    "desc, axes",
    [
        ("B", [0]), ("batch", [0]), ("T", [1]), ("time", [1]), ("F", [4]), ("feature", [4]), ("bt", [0, 1]),
        ("TF", [1, 4]),
        ("spatial", [1, 2, 3]), ("dyn", [1, 2]), ("static", [3, 4]), ("spatial_except_time", [2, 3]),
        ("except_time", [2, 3, 4]), ("except_batch", [1, 2, 3, 4]), ("dim:5", [3]), ("stag:win", [2]), ("tag:WIN", [2]),
        ("stag:nothing", []), (time, [1]), (width, [3]), (SpatialDim("time"), []), (["T", "B"], [1, 0]), ("T?", [1]),
    ],
)  # fmt: skip
def test_names(desc: Any, axes: list[int]) -> None:
    assert resolve_axes(DATA, desc, behavior_version=21) == axes


@pytest.mark.parametrize(
    "desc, axes", [("spatial:1", [2]), ("dyn:0", [1]), ("static:-1", [4]), ("except_batch:0", [1])]
)
def test_indexed_names_only_in_old_behavior(desc: str, axes: list[int]) -> None:
    assert resolve_axes(DATA, desc, behavior_version=6) == axes
    with pytest.raises(ConfigError, match="not allowed since behavior version 7"):
        resolve_axes(DATA, desc, behavior_version=7)


def test_ints_only_in_old_behavior() -> None:
    assert resolve_axes(DATA, -1, behavior_version=4) == [4]
    with pytest.raises(ConfigError, match="not allowed since behavior version 5"):
        resolve_axes(DATA, 1, behavior_version=5)


def test_no_time_axis() -> None:
    data = DATA.without_axes([1, 2])
    assert resolve_axes(data, "T?") == []
    assert resolve_axes(data, "T") == []


def test_errors() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'spatial_except_time'"):
        resolve_axes(DATA, "spatial_exept_time")
    with pytest.raises(ConfigError, match="more than one axis"):
        resolve_axis(DATA, "spatial")
    with pytest.raises(ConfigError, match="means no axis"):
        resolve_axis(DATA, "dim:99")
