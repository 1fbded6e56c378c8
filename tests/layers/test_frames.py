"""Layers which add, move, repeat or remove frames."""

import numpy as np
import pytest
import tensorflow as tf

from returnn_tf.config import ConfigError
from returnn_tf.tensor import SpatialDim
from tests.layers.nets import LENS, STATIC, TIME, fails, feed, gradient, net_of, output, run, template

X = feed()["data"]
NEW = SpatialDim("new")


def layer(name, **options):
    return {"class": name, "from": "data", **options}


def check(result, rows):
    """Check that the frames of every sequence are these rows."""
    np.testing.assert_array_equal(result.sizes[1], [len(row) for row in rows])
    assert result.value.shape[1] >= max(len(row) for row in rows)
    for value, row in zip(result.value, rows):
        np.testing.assert_allclose(value[: len(row)], row, rtol=1e-5, atol=1e-6)


def test_prefix_of_labels():
    result = output(layer("prefix_in_time", prefix=7, repeat=2, **{"from": "data:labels"}))
    assert result.value.dtype == np.int32
    check(result, [[7, 7, *feed()["labels"][b, :n]] for b, n in enumerate(LENS)])


@pytest.mark.parametrize("time_major", [False, True])
def test_prefix_with_another_number_per_sequence(time_major):
    network = {"output": layer("prefix_in_time", prefix=0.5, repeat="data:numbers")}
    if time_major:
        network["w"] = layer("window", window_size=1)
        network["t"] = {"class": "reduce", "mode": "sum", "axis": "stag:window", "from": "w"}
        network["output"]["from"] = "t"
    repeats = feed()["numbers"]
    rows = [np.concatenate([np.full([r, 3], 0.5), X[b, :n]]) for b, (n, r) in enumerate(zip(LENS, repeats))]
    check(run(network)["output"], rows)


def test_prefix_with_the_lengths_of_another_layer():
    network = {
        "base": layer("prefix_in_time", prefix=0, repeat=2, out_dim=NEW),
        "output": layer("prefix_in_time", prefix=0.5, repeat="two", size_base="base"),
        "two": {"class": "eval", "eval": "source(0) * 0 + 2", "from": "data:numbers"},
    }
    assert template(network).dims[1] is template({"output": network["base"]}).dims[1]
    check(run(network)["output"], [np.concatenate([np.full([2, 3], 0.5), X[b, :n]]) for b, n in enumerate(LENS)])


@pytest.mark.parametrize("postfix", [0.25, "mean"])
def test_postfix_is_behind_the_last_frame(postfix):
    network = {
        "mean": layer("reduce", mode="mean", axis="T"),
        "output": layer("postfix_in_time", postfix=postfix, repeat=2),
    }
    rows = []
    for b, n in enumerate(LENS):
        value = X[b, :n].mean(0) if postfix == "mean" else np.full([3], 0.25)
        rows.append(np.concatenate([X[b, :n], [value, value]]))
    check(run(network)["output"], rows)


def test_postfix_of_a_static_axis():
    result = output(layer("postfix_in_time", axis=STATIC, postfix=0.5, **{"from": "data:wide"}))
    np.testing.assert_array_equal(result.value[:, :, :2], feed()["wide"])
    assert result.value.shape[2] == 3 and (result.value[:, :, 2] == 0.5).all()


@pytest.mark.parametrize(
    "amount,options,lens,frames",
    [
        (2, {}, [4, 4, 4], 4),
        (-1, {}, [3, 1, 2], 4),
        (2, {"adjust_size_info": False}, LENS, 4),
        (1, {"pad": False}, [3, 3, 3], 3),
        (-1, {"pad": False}, [3, 1, 2], 3),
        (-3, {"pad": False, "adjust_size_info": False}, [1, 1, 1], 1),
        (0, {}, LENS, 4),
        (9, {"pad_value": 0.5}, [4, 4, 4], 4),
    ],
)
def test_shift(amount, options, lens, frames):
    result = output(layer("shift_axis", axis="T", amount=amount, **options))
    np.testing.assert_array_equal(result.sizes[1], lens)
    value = options.get("pad_value", 0)
    expected = np.full([3, 4, 3], value, "float32")
    if abs(amount) < 4:
        source = X[:, : 4 - amount] if amount >= 0 else X[:, -amount:]
        expected[:, max(amount, 0) : max(amount, 0) + source.shape[1]] = source
        if not options.get("pad", True):
            expected = source
    assert result.value.shape[1] == frames
    np.testing.assert_array_equal(result.value, expected)


def test_shift_of_a_static_axis():
    wide = {"from": "data:wide", "axis": STATIC, "amount": 1}
    assert output(layer("shift_axis", pad=False, **wide)).value.shape == (3, 4, 1, 3)
    value = output(layer("shift_axis", adjust_size_info=False, **wide)).value
    np.testing.assert_array_equal(value[:, :, 1], feed()["wide"][:, :, 0])
    fails(layer("shift_axis", **wide), "keeps its size with pad")


def test_shift_of_bools():
    network = {
        "b": layer("compare", kind="greater", value=0),
        "output": layer("shift_axis", axis="T", amount=1, **{"from": "b"}),
    }
    np.testing.assert_array_equal(run(network)["output"].value[:, 1:], X[:, :3] > 0)


@pytest.mark.parametrize("kind", ["nn", "linear", "cubic"])
@pytest.mark.parametrize("factor", [2, 1.5, 0.5])
def test_resize(kind, factor):
    result = output(layer("resize", axis="T", factor=factor, kind=kind))
    frames = int(4 * factor)
    np.testing.assert_array_equal(result.sizes[1], np.ceil(LENS * factor))
    position = np.arange(frames) * (4 / frames)
    low = np.floor(position).astype(int)
    if kind == "nn":
        expected = X[:, low]
    elif kind == "linear":
        share = (position - low)[:, None]
        expected = X[:, low] * (1 - share) + X[:, np.minimum(low + 1, 3)] * share
    else:
        function = tf.compat.v1.image.resize_bicubic
        expected = function(X[:, :, None], [frames, 1]).numpy()[:, :, 0]
    np.testing.assert_allclose(result.value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.sampled
@pytest.mark.parametrize("factor,dtype", [(1.5, "float32"), (0.5, "float32"), (2, "int32")])
@pytest.mark.parametrize("kind", ["nn", "linear"])
def test_resize_by_a_layer(kind, factor, dtype):
    network = {
        "f": {"class": "constant", "value": factor, "dtype": dtype},
        "output": layer("resize", axis="T", factor="f", kind=kind),
    }
    result, expected = run(network)["output"], output(layer("resize", axis="T", factor=factor, kind=kind))
    np.testing.assert_array_equal(result.sizes[1], np.ceil(LENS * factor))
    np.testing.assert_allclose(result.value, expected.value, rtol=1e-6)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"factor": "data:numbers"}, "must give one number"),
        ({"factor": "flag"}, "must give one number"),
        ({"factor": "one", "kind": "fill"}, "kind 'fill' needs a number"),
        ({"factor": 0}, "factor must be positive"),
    ],
)
def test_factor_of_resize(options, message):
    network = {
        "flag": {"class": "constant", "value": True},
        "one": {"class": "constant", "value": 1},
        "output": layer("resize", axis="T", **options),
    }
    with pytest.raises(ConfigError, match=message):
        run(network)


def test_resize_moves_batch_and_axis_to_the_front():
    wide = {"from": "data:wide", "axis": STATIC}
    result = output(layer("resize", factor=3, **wide))
    assert result.axes == ("B", "S", "T", "F")
    np.testing.assert_array_equal(result.value, np.repeat(feed()["wide"].transpose(0, 2, 1, 3), 3, axis=1))


@pytest.mark.parametrize("train", [False, True])
def test_fill_with_dropout(train):
    net = net_of(
        {"output": layer("resize", axis="T", factor=3, kind="fill", fill_value=9, fill_dropout=0.5)}, train=train
    )
    result = net.run(feed()).layers["output"]
    for b, n in enumerate(LENS):
        frames = result.value[b, : result.sizes[1][b]]
        kept = frames[(frames != 9).any(1)]
        np.testing.assert_array_equal(kept, X[b, :n])
        assert (len(frames) == 3 * n) if not train else n <= len(frames) <= 3 * n
    assert not train or sum(LENS) < sum(result.sizes[1]) < 3 * sum(LENS)
    assert result.value.shape[1] == result.sizes[1].max()


@pytest.mark.parametrize("symbol", [2, -3])
def test_remove(symbol):
    result = output(layer("remove", symbol=symbol, **{"from": "data:labels"}))
    check(result, [[x for x in row[:n] if x != 2] for row, n in zip(feed()["labels"], LENS)])


def test_remove_everything():
    result = output(layer("remove", symbol=2, **{"from": "data:labels"}), feed(labels=np.full([3, 4], 2)))
    assert result.value.shape == (3, 0) and not result.sizes[1].any()


@pytest.mark.parametrize(
    "given",
    [
        layer("prefix_in_time", prefix=1.0),
        layer("prefix_in_time", repeat="data:numbers"),
        layer("postfix_in_time", repeat=2),
        layer("shift_axis", axis="T", amount=1),
        layer("resize", axis="T", factor=2, kind="cubic"),
        layer("resize", axis="T", factor=3, kind="fill"),
        layer("cumsum"),
    ],
)
def test_gradient_is_finite(given):
    assert np.isfinite(gradient({**given, "from": "a"})).all()


@pytest.mark.parametrize(
    "given,match",
    [
        (layer("prefix_in_time", repeat=-1), "repeat must be a layer or a number"),
        (layer("prefix_in_time", prefix="data"), "'prefix' must be"),
        (layer("prefix_in_time", repeat="data:ints"), "one integer per sequence"),
        (layer("prefix_in_time", repeat="data:numbers", size_base="data:numbers"), "has no time axis"),
        (layer("prefix_in_time", axis="B"), "cannot be the batch axis"),
        (layer("postfix_in_time", postfix="data:wide"), "no axis time"),
        (layer("postfix_in_time", postfix="data:numbers"), "Cast one"),
        (layer("postfix_in_time", repeat=-1), "repeat must be at least 0"),
        (layer("resize", axis="T", factor=2, kind="nearest"), "'kind' is 'nearest'"),
        (layer("resize", axis="T", factor=1.5, kind="fill"), "whole number"),
        (layer("resize", axis="T", factor=0), "factor must be positive"),
        (layer("resize", axis="T", factor=2, fill_value=1), "for kind 'fill' only"),
        (layer("resize", axis="T", factor=2, kind="cubic", **{"from": "data:ints"}), "float32"),
        (layer("remove", symbol=1), "needs label sequences"),
    ],
)
def test_errors(given, match):
    fails(given, match)


def test_prefix_keeps_the_declared_dim():
    data = template({"output": layer("prefix_in_time", out_dim=NEW)})
    assert data.dims[1] is TIME + 1
