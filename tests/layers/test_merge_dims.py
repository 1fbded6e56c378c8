"""`merge_dims` against numpy, by axes and behavior version."""

import numpy as np
import pytest

from tests.layers.nets import FEATURE, LENS, STATIC, TIME, fails, feed, gradient, output, template

WIDE = {"class": "merge_dims", "from": "data:wide"}


@pytest.mark.parametrize(
    "options,version,axes,expected",
    [
        ({"axes": [STATIC, FEATURE]}, 21, "B,T,F", lambda x: x.reshape(3, 4, 6)),
        ({"axes": [FEATURE, STATIC]}, 21, "B,T,F", lambda x: x.transpose(0, 1, 3, 2).reshape(3, 4, 6)),
        ({"axes": ["F", "static:0"]}, 0, "B,T,F", lambda x: x.reshape(3, 4, 6)),
        ({"axes": "static"}, 0, "B,T,F", lambda x: x.reshape(3, 4, 6)),
        ({"axes": "static", "keep_order": False}, 21, "B,T,F", lambda x: x.reshape(3, 4, 6)),
        ({"axes": "except_time", "keep_order": False}, 5, "B,T,F", lambda x: x.reshape(3, 4, 6)),
        ({"axes": "except_batch"}, 0, "B,F", lambda x: x.reshape(3, 24)),
        ({"axes": [TIME, STATIC]}, 21, "B,T,F", lambda x: x.reshape(3, 8, 3)),
        ({"axes": [STATIC, TIME]}, 21, "B,T,F", lambda x: x.transpose(0, 2, 1, 3).reshape(3, 8, 3)),
        ({"axes": ["B", "T"]}, 21, "B,S,F", lambda x: x.reshape(12, 2, 3)),
        ({"axes": ["T", "B"]}, 21, "B,S,F", lambda x: x.transpose(1, 0, 2, 3).reshape(12, 2, 3)),
        ({"axes": "BT"}, 0, "B,S,F", lambda x: x.reshape(12, 2, 3)),
        ({"axes": ["F"]}, 21, "B,T,S,F", lambda x: x),
        ({"axes": [STATIC, FEATURE], "n_out": 6}, 21, "B,T,F", lambda x: x.reshape(3, 4, 6)),
    ],
)
def test_values(options, version, axes, expected):
    result = output({**WIDE, **options}, behavior_version=version)
    assert ",".join(result.axes) == axes
    np.testing.assert_array_equal(result.value, expected(feed()["wide"]))


def test_lengths_are_multiplied():
    result = output({**WIDE, "axes": [TIME, STATIC]})
    np.testing.assert_array_equal(result.sizes[1], LENS * 2)


def test_dims_are_those_of_the_product():
    """Two merges of the same dims fit together, and the product may be named in the config."""
    two = {"a": {**WIDE, "axes": [TIME, STATIC]}, "output": {"class": "combine", "kind": "add", "from": ["a", "a"]}}
    assert template(two).time_dim is TIME * STATIC
    reduced = {"a": {**WIDE, "axes": [STATIC, FEATURE]}, "output": {"class": "squeeze", "axis": [], "from": "a",
               "allow_no_op": True}}  # fmt: skip
    assert template(reduced).dims[2] is STATIC * FEATURE


def test_gradient():
    """Padding counts too, since it is part of the merged batch."""
    x = feed()["data"]
    got = gradient({"class": "merge_dims", "axes": ["B", "T"], "from": "a"})
    np.testing.assert_allclose(got, (2 * x).sum((0, 1)), rtol=1e-5)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"axes": "BT"}, r"'BT' defines none .* Give a list of axes, e.g. \['B', 'T'\]"),
        ({"axes": [STATIC, FEATURE], "n_out": 5}, "n_out is 5, but the merged axis has"),
        ({"axes": ["X"]}, "Axis 'X' is not a known name"),
    ],
)
def test_errors(options, message):
    fails({**WIDE, **options}, message)
