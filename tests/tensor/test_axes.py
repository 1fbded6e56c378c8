"""Axis descriptions by name."""

from __future__ import annotations

from typing import Any

import pytest

from returnn_tf.config import ConfigError
from returnn_tf.tensor import Data, Dim, DimKind, FeatureDim, SpatialDim, batch_dim, resolve_axes, resolve_axis
from returnn_tf.tensor.dim_names import DimNames

time, other, width = SpatialDim("time"), SpatialDim("win:size"), SpatialDim("width", 5)
DATA = Data.from_dims([batch_dim, time, other, width, FeatureDim("feat", 7)])


@pytest.mark.parametrize(
    "desc, axes",
    [
        ("B", [0]), ("batch", [0]), ("T", [1]), ("time", [1]), ("F", [4]), ("feature", [4]), ("bt", [0, 1]),
        ("TF", [1, 4]),
        ("spatial", [1, 2, 3]), ("dyn", [1, 2]), ("static", [3, 4]), ("spatial_except_time", [2, 3]),
        ("except_time", [2, 3, 4]), ("except_batch", [1, 2, 3, 4]), ("dim:5", [3]), ("stag:win", [2]), ("tag:WIN", [2]),
        (time, [1]), (width, [3]), (["T", "B"], [1, 0]), ("T?", [1]), (["T?", "T", time], [1]),
        ("*", [0, 1, 2, 3, 4]), ("non_spatial", [4]), ("Spatial", [1, 2, 3]), ("d", [1, 2]), ("dynamic", [1, 2]),
        ("stag-single:0:win", [2]), ("stag-single:-1:ti", [1]), ("stag-single:1:i", [2]), ("stag-single:-1:I", [3]),
        ("", []), (None, []), ([], []), (batch_dim, [0]), (Dim(DimKind.BATCH, None, "packed"), [0]),
    ],
)  # fmt: skip
def test_names(desc: Any, axes: list[int]) -> None:
    assert resolve_axes(DATA, desc, behavior_version=21) == axes


@pytest.mark.parametrize(
    "desc, axes",
    [
        ("spatial:1", [2]),
        ("dyn:0", [1]),
        ("static:-1", [4]),
        ("except_batch:0", [1]),
        ("s:-1", [3]),
        ("d:1", [2]),
        ("dynamic:-2", [1]),
        ("static:0", [3]),
    ],
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
    assert resolve_axes(data.without_axes([1]), "spatial") == []
    for desc in ("T", "time", ["B", "T"], "bt", "TF"):
        with pytest.raises(ConfigError, match="means no axis .* which has no time axis"):
            resolve_axes(data, desc)


@pytest.mark.parametrize(
    "desc, message",
    [
        ("stag:nothing", "means no axis"), (["T", "stag:nothing"], "'stag:nothing' means no axis"),
        (SpatialDim("time"), "time means no axis"), (["B", SpatialDim("x")], "x means no axis"),
        (["F", "dim:99"], "'dim:99' means no axis"), ("stag:i", "more than one axis"), ("tag:", "more than one axis"),
        ("stag-single:3:i", "has 3 such axes"), ("stag-single:time", "write 'stag-single:<index>"),
        ("tag:feat:x", "means no axis"), ("stag:feat", "means no axis"), ("dim:x", "not a known name"),
    ],
)  # fmt: skip
def test_each_name_must_match(desc: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_axes(DATA, desc)


def test_size_of_several_axes_names_none() -> None:
    with pytest.raises(ConfigError, match="more than one axis"):
        resolve_axes(DATA.with_axis(2, SpatialDim("more", 5)), "dim:5")


def test_names_of_derived_and_declared_dims() -> None:
    names, pooled = DimNames(), time.ceildiv_right(2)
    data = Data.from_dims([batch_dim, pooled + 1, other])
    names.add(pooled, "Pool:conv:s0")
    names.add(other, "second:pool", passed=True)
    assert resolve_axes(data, "stag:pool", names=names) == [1]  # of an operand; more than a name passed on
    assert resolve_axes(data, "stag:second", names=names) == [2]
    assert resolve_axes(data, "stag:TIME", names=names) == [1]


def test_errors() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'spatial_except_time'"):
        resolve_axes(DATA, "spatial_exept_time")
    with pytest.raises(ConfigError, match="more than one axis"):
        resolve_axis(DATA, "spatial")
    with pytest.raises(ConfigError, match="means no axis"):
        resolve_axis(DATA, "dim:99")


SQUARE = FeatureDim("square", 4)
MARKED, MORE = SQUARE.with_priority(1), SQUARE.with_priority(2)


@pytest.mark.parametrize(
    "dims, desc, axes",
    [
        ([MARKED, SQUARE], SQUARE, [0]),  # the one with the higher priority
        ([SQUARE, MARKED], SQUARE, [1]),
        ([SQUARE, MARKED], MARKED, [1]),
        ([MARKED, SQUARE, MORE], SQUARE, [2]),
        ([MARKED, SQUARE, MORE], MARKED, [0]),  # the one of this priority
        ([MARKED, SQUARE], MORE, [0]),
        ([SQUARE], MARKED, [0]),
        ([MARKED], SQUARE, [0]),
        ([MARKED, SQUARE], [MARKED, SQUARE], [0, 1]),
        ([MARKED, SQUARE], [SQUARE, MARKED], [1, 0]),
        ([MARKED, SQUARE, MORE], [SQUARE, MARKED, MORE], [1, 0, 2]),
        ([MARKED, SQUARE], [SQUARE, SQUARE], [0, 1]),
        ([MARKED], [SQUARE, MARKED], [0]),
    ],
)
def test_match_priority(dims: Any, desc: Any, axes: Any) -> None:
    assert resolve_axes(Data(tuple(dims)), desc) == axes


def test_a_dim_of_two_axes_names_none() -> None:
    with pytest.raises(ConfigError, match="more than one axis of .*match_priority=1"):
        resolve_axis(Data((SQUARE, SQUARE)), SQUARE)
