"""The common layout of several templates."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from returnn_tf.config import ConfigError
from returnn_tf.tensor import Data, Dim, DimKind, FeatureDim, SpatialDim, batch_dim
from returnn_tf.tensor.match import common_layout, match_axes

# Dynamic: t, u. Static: h, s spatial; f, g feature. All static ones have one size, so that only the order tells them.
DIMS = {"b": batch_dim, "t": SpatialDim("t"), "u": SpatialDim("u"), "h": SpatialDim("h", 3), "s": SpatialDim("s", 3)}
DIMS.update(f=FeatureDim("f", 3), g=FeatureDim("g", 3))


def data_of(axes: str) -> Data:
    """Return a template by the letters of its dims; an upper-case one is the feature axis, "-" that there is none."""
    dims = [DIMS[letter.lower()] for letter in axes.strip("-")]
    if axes.endswith("-"):
        return Data.from_dims(dims, feature_axis=None)
    marked = [i for i, letter in enumerate(axes) if letter.isupper()]
    return Data.from_dims(dims, feature_axis=marked[0]) if marked else Data.from_dims(dims)


def axes_of(data: Data) -> str:
    """Invert `data_of`."""
    letters = {dim: letter for letter, dim in DIMS.items()}
    found = [letters[dim] for dim in data.dims]
    if data.feature_axis is None:
        return "".join(found) + "-"
    found[data.feature_axis] = found[data.feature_axis].upper()
    return "".join(found)


@pytest.mark.parametrize(
    "sources, expected",
    [
        (["btf", "bg"], "btfG"),  # put last, after the feature axis
        (["bht", "btf"], "bhFt"),
        (["btf", "buf"], "btuF"),
        (["btf", "bs"], "btsF"),  # after the last spatial axis
        (["bf", "bs"], "bsF"),  # no spatial axis: in front of the feature axis
        (["bf", "bt"], "btF"),
        (["bf", "bu", "bt"], "butF"),
        (["bt-", "bf"], "btF"),
        (["b", "t-"], "bt-"),
        (["t-", "bs-"], "bst-"),  # the first source with most axes decides
        (["tf", "b"], "btF"),
        (["bsh-", "t-"], "bsht-"),  # no dynamic axis: after the last spatial one
        (["bts-", "u-"], "btus-"),  # after the last dynamic one
        (["tbf", "us-"], "tusbF"),
        (["tbsf", "bu"], "tubsF"),
        (["bft", "g"], "bfGt"),
        (["bFtg", "h-"], "bFtgh"),
        (["btFg", "u-"], "btuFg"),
        (["btf", "fs-", "bu"], "btusF"),
        (["btf", "g", "bs"], "btfsG"),
        (["btf", "tb-", "ftb"], "btF"),
    ],
)
def test_order_of_broadcast_axes(sources: Sequence[str], expected: str) -> None:
    layout = common_layout([data_of(axes) for axes in sources], allow_broadcast_all=True)
    assert axes_of(layout) == expected


def test_broadcast_of_all_sources_needs_permission() -> None:
    with pytest.raises(ConfigError, match="has the axis u, which is in no other source"):
        common_layout([data_of("btf"), data_of("buf")])


def test_time_is_the_first_dynamic_axis_added() -> None:
    layout = common_layout([data_of("bf"), data_of("bt")], allow_broadcast_all=True)
    assert layout.time_dim is DIMS["t"]


def test_kinds_of_one_dim_match() -> None:
    as_feature = DIMS["t"].as_kind(DimKind.FEATURE)
    layout = common_layout([data_of("bt-"), Data.from_dims([batch_dim, as_feature])])
    assert axes_of(layout) == "bt-" and as_feature.agrees_with(DIMS["t"])
    assert not as_feature.agrees_with(Dim(DimKind.FEATURE))


SQUARE = FeatureDim("square", 4)
MARKED, MORE = SQUARE.with_priority(1), SQUARE.with_priority(2)


@pytest.mark.parametrize(
    "dims, into, targets",
    [
        ([MARKED, SQUARE], [SQUARE, MARKED], [1, 0]),
        ([SQUARE, MARKED], [MARKED, SQUARE], [1, 0]),
        ([SQUARE], [SQUARE, MARKED], [1]),  # the axis with the higher priority is taken, the other one remains
        ([SQUARE], [MARKED, MORE], [1]),
        ([MARKED], [SQUARE], [0]),
        ([SQUARE, MARKED], [SQUARE], [None, 0]),
        ([SQUARE, SQUARE], [SQUARE, SQUARE], [0, 1]),
        ([batch_dim, MARKED], [MARKED, SQUARE], [None, 0]),
    ],
)
def test_match_priority(dims: Sequence[Dim], into: Sequence[Dim], targets: list[int]) -> None:
    """Of axes with one dim, those with higher priorities are matched first."""
    assert match_axes(Data.from_dims(dims), Data.from_dims(into)) == targets
