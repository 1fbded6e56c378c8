"""Dims that the user declares for a result: names for what a layer infers, or dims with lengths of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf import Config, ConfigError, Network
from returnn_tf.tensor import FeatureDim, SpatialDim, batch_dim
from returnn_tf.util.lazy_tf import tf
from tests.layers import nets
from tests.layers.rec.searching import frame_loop

TIME, FEAT, OTHER = SpatialDim("time"), FeatureDim("feat", 4), SpatialDim("other")
EXTERN = {"data": {"dim_tags": [batch_dim, TIME, FEAT]}, "other": {"dim_tags": [batch_dim, OTHER]}}
LENS, OTHER_LENS = [5, 3], [2, 6]

#: Layers with a new dynamic axis: (options, name of the option with its dim, whether that is a list of dims).
LAYERS: dict[str, tuple[dict[str, Any], str, bool]] = {
    "pool": ({"pool_size": (2,), "padding": "same", "mode": "avg"}, "out_spatial_dims", True),
    "pool/unchanged": ({"pool_size": (2,), "strides": 1, "padding": "same", "mode": "avg"}, "out_spatial_dims", True),
    "conv": ({"filter_size": (3,), "padding": "valid", "n_out": 2, "activation": "tanh"}, "out_spatial_dims", True),
    "transposed_conv": (
        {"filter_size": (2,), "n_out": 2, "activation": None, "in_spatial_dims": ["T"]}, "out_spatial_dims", True),
    "pad": ({"axes": "T", "padding": (1, 2)}, "out_dims", True),
    "prefix_in_time": ({"repeat": 2}, "out_dim", False),
    "prefix_in_time/layer": ({"repeat": "count"}, "out_dim", False),
    "postfix_in_time": ({"repeat": 1}, "out_dim", False),
    "repeat": ({"repetitions": 2, "axis": "T"}, "out_dim", False),
    "repeat/layer": ({"repetitions": "count", "axis": "T"}, "out_dim", False),
    "slice": ({"axis": "T", "slice_start": 1}, "out_dim", False),
    "slice_nd": ({"size": "count"}, "out_spatial_dim", False),
    "slice_nd/start": ({"start": "count", "min_size": 1}, "out_spatial_dim", False),
    "window": ({"window_size": 3, "stride": 2}, "out_spatial_dim", False),
    "shift_axis": ({"axis": "T", "amount": 1}, "out_dim", False),
    "resize": ({"axis": "T", "factor": 2}, "out_dim", False),
    "concat": ({"from": [("data", "T"), ("data", "T")]}, "out_dim", False),
    "split_dims": ({"axis": "T", "dims": (-1, 2)}, "dims", False),
    "range_from_length": ({"from": "count"}, "out_spatial_dim", False),
}  # fmt: skip
HELPERS = {
    "len": {"class": "length", "axis": "T", "from": "data"},
    "count": {"class": "eval", "eval": "source(0) - 1", "from": "len"},
}


def layer_of(name: str, dim: Any) -> dict[str, Any]:
    """Return the layer dict, with the dim if it is not None."""
    options, option, is_list = LAYERS[name]
    layer = {"class": name.partition("/")[0], "from": "data", **options}
    if dim is None:
        return layer
    if option == "dims":
        return {**layer, "dims": (dim, 2)}
    return {**layer, option: [dim] if is_list else dim}


def run(layers: dict[str, Any], lens: Any = LENS, other_lens: Any = OTHER_LENS) -> Any:
    """Return the results of all layers with is_output_layer; parameters are the same in all networks."""
    settings = {"extern_data": EXTERN, "network": {**HELPERS, **layers}, "behavior_version": 21}
    net = Network.from_config(Config(settings))
    net.set_param_values({name: np.random.RandomState(0).normal(size=p.shape) * 0.5 for name, p in net.params.items()})
    rng = np.random.RandomState(1)
    feed = {"data": rng.normal(size=(2, 5, 4)).astype("float32"), "data/size0": np.array(lens, "int32")}
    other = rng.normal(size=(2, 2 + max(other_lens))).astype("float32")  # more padding than needed
    return net.run({**feed, "other": other, "other/size0": np.array(other_lens, "int32")}).layers


def new_axis(result: Any) -> int:
    """Return the index of the first dynamic axis."""
    return min(result.sizes)


WITH_OPTION = [name for name, (_, option, _) in LAYERS.items() if option]


@pytest.mark.parametrize("name", WITH_OPTION)
def test_a_free_dim_becomes_the_inferred_one(name: str) -> None:
    dim = SpatialDim("mine")
    layers = {"output": layer_of(name, dim), "len_of_dim": {"class": "length", "axis": dim, "from": "output"}}
    if name == "range_from_length":  # no batch axis
        layers["sum"] = {"class": "length", "axis": "stag:mine", "from": "output"}
    else:
        layers["sum"] = {"class": "reduce", "mode": "sum", "axis": "stag:mine", "from": "output"}
    layers = {key: {**layer, "is_output_layer": True} for key, layer in layers.items()}
    found, plain = run(layers), run({"output": layer_of(name, None)})["output"]
    axis = new_axis(plain)
    np.testing.assert_allclose(found["output"].value, plain.value, rtol=1e-6)
    assert found["output"].sizes[axis].tolist() == plain.sizes[axis].tolist() == found["len_of_dim"].value.tolist()
    if name != "range_from_length":
        mask = np.arange(plain.value.shape[axis]) < plain.sizes[axis][:, None]
        mask = mask.reshape([2] + [mask.shape[1] if a == axis else 1 for a in range(1, plain.value.ndim)])
        np.testing.assert_allclose(found["sum"].value, (plain.value * mask).sum(axis), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lens", [LENS, [5, 5]])
@pytest.mark.parametrize("name", WITH_OPTION)
def test_a_dim_with_lengths_takes_the_place_of_the_inferred_one(name: str, lens: list[int]) -> None:
    plain = run({"output": layer_of(name, None)}, lens)["output"]
    axis = new_axis(plain)
    layers = {
        "output": layer_of(name, OTHER),
        "as_float": {"class": "cast", "dtype": "float32", "from": "output"},
        "with_other": {"class": "combine", "kind": "add", "from": ["as_float", "data:other"]},
    }
    layers["with_other"].update({"is_output_layer": True, "allow_broadcast_all_sources": True})
    found = run(layers, lens, plain.sizes[axis])
    output = found["output"]
    assert output.sizes[axis].tolist() == plain.sizes[axis].tolist()
    both = min(output.value.shape[axis], plain.value.shape[axis])
    got, rest = np.split(output.value, [both], axis=axis)
    np.testing.assert_allclose(got, np.split(plain.value, [both], axis=axis)[0], rtol=1e-6)
    assert not rest.any()
    assert len(found["with_other"].axes) == max(len(output.axes), 2)  # one axis, not two


@pytest.mark.parametrize("name", WITH_OPTION)
def test_other_lengths_than_those_of_the_declared_dim(name: str) -> None:
    plain = run({"output": layer_of(name, None)})["output"]
    lens = plain.sizes[new_axis(plain)] + [0, 1]
    message = (
        r"Layer output .* must have the lengths of other\. Declare another dim .*"
        r"sequences of the batch, counted from 0:\] \[1\] \[lengths:\] \[%d\] \[instead of:\] \[%d\]"
        % (lens[1] - 1, lens[1])
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        run({"output": layer_of(name, OTHER)}, other_lens=lens)


@pytest.mark.parametrize("good", [True, False])
def test_lengths_by_frame_of_a_declared_dim(good: bool) -> None:
    """All frames of a sequence must have its length there; those in the padding do not count."""
    text = "0 * tf.range(5)[None] + tf.constant([[2], [0]])" if good else "tf.range(5)[None]"
    layers = {
        "shape": {"class": "reduce", "mode": "sum", "axis": "F", "from": "data"},
        "start": {"class": "eval", "eval": "tf.cast(0 * source(0), tf.int32) + " + text, "from": "shape",
            "out_type": {"dtype": "int32"}},
        "output": {"class": "slice_nd", "start": "start", "from": "data", "out_spatial_dim": OTHER},
    }  # fmt: skip
    if good:
        assert run(layers, other_lens=[3, 3])["output"].sizes[2].tolist() == [3, 3]
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"Layer output .* must have the lengths of other"):
            run(layers, other_lens=[3, 3])


@pytest.mark.parametrize("name", WITH_OPTION)
def test_a_static_dim_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match="Layer 'output' "):
        run({"output": layer_of(name, SpatialDim("static", 3))})


def test_two_layers_can_declare_one_dim() -> None:
    dim = SpatialDim("half")
    pool = {"class": "pool", "pool_size": (2,), "padding": "same", "out_spatial_dims": [dim], "from": "data"}
    layers = {"a": {**pool, "mode": "max"}, "b": {**pool, "mode": "avg"}}
    found = run({**layers, "output": {"class": "combine", "kind": "add", "from": ["a", "b"]}})
    assert found["output"].sizes[1].tolist() == [3, 2]
    sliced = {"class": "slice_nd", "size": "count", "from": "data", "out_spatial_dim": SpatialDim("short")}
    second = {**sliced, "size": "half", "out_spatial_dim": sliced["out_spatial_dim"]}
    layers = {"half": {"class": "eval", "eval": "source(0) // 2", "from": "len"}, "a": sliced, "b": second}
    layers["output"] = {"class": "combine", "kind": "add", "from": ["a", "b"]}
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Layer b .* must have the lengths of short"):
        run(layers)  # the first layer defines the lengths
    layers["half"]["eval"] = "source(0) - 1"
    assert run(layers)["output"].sizes[1].tolist() == [4, 2]


def test_an_expression_of_a_free_dim() -> None:
    dim = SpatialDim("mine")
    layers = {
        "half": {"class": "pool", "mode": "max", "pool_size": (2,), "padding": "same", "out_spatial_dims": [dim],
            "from": "data"},
        "double": {"class": "resize", "axis": "T", "factor": 2, "from": "half", "out_dim": 2 * dim},
        "output": {"class": "length", "axis": dim * 2 + 1, "from": "double"},
        "range": {"class": "range_in_axis", "axis": dim + dim, "is_output_layer": True},
    }  # fmt: skip
    found = run(layers)
    assert found["output"].value.tolist() == [7, 5]
    assert found["range"].value.tolist() == [0, 1, 2, 3, 4, 5] and found["range"].sizes[0].tolist() == [6, 4]


@pytest.mark.parametrize("size, features", [(None, 3), (3, 3), (None, None)])
def test_out_dim_without_size_gets_it(size: Any, features: Any) -> None:
    dim = FeatureDim("out", size)
    layers: dict[str, Any] = {"a": {"class": "linear", "activation": None, "out_dim": dim, "from": "data"}}
    if features:
        layers["a"]["n_out"] = features
    layers["output"] = {"class": "reduce", "mode": "sum", "axis": dim, "from": "a"}
    if features is None:
        with pytest.raises(ConfigError, match=r"Layer 'a' .*out_dim .* static size"):
            run(layers)
    else:
        assert run(layers)["output"].axes == ("B", "T")


@pytest.mark.parametrize(
    "text", ["stag:p1:conv:s0", "stag:P1", "tag:p1", "stag:p", "stag:time", "stag-single:0:p1", "stag:p2"]
)
def test_names_by_layers(text: str) -> None:
    pool = {"class": "pool", "mode": "max", "pool_size": (2,), "padding": "same"}
    layers = {"p1": {**pool, "from": "data"}, "p2": {**pool, "strides": 1, "from": "p1"}}
    layers["output"] = {"class": "reduce", "mode": "max", "axis": text, "from": "p2"}
    assert run(layers)["output"].axes == ("B", "F")


@pytest.mark.parametrize(
    "name, text",
    [
        ("slice_nd", "sliced-time:x"), ("repeat/layer", "repeated:x"), ("split_dims", "x_split_dims0"),
        ("range_from_length", "x_input_len"), ("pool", "x:conv:s0"), ("conv", "x:conv:s0"),
    ],
)  # fmt: skip
def test_automatic_names(name: str, text: str) -> None:
    layers = {"x": layer_of(name, None), "output": {"class": "length", "axis": "stag:" + text, "from": "x"}}
    assert run(layers)["output"].axes == ("B",)


def test_a_name_of_the_unchanged_axis_yields_to_others() -> None:
    pool = {"class": "pool", "mode": "max", "padding": "same", "in_spatial_dims": ["T"]}
    layers: dict[str, Any] = {
        "same": {**pool, "pool_size": (2,), "strides": 1, "from": "data"},
        "twice": {"class": "expand_dims", "axis": "spatial", "from": "same", "dim": SpatialDim("same-size", 2)},
        "output": {"class": "reduce", "mode": "max", "axis": "stag:same", "from": "twice"},
    }
    assert run(layers)["output"].axes == ("B", "T", "F")


def test_the_automatic_dim_of_a_key_by_its_name() -> None:
    """Programs that write configs declare the time axis of a key that has no declared dims by its description."""
    time, other = (SpatialDim("time:var:extern_data:%s" % key) for key in ("data", "nothing"))
    layer = {"class": "rand_int", "shape": (FEAT, batch_dim, time, 3), "minval": 3, "maxval": 10}
    settings = {"extern_data": {"data": {"dim": 5}}, "network": {"output": layer}}
    net = Network.from_config(Config(settings))
    assert net.plan.by_path()["output"].output.axis_kinds == ("S", "B", "T", "F")
    found = net.run({"data": np.zeros((2, 5, 5), "float32"), "data/size0": LENS}).layers["output"]
    assert found.value.shape == (2, 4, 5, 3) and found.sizes[2].tolist() == LENS
    with pytest.raises(ConfigError, match="the lengths of the dim time:nothing are not known here"):
        Network.from_config(Config({**settings, "network": {"output": {**layer, "shape": (other,)}}}))


def _pool(size: int, source: str, dim: Any, axis: Any = TIME) -> dict[str, Any]:
    pool = {"class": "pool", "mode": "max", "pool_size": (size,), "padding": "same", "from": source}
    return {**pool, "in_spatial_dims": [axis], "out_spatial_dims": [dim]}


DOWN = SpatialDim("down")


@pytest.mark.parametrize(
    "layers, message",
    [
        ({"a": _pool(2, "data", DOWN), "output": _pool(3, "data", DOWN)},
         r"'output' .* dim down, which is ceil\(time/2\), does not match, the result has ceil\(time/3\) there"),
        ({"a": _pool(2, "data", DOWN), "output": _pool(2, "a", DOWN, DOWN)},
         r"down, which is ceil\(time/2\), does not match, the result has ceil\(time/4\)"),
        ({"output": _pool(2, "data", TIME)}, r"the declared dim time does not match, the result has ceil\(time/2\)"),
        ({"output": {"class": "repeat", "axis": "T", "repetitions": 2, "out_dim": TIME, "from": "data"}},
         r"the declared dim time does not match, the result has time\*2"),
        ({"output": {"class": "pad", "axes": "T", "padding": (1, 2), "out_dims": [TIME], "from": "data"}},
         r"the declared dim time does not match, the result has time\+3"),
        ({"output": {"class": "slice", "axis": "T", "slice_start": 1, "out_dim": TIME, "from": "data"}},
         r"the declared dim time does not match, the result has time-1"),
        ({"output": {"class": "merge_dims", "axes": [TIME, FEAT, TIME], "from": "data"}}, "names time of .* twice"),
        ({"output": {"class": "merge_dims", "axes": [FEAT, "F"], "from": "data"}}, "names feat=4 of .* twice"),
    ],
)  # fmt: skip
def test_a_dim_used_twice(layers: dict[str, Any], message: str) -> None:
    """The message has the names that the config, or the program that wrote it, gave to the dims."""
    layers = {name: {**layer, "is_output_layer": True} for name, layer in layers.items()}
    with pytest.raises(ConfigError, match=message):
        run(layers)


@pytest.mark.parametrize("good", [True, False])
def test_lengths_of_hypotheses(good: bool) -> None:
    """Behind a search, each hypothesis has to have the length that the declared dim has for its sequence."""
    network = {
        **frame_loop(),
        "len": {"class": "length", "axis": nets.TIME, "from": "data"},
        "output": {"class": "slice_nd", "size": "len", "axis": "T", "from": "loop", "out_spatial_dim": OTHER},
    }
    extern_data = {**nets.EXTERN_DATA, "more": {"dim_tags": [batch_dim, OTHER]}}
    net = Network.from_config(nets.config_of(network, extern_data=extern_data), search=True)
    lens = nets.LENS + [0, 0 if good else 1, 0]
    feed = {**nets.feed(more=np.ones([3, 6])), "more/size0": lens}
    if good:
        assert net.run(feed).layers["output"].sizes[1].tolist() == np.repeat(lens, 3).tolist()
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"Layer output .* of other.* \[3 4 5\] \[lengths:\]"):
            net.run(feed)
