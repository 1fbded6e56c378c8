"""extern_data and num_inputs/num_outputs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError
from returnn_tf.tensor import (
    Dim,
    FeatureDim,
    SpatialDim,
    batch_dim,
    empty_data_keys,
    extern_data_options,
    parse_data_key,
    parse_extern_data,
)

TIME, FEATURE = SpatialDim("time"), FeatureDim("feature", 5)


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
        ({"shape": [None, 4], "feature_dim_axis": -1}, "BTF", 4),
        ({"shape": ()}, "B", None),
        ({"shape": (), "batch_dim_axis": None}, "", None),
        ({"shape": (None, None, 3), "dim": 3}, "BTTF", 3),
        ({"sparse": True}, "BT", None),
        ({"dim": None, "sparse": True}, "BT", None),
        ({"sparse_dim": 7}, "BT", 7),
        ({"sparse_dim": FeatureDim("labels", 7), "sparse": True}, "BT", 7),
        ({"shape": (None, 4), "dim": 9, "sparse": True}, "BTS", 9),
        ({"dims": [batch_dim, TIME, FEATURE], "version": 1}, "BTF", 5),
        ({"dims": [batch_dim, TIME, FEATURE]}, "BTS", None),
        ({"dims": [batch_dim, TIME, FEATURE], "feature_dim_axis": 2}, "BTF", 5),
        ({"dims": [batch_dim, TIME, FEATURE], "feature_dim": FEATURE}, "BTF", 5),
        ({"dim_tags": [batch_dim, TIME, FEATURE], "version": 2}, "BTS", None),
        ({"dims": [batch_dim, TIME], "sparse_dim": FEATURE}, "BT", 5),
        ({"dim": 5, "version": 2}, "BTS", None),
        ({"dim": 5, "batch": None, "beam": None, "control_flow_ctx": None}, "BTF", 5),
        ({"dim": 5, "auto_create_placeholders": True, "undefined": False}, "BTF", 5),
        ({"feature_dim_axis": None}, "BT", None),
        ({"feature_dim_axis": None, "time_dim_axis": None}, "B", None),
        ({"dim_tags": [TIME, batch_dim], "sparse": True, "dim": 8}, "TB", 8),
        ({"dim_tags": [batch_dim, FEATURE, TIME], "feature_dim": FEATURE, "shape": (5, None)}, "BFT", 5),
        ({"dim": np.int64(3), "sparse": np.bool_(True)}, "BT", 3),
        ((40, 3), "BTTF", 40),
        (30, "BT", 30),
        ({"dim": 3, "name": "x", "available_for_inference": False, "vocab": {"vocab_file": "v"}}, "BTF", 3),
    ],
)
def test_axes(options: Any, kinds: str, dim: int) -> None:
    data = parse_data_key("data", options)
    assert "".join(data.axis_kinds) == kinds
    assert data.dim == dim


@pytest.mark.parametrize(
    "options, time_axis",
    [
        ({"dims": [batch_dim, TIME, FEATURE], "version": 1}, 1),
        ({"dims": [batch_dim, TIME, FEATURE]}, None),
        ({"dims": [batch_dim, TIME, FEATURE], "time_dim_axis": 1}, 1),
        ({"dim_tags": [batch_dim, TIME, FEATURE]}, 1),
        ({"dim_tags": [batch_dim, TIME, FEATURE], "version": 2}, None),
        ({"shape": (None, 4), "version": 2}, None),
        ({"shape": (None, 4), "version": 2, "time_dim_axis": 1}, 1),
    ],
)
def test_time_axis_by_version(options: Any, time_axis: int) -> None:
    """Dims mark nothing by default, older forms the first dynamic axis."""
    assert parse_data_key("data", options).time_axis == time_axis


def test_time_axes_of_two_keys_differ() -> None:
    datas = parse_extern_data({"data": {"dim": 3}, "classes": {"dim": 3, "sparse": True}})
    assert datas["data"].time_dim is not datas["classes"].time_dim


def test_keys_share_a_dim() -> None:
    datas = parse_extern_data(
        {
            "data": {"dim": 5, "same_dim_tags_as": {"T": TIME, "F": FEATURE}},
            "classes": {"dim": 3, "sparse": True, "same_dim_tags_as": {"t": TIME}},
            "image": {"shape": (None, 2, 5), "feature_dim": FEATURE},
        }
    )
    assert datas["data"].dims == (batch_dim, TIME, FEATURE)
    assert datas["classes"].time_dim is TIME
    assert datas["image"].feature_dim is FEATURE


@pytest.mark.parametrize(
    "config, expected",
    [
        ({"num_inputs": 40, "num_outputs": 9001}, {"data": (40, 2), "classes": (9001, 1)}),
        ({"num_inputs": 40, "num_outputs": (9001, 1)}, {"data": (40, 2), "classes": (9001, 1)}),
        ({"num_inputs": 40, "num_outputs": {"bpe": [1030, 1]}}, {"data": (40, 2), "bpe": (1030, 1)}),
        ({"num_inputs": 40, "num_outputs": {"data": (9, 1)}}, {"data": (9, 1)}),
        ({"num_inputs": 0, "num_outputs": {"bpe": {"dim": 3}}}, {"bpe": {"dim": 3}}),
        ({"num_inputs": 40, "num_outputs": {"classes": (0, 1)}}, {"data": (40, 2)}),
        ({"num_inputs": 40, "num_outputs": 0}, {"data": (40, 2)}),
    ],
)
def test_old_keys(config: dict[str, Any], expected: dict[str, tuple[int, int]]) -> None:
    assert extern_data_options(config) == expected


@pytest.mark.parametrize(
    "config, key, setting",
    [
        ({"num_inputs": 40, "num_outputs": {"classes": (0, 1)}}, "classes", "num_outputs['classes']"),
        ({"num_inputs": 40, "num_outputs": 0}, "classes", "num_outputs"),
        ({"num_inputs": 0, "num_outputs": {"bpe": 3}}, "data", "num_inputs"),
        ({"num_inputs": 3, "num_outputs": {"data": 0}}, "data", "num_outputs['data']"),
    ],
)
def test_keys_of_size_0(config: dict[str, Any], key: str, setting: str) -> None:
    """They do not exist, and an error about one says why."""
    assert key not in extern_data_options(config)
    assert empty_data_keys(config) == {key: "%s is 0, so there is no such data key." % setting}
    output = {"class": "softmax", "n_out": 2, "from": "data", "loss": "ce", "target": "classes"}
    with pytest.raises(ConfigError, match=re.escape(empty_data_keys(config)[key])):
        plan_from_config(Config({**config, "network": {"output": output}}))


@pytest.mark.parametrize(
    "config, message",
    [
        ({"extern_data": 3}, r"extern_data must be a dict .*, not 3"),
        ({"extern_data": {3: {"dim": 4}}}, r"extern_data: a data key must be a name such as 'data', got 3"),
        ({"extern_data": {" ": {"dim": 4}}}, r"a data key must be a name such as 'data', got ' '"),
        ({"num_inputs": -3}, r"num_inputs must be a number of features or labels, got -3"),
        ({"num_inputs": (40, 2)}, r"num_inputs must be a number of features or labels, got \(40, 2\)"),
        ({"num_outputs": "x"}, r"num_outputs must be a number .*\(number, number of axes\), got 'x'"),
        ({"num_outputs": {"bpe": True}}, r"num_outputs\['bpe'\] must be a number .*, got True"),
        ({"num_outputs": {"bpe": (9, -1)}}, r"num_outputs\['bpe'\] must be a number .*, got \(9, -1\)"),
        ({}, r"does not declare its data"),
    ],
)
def test_errors_name_the_setting(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        extern_data_options(config)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"dim": 3, "dtype": "flaot32"}, "option 'dtype' is 'flaot32'. Did you mean 'float32'"),
        ({"dim": 3, "dtype": 3}, "option 'dtype' must be a string or None, got 3"),
        ({"dimm": 3}, "unknown option 'dimm'. Did you mean 'dim'"),
        ({3: 3}, "unknown option 3"),
        ({}, "give 'dim'"),
        ({"dim": None}, "give 'dim'"),
        ({"shape": (None, 4), "dim": 5}, r"dim is 5, but the shape \(None, 4\) has a feature axis of size 4"),
        ({"shape": (None,), "dim": 5}, r"dim is 5, but the shape \(None,\) has no feature axis"),
        ({"dim": 0}, "option 'dim' must be from 1 to 2147483647, got 0"),
        ({"dim": "3"}, "option 'dim' must be a whole number or None, got '3'"),
        ({"dim": True}, "option 'dim' must be a whole number or None, got True"),
        ({"shape": 7}, "option 'shape' must be .*, got 7"),
        ({"shape": (None, -4)}, r"option 'shape' must be from 1 to 2147483647, got \(None, -4\)"),
        ({"shape": (None, "F")}, "option 'shape' must be .*, got"),
        ({"dim": 3, "feature_dim_axis": "F"}, "option 'feature_dim_axis' must be .*, got 'F'"),
        ({"dim": 3, "time_dim_axis": 4}, "time_dim_axis is 4, but there are only 3 axes, counted with batch"),
        ({"dim": 3, "feature_dim_axis": -4}, "feature_dim_axis is -4, but there are only 3 axes"),
        ({"dim": 3, "batch_dim_axis": 3}, "batch_dim_axis is 3, but there are only 3 axes"),
        ({"dim": 3, "time_dim_axis": 0}, "axis 0 is the batch axis, so it is neither time nor feature axis"),
        ({"dim": 3, "time_dim_axis": False}, "option 'time_dim_axis' must be .*, got False"),
        ({"dim": 3, "sparse": "yes"}, "option 'sparse' must be True, False or None, got 'yes'"),
        ({"dim": 3, "sparse": True, "dtype": "float32"}, "must be an int type or bool, not 'float32'"),
        ({"sparse_dim": 3, "dim": 4}, "dim is 4, but sparse_dim has 3 labels"),
        ({"sparse_dim": 0}, "the number of labels of sparse_dim must be from 1 to 2147483647, got 0"),
        ({"sparse_dim": 3, "sparse": False}, "sparse is False, but there is sparse_dim"),
        ({"dim_tags": 3}, "option 'dim_tags' must be .*, got 3"),
        ({"dim_tags": [batch_dim, 3]}, "option 'dim_tags' must be"),
        ({"dim_tags": [batch_dim, batch_dim]}, "dim_tags must hold batch_dim at most once"),
        ({"dim_tags": [batch_dim, TIME], "dims": [batch_dim, TIME]}, "give either dims or dim_tags"),
        ({"dim_tags": [batch_dim, TIME, FEATURE], "shape": (None, 4)}, r"shape is \(None, 4\), but dim_tags give"),
        ({"dims": [batch_dim, TIME, FEATURE], "shape": (None, 4)}, r"shape is \(None, 4\), but dims give"),
        ({"dim_tags": [batch_dim, TIME, FEATURE], "dim": 4}, "dim is 4, but the shape .* a feature axis of size 5"),
        ({"dim_tags": [batch_dim, TIME], "feature_dim": FEATURE}, "feature_dim .* is not among dim_tags"),
        ({"dim": 4, "feature_dim": FEATURE}, "the axis 'F' is .*, so it can't have the dim feature=5"),
        ({"dim": 3, "same_dim_tags_as": {"T": FEATURE}}, "the axis 'T' is .*, so it can't have the dim feature=5"),
        ({"dim": 3, "same_dim_tags_as": {"X": TIME}}, "Axis 'X' is not a known name"),
        ({"dim": 3, "same_dim_tags_as": TIME}, "option 'same_dim_tags_as' must be"),
        ((40, 0), r"the number of axes in \(40, 0\) must be 1 for labels or 2 for vectors"),
        ((0, 2), "option 'shape' must be from 1|option 'dim' must be from 1 to 2147483647, got 0"),
        (-5, "option 'dim' must be from 1 to 2147483647, got -5"),
        (False, "expected a dict such as {'dim': 40}, got False"),
        ("x", "expected a dict"),
        (None, "expected a dict"),
    ],
)
def test_errors_name_the_key(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as info:
        parse_data_key("speech", options)
    assert "extern_data['speech']" in str(info.value)


def test_same_dim_tags_as_gives_a_free_dim_its_size() -> None:
    feature, time = FeatureDim("shared"), SpatialDim("shared time")
    options = {"dim": 4, "same_dim_tags_as": {"F": feature, "T": time}}
    sized: dict[Dim, Dim] = {}
    first, second = (parse_data_key(key, options, sized=sized) for key in ("data", "other"))
    assert sized[feature].size == 4
    assert first.dims == second.dims == (batch_dim, time, sized[feature])
    assert feature.declared().size is None  # other networks may give it another size
    with pytest.raises(ConfigError, match=r"extern_data\['third'\]: the axis 'F' is .*, so it can't have the dim"):
        parse_data_key("third", {"dim": 5, "same_dim_tags_as": {"F": feature}}, sized=sized)


@pytest.mark.parametrize("order", [(4, 5), (5, 4)])
def test_a_network_does_not_define_dims_for_others(order: tuple[int, int]) -> None:
    """Two networks with the same dims are planned alike in either order, though they give a dim different sizes."""
    features, time = FeatureDim("features"), SpatialDim("frames")
    expected = {4: ("[B, T|frames, F|features=4] float32", 20), 5: ("[B, T|frames, F|features=5] float32", 30)}

    def planned(size: int) -> tuple[str, int]:
        plan = plan_from_config(
            Config(
                {
                    "extern_data": {
                        "data": {"dim": size, "same_dim_tags_as": {"T": time, "F": features}},
                        "other": {"dim": size, "same_dim_tags_as": {"T": time, "F": features}},
                    },
                    "network": {
                        "sum": {"class": "combine", "kind": "add", "from": ["data", "data:other"]},
                        "output": {"class": "linear", "activation": None, "from": "sum", "out_dim": features},
                    },
                }
            )
        )
        node = next(node for node in plan.nodes if node.path == "output")
        return str(node.output), sum(spec.size for spec in node.owned)

    found = {size: planned(size) for size in (*order, order[0])}
    assert found == expected
