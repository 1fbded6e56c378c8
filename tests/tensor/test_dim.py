"""Dims are equal by declaration or expression, never by size."""

from __future__ import annotations

import gc

import numpy as np
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


@pytest.mark.parametrize("number", [np.int64, np.int32, np.uint8])
def test_integers_of_numpy(number: type) -> None:
    time, static, two = SpatialDim("time"), FeatureDim("f", number(4)), number(2)
    assert time + two is time + 2 and two + time is 2 + time and time - two is time - 2
    assert time * two is time * 2 and two * time is 2 * time and time.ceildiv_right(two) is time.ceildiv_right(2)
    for dim, size in ((static, 4), (static + two, 6), (static // two, 2), (Dim(dimension=two), 2)):
        assert dim.size == size and type(dim.size) is int
    with pytest.raises(TypeError, match="can be combined with dims and ints"):
        time + np.float32(2)
    with pytest.raises(ValueError, match="divided by a positive number"):
        time // (two - two)


def test_equal_size_is_not_equality() -> None:
    a, b = FeatureDim("a", 4), FeatureDim("b", 4)
    assert not a.agrees_with(b)
    made = Dim(DimKind.FEATURE, 4, auto=True)
    assert a.agrees_with(made) and made.agrees_with(b)
    assert not SpatialDim("t").agrees_with(SpatialDim("t"))
    assert not made.agrees_with(FeatureDim("c", 5))


def _lengths(dim: Dim, lens: dict[Dim, np.ndarray]) -> np.ndarray:
    """Return the lengths of a dim, given those of its operands."""
    if dim.size is not None:
        return np.array(dim.size)
    return lens[dim] if dim in lens else dim.expr.evaluate(lambda d: _lengths(d, lens), np.maximum)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "one, two",
    [
        (lambda a, b, f: a + a, lambda a, b, f: 2 * a),
        (lambda a, b, f: (a - 1) + 1, lambda a, b, f: a),
        (lambda a, b, f: (1 + a) - 1, lambda a, b, f: a),
        (lambda a, b, f: a + b, lambda a, b, f: b + a),
        (lambda a, b, f: (a + b) - b, lambda a, b, f: a),
        (lambda a, b, f: 2 * (a + 1), lambda a, b, f: a + 2 + a),
        (lambda a, b, f: a * 3 - a, lambda a, b, f: 2 * a),
        (lambda a, b, f: (4 * a + 2).ceildiv_right(2), lambda a, b, f: 2 * a + 1),
        (lambda a, b, f: (a // 2) // 3, lambda a, b, f: a // 6),
        (lambda a, b, f: (a * f).ceildiv_right(f), lambda a, b, f: a),
        (lambda a, b, f: (f * a).div_left(f), lambda a, b, f: f.mul_right(a).floordiv_left(f)),
        (lambda a, b, f: (a * b).div_right(b), lambda a, b, f: a),
        (lambda a, b, f: (a * b).div_left(a), lambda a, b, f: b),
        (lambda a, b, f: a.sub_left(2).sub_right(1), lambda a, b, f: a - 3),
        (lambda a, b, f: a.ceildiv_left(2), lambda a, b, f: a.ceildiv_right(2)),
        (lambda a, b, f: 5 - (2 - a), lambda a, b, f: a + 3),
        (lambda a, b, f: 0 - (-a), lambda a, b, f: a),
    ],
)  # fmt: skip
def test_normal_form(one, two) -> None:  # type: ignore[no-untyped-def]
    a, b, f = SpatialDim("a"), SpatialDim("b"), FeatureDim("f", 4)
    assert one(a, b, f) is two(a, b, f)


@pytest.mark.parametrize(
    "one, two",
    [
        (lambda a, b: a * b, lambda a, b: b * a),  # merged axes in another order
        (lambda a, b: a.ceildiv_right(2) * 2, lambda a, b: a),
        (lambda a, b: a.ceildiv_right(2), lambda a, b: a // 2),
        (lambda a, b: a - b, lambda a, b: b - a),
        (lambda a, b: (a + 1).ceildiv_right(2).ceildiv_right(3), lambda a, b: a.ceildiv_right(6)),
    ],
)
def test_different_expressions(one, two) -> None:  # type: ignore[no-untyped-def]
    a, b = SpatialDim("a"), SpatialDim("b")
    assert one(a, b) is not two(a, b)


@pytest.mark.parametrize(
    "make, expected",
    [
        (lambda a, b: a - 3, [2, 0]),
        (lambda a, b: 3 - a, [0, 1]),
        (lambda a, b: 2 * a + b - 1, [10, 6]),
        (lambda a, b: a * b, [5, 6]),
        (lambda a, b: (a - 1).ceildiv_right(3), [2, 1]),
        (lambda a, b: (a - 1) // 3, [1, 0]),
        (lambda a, b: (a + b).ceildiv_right(b), [6, 2]),
        (lambda a, b: (a - b) * 2 + 1, [9, 0]),
    ],
)
def test_lengths_of_expressions(make, expected) -> None:  # type: ignore[no-untyped-def]
    a, b = SpatialDim("a"), SpatialDim("b")
    assert _lengths(make(a, b), {a: np.array([5, 2]), b: np.array([1, 3])}).tolist() == expected


def test_constants() -> None:
    a = SpatialDim("a")
    assert (a - a + 3).size == 3 and (a - a).size == 0
    with pytest.raises(ValueError, match="divided by a positive number"):
        a.ceildiv_right(0)
    with pytest.raises(TypeError, match="not with 1.5"):
        a * 1.5  # type: ignore[operator]


def test_declare_same_as() -> None:
    a, b, c = SpatialDim("a"), SpatialDim("b"), FeatureDim("c", 4)
    assert a.declared() is a
    a.declare_same_as(b)
    assert a.declared() is b and (a + 1).declared() is b + 1 and not a.declared().agrees_with(c)
    sized = FeatureDim("sized")
    c.declare_same_as(sized)  # the one with a size is the definition, whatever the order
    assert sized.declared() is c
    with pytest.raises(ValueError, match="different sizes"):
        sized.declare_same_as(FeatureDim("d", 5))


def test_match_priority() -> None:
    """It tells two axes of one tensor apart; size, lengths and arithmetic are those of the dim itself."""
    time, feat = SpatialDim("time"), FeatureDim("feat", 4)
    for dim in (time, feat, time + 1):
        marked = dim.with_priority(1)
        assert marked is dim.with_priority(1) is not dim.with_priority(2) and marked.with_priority(0) is dim
        assert marked.agrees_with(dim) and dim.agrees_with(marked) and str(marked) == str(dim)
        assert marked + 1 is dim + 1 and marked * 2 is dim * 2 and marked.unprioritized() is dim
    assert not feat.with_priority(1).agrees_with(FeatureDim("other", 4))
    assert feat.with_priority(0) is feat and batch_dim.with_priority(0) is batch_dim
    assert _lengths(time.with_priority(1), {time: np.array([3, 2])}).tolist() == [3, 2]
    other = SpatialDim("other")
    marked = time.with_priority(1)
    time.declare_same_as(other)
    assert marked.declared() is other.with_priority(1)
    with pytest.raises(ValueError, match="no match priority"):
        batch_dim.with_priority(1)


def test_copies() -> None:
    dim, time = FeatureDim("f", 4), SpatialDim("t")
    assert dim.copy() is dim and time.copy() is time and time.copy(same_as_self=False, description="x") is time
    marked = dim.copy(match_priority=1)
    assert marked is not dim and marked.match_priority == 1 and marked.agrees_with(dim)
    assert marked.copy() is marked and marked.copy(match_priority=0) is dim
    feature = time.copy(kind=DimKind.FEATURE)
    assert feature.kind is DimKind.FEATURE and feature.agrees_with(time)
    other = dim.copy(same_as_self=False, description="other")
    assert (other.description, other.dimension) == ("other", 4) and not other.agrees_with(dim)


def test_names_of_configs() -> None:
    dim = Dim(kind=DimKind.FEATURE, description="x", dimension=3)
    assert (dim.kind, dim.dimension, dim.description) == (DimKind.FEATURE, 3, "x")


@pytest.mark.parametrize(
    "make, text, size",
    [
        (lambda t, f: t.ceildiv_right(2), "ceil(time/2)", None),
        (lambda t, f: t + 2, "time+2", None),
        (lambda t, f: t * f, "time*feat", None),
        (lambda t, f: 2 * t - 3, "time*2-3", None),
        (lambda t, f: (t + 1) // 2, "floor(time+1/2)", None),
        (lambda t, f: f + f, "feat*2=8", 8),
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


@pytest.mark.slow
def test_derived_dims_are_freed() -> None:
    time = SpatialDim("time")
    key = id(time + 17)
    gc.collect()
    assert (time + 17).size is None and isinstance(key, int)


def test_batch_is_no_dynamic_dim() -> None:
    assert batch_dim.is_batch and not batch_dim.is_dynamic()
    assert SpatialDim("t").is_dynamic()
