"""extern_data and num_inputs/num_outputs."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import pytest

from returnn_tf.config import ConfigError
from returnn_tf.tensor import extern_data_options, parse_data_key, parse_extern_data


@pytest.mark.parametrize(
    "options, kinds, dim",
    [
        ({"dim": 3}, "BTF", 3),
        ({"dim": 3, "sparse": True}, "BT", 3),
        ({"shape": (None, 4)}, "BTF", 4),
        ({"shape": (4, None), "batch_dim_axis": 0, "feature_dim_axis": 1, "time_dim_axis": 2}, "BFT", 4),
        ({"shape": (None, 4), "time_dim_axis": 0, "batch_dim_axis": 1}, "TBF", 4),
        ({"shape": (4,), "time_dim_axis": None}, "BF", 4),
        ({"shape": (), "dim": 5, "sparse": True, "time_dim_axis": None}, "B", 5),
        ({"shape": (None, 2, 3), "dim": 3}, "BTSF", 3),
        ((40, 2), "BTF", 40),
        ((9001, 1), "BT", 9001),
        ({"shape": (None,), "dtype": "int32", "feature_dim_axis": None}, "BT", None),
    ],
)
def test_axes(options: Any, kinds: str, dim: int) -> None:
    data = parse_data_key("data", options)
    assert "".join(data.axis_kinds) == kinds
    assert data.dim == dim


def test_time_axes_of_two_keys_differ() -> None:
    datas = parse_extern_data({"data": {"dim": 3}, "classes": {"dim": 3, "sparse": True}})
    assert datas["data"].time_dim is not datas["classes"].time_dim


@pytest.mark.parametrize(
    "config, expected",
    [
        ({"num_inputs": 40, "num_outputs": 9001}, {"data": (40, 2), "classes": (9001, 1)}),
        ({"num_inputs": 40, "num_outputs": {"bpe": (1030, 1)}}, {"data": (40, 2), "bpe": (1030, 1)}),
    ],
)
def test_old_keys(config: Dict[str, Any], expected: Dict[str, Tuple[int, int]]) -> None:
    assert extern_data_options(config) == expected


@pytest.mark.parametrize(
    "options, message",
    [
        ({"dim": 3, "dtype": "flaot32"}, "unknown dtype 'flaot32'. Did you mean 'float32'"),
        ({"dimm": 3}, "unknown option 'dimm'. Did you mean 'dim'"),
        ({}, "give 'dim'"),
        ({"shape": (None, 4), "dim": 5}, "dim is 5, but the last size of shape .* is 4"),
        ({"sparse": True}, "sparse data needs 'dim'"),
        ("x", "expected a dict"),
    ],
)
def test_errors_name_the_key(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as info:
        parse_data_key("speech", options)
    assert "extern_data['speech']" in str(info.value)
