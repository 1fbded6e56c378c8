"""Dims are equal by declaration or expression, never by size."""

from __future__ import annotations

import gc

import numpy
import pytest

from returnn_tf.tensor import Dim, DimKind, FeatureDim, SpatialDim, batch_dim


def test_equal_expressions_are_one_dim() -> None:
    time = SpatialDim("time")
    assert time.ceildiv_right(2) is time.ceildiv_right(2)
    assert time + 2 is (time + 1) + 1
    assert (time + 2) - 2 is time
    assert (time * 3).ceildiv_right(3) is time
    assert time.ceildiv_right(2).ceildiv_right(3) is time.ceildiv_right(6)
    assert time + SpatialDim("other") is not time + SpatialDim("other")


def test_equal_size_is_not_equality() -> None:
    a, b = FeatureDim("a", 4), FeatureDim("b", 4)
    assert not a.agrees_with(b)
    made = Dim(DimKind.FEATURE, 4, auto=True)
    assert a.agrees_with(made) and made.agrees_with(b)
    assert not SpatialDim("t").agrees_with(SpatialDim("t"))
    assert not made.agrees_with(FeatureDim("c", 5))


def test_shrinking_clips_at_zero_and_does_not_fold() -> None:
    time = SpatialDim("time")
    grown_again = (time - 3) + 3
    assert grown_again is not time
    lens = numpy.array([5, 2])

    def value(dim: Dim) -> numpy.ndarray:
        return lens if dim is time else dim.expr.evaluate(value, numpy.maximum)  # type: ignore[union-attr]

    assert value(grown_again).tolist() == [5, 3]


@pytest.mark.parametrize(
    "make, text, size",
    [
        (lambda t, f: t.ceildiv_right(2), "ceil(time/2)", None),
        (lambda t, f: t + 2, "time+2", None),
        (lambda t, f: t * f, "time*feat", None),
        (lambda t, f: f + f, "feat+feat=8", 8),
        (lambda t, f: f.ceildiv_right(3), "ceil(feat/3)=2", 2),
        (lambda t, f: f - 9, "feat-9=0", 0),
    ],
)
def test_text_and_static_size(make, text, size) -> None:  # type: ignore[no-untyped-def]
    dim = make(SpatialDim("time"), FeatureDim("feat", 4))
    assert str(dim) == text
    assert dim.size == size


def test_with_operands_rebuilds_the_expression() -> None:
    time, other = SpatialDim("time"), SpatialDim("other")
    derived = (time + 1).ceildiv_right(2)

    def replace(dim: Dim) -> Dim:
        return other if dim is time else dim.with_operands(replace)

    assert derived.with_operands(replace) is (other + 1).ceildiv_right(2)


def test_derived_dims_are_freed() -> None:
    time = SpatialDim("time")
    key = id(time + 17)
    gc.collect()
    assert (time + 17).size is None and isinstance(key, int)


def test_batch_is_no_dynamic_dim() -> None:
    assert batch_dim.is_batch and not batch_dim.is_dynamic
    assert SpatialDim("t").is_dynamic
