"""Parts of layers in loops and conditions from outside, and of layers whose shape is not known yet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from tests.layers.nets import LENS, feed, net_of, run

X = feed()["data"]
TANH = {"class": "linear", "activation": "tanh", "n_out": 3, "from": "data"}
FRAMES = (np.arange(4) < LENS[:, None])[:, :, None]


def split(source: str = "data", sizes: Any = (1, 2), **options: Any) -> dict[str, Any]:
    return {"class": "split", "axis": "F", "size_splits": list(sizes), "from": source, **options}


def subnetwork(source: Any = "data", **layers: Any) -> dict[str, Any]:
    return {"class": "subnetwork", "from": source, "subnetwork": {"output": TANH, **layers}}


def output(network: dict[str, Any], layer: dict[str, Any]) -> Any:
    return run({**network, "output": layer})["output"].value


# --- of layers in loops ---


def loop(*, moved: bool, **unit: Any) -> dict[str, Any]:
    """Return a loop over the frames with "sum", the sum of those so far."""
    total = {"class": "combine", "kind": "add", "from": ["data:source", "prev:sum"]}
    unit = {"sum": total, "output": {"class": "copy", "from": "sum"}, **unit}
    return {"loop": {"class": "rec", "from": "data", "optimize_move_layers_out": moved, "unit": unit}}


@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("source", ["data:source", "sum"])
def test_part_of_a_layer_in_a_loop(source: str, moved: bool) -> None:
    network = loop(moved=moved, s=split(source, is_output_layer=True))
    want = X if source == "data:source" else np.cumsum(X, axis=1)
    got = output(network, {"class": "copy", "from": ["loop/s/1", "loop/s/0"]})
    np.testing.assert_allclose(got * FRAMES, want[:, :, [1, 2, 0]] * FRAMES, rtol=1e-5)
    got = output(network, {"class": "rec_last_output", "rec_layer": "loop", "sub_layer_name": "s/1"})
    np.testing.assert_allclose(got, want[np.arange(3), LENS - 1, 1:], rtol=1e-5)


def subnetwork_in_loop(*, moved: bool) -> dict[str, Any]:
    cell = {"class": "rnn_cell", "unit": "lstm", "n_out": 3, "from": "data"}
    inner = {
        "cell": cell, "output": {"class": "copy", "from": "cell"}, "s": split("cell"), "late": split("square"),
        "square": {"class": "activation", "activation": "square", "from": "s/1"}, "outer": split("base:base:h"),
    }  # fmt: skip
    inner["late"]["size_splits"] = [1, 1]
    return {"h": TANH, **loop(moved=moved, sub={**subnetwork(["sum"], **inner), "is_output_layer": True})}


@pytest.mark.parametrize("moved", [True, False])
def test_parts_of_a_subnetwork_in_a_loop(moved: bool) -> None:
    """Layers that nothing in the loop needs are planned late, and may have parts as well."""
    net = {**subnetwork_in_loop(moved=moved)}
    names = ["loop/sub/output", "loop/sub/s/1", "loop/sub/late/0", "loop/sub/cell"]
    net.update({"out%d" % i: {"class": "copy", "from": name, "is_output_layer": True} for i, name in enumerate(names)})
    net["state"] = {"class": "get_last_hidden_state", "from": "loop/sub/cell", "n_out": 6, "is_output_layer": True}
    found = net_of({**net, "output": {"class": "copy", "from": "out0"}}).run(feed()).layers
    whole = found["out0"].value
    np.testing.assert_array_equal(found["out1"].value, whole[:, :, 1:])
    np.testing.assert_allclose(found["out2"].value, whole[:, :, 1:2] ** 2, rtol=1e-5)
    np.testing.assert_array_equal(found["out3"].value, whole)
    assert found["state"].value.shape == (3, 6)


@pytest.mark.parametrize(
    "layer, match",
    [
        ({"class": "copy", "from": "loop/s/7"}, "layer 'loop/s' has no part '7'. Known: 0, 1"),
        ({"class": "copy", "from": "loop/hidden/1"}, "layer 'loop' has no part 'hidden/1'. Known: output, s"),
        ({"class": "rec_last_output", "rec_layer": "loop", "sub_layer_name": "hidden/1"}, "Give that layer the option"),
        ({"class": "rec_last_output", "rec_layer": "loop", "sub_layer_name": "x/1"}, "loop 'loop' has no layer 'x/1'"),
        ({"class": "get_last_hidden_state", "from": "loop/s/1"}, "source 'loop/s/1' .* has no hidden state"),
    ],
)
@pytest.mark.parametrize("moved", [True, False])
def test_no_such_part_of_a_loop(layer: dict[str, Any], match: str, moved: bool) -> None:
    with pytest.raises(ConfigError, match=match):
        output(loop(moved=moved, s=split("sum", is_output_layer=True), hidden=split("sum")), layer)


def test_late_part_with_an_input_of_its_own() -> None:
    """The inputs of a loop are known when it is planned."""
    network = subnetwork_in_loop(moved=False)
    with pytest.raises(
        ConfigError, match="'loop/sub/outer/1' of loop 'loop' is not computed .* 'is_output_layer': True"
    ):
        output(network, {"class": "copy", "from": "loop/sub/outer/1"})


def test_part_in_a_loop_within_a_loop() -> None:
    inner = {"class": "rec", "from": "base:data", "unit": {
        "x": {"class": "combine", "kind": "add", "from": ["data:source", "prev:x", "base:prev:output"]},
        "s": split("x", is_output_layer=True), "output": {"class": "copy", "from": "x"}}}  # fmt: skip
    unit = {
        "inner": inner,
        "m0": {"class": "reduce", "mode": "mean", "axis": "T", "from": "inner/s/0"},
        "m1": {"class": "reduce", "mode": "mean", "axis": "T", "from": "inner/s/1"},
        "output": {"class": "copy", "from": ["m0", "m1"]},
    }
    whole = {"inner": inner, "output": {"class": "reduce", "mode": "mean", "axis": "T", "from": "inner"}}
    got, want = (
        output({"outer": {"class": "rec", "from": "data", "unit": u}}, {"class": "copy", "from": "outer"})
        for u in (unit, whole)
    )
    np.testing.assert_allclose(got, want, rtol=1e-5)


# --- of conditions ---

SPLITS = {
    "split": (lambda source: split(source), "0"),
    "split in a subnetwork": (lambda source: subnetwork(source, s=split(is_output_layer=True)), "s/0"),
    "masked split": (
        lambda source: {"class": "masked_computation", "mask": "all", "from": source, "unit": split()}, "0",
    ),
    "cond": (
        lambda source: {"class": "cond", "condition": "no", "true_layer": split("data"), "false_layer": split(source)},
        "0",
    ),
}  # fmt: skip


def cond(true: Any, false: Any, *, condition: bool) -> dict[str, Any]:
    total = {"class": "reduce", "mode": "sum", "axis": ["B", "T", "F"], "from": "data"}
    names = {"is": condition, "no": False}
    found = {
        name: {"class": "compare", "kind": "less", "value": 1e6 if value else -1e6, "from": "total"}
        for name, value in names.items()
    }
    return {
        "total": total, **found,
        "by_frame": {"class": "reduce", "mode": "sum", "axis": "F", "from": "data"},
        "all": {"class": "compare", "kind": "less", "value": 1e6, "from": "by_frame"},
        "twice": {"class": "eval", "eval": "source(0) * 2", "from": "data"},
        "cond": {"class": "cond", "condition": "is", "true_layer": true, "false_layer": false},
    }  # fmt: skip


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("kind", SPLITS)
def test_part_of_both_branches(kind: str, condition: bool) -> None:
    make, name = SPLITS[kind]
    network = cond(make("data"), make("twice"), condition=condition)
    got = output(network, {"class": "copy", "from": "cond/" + name})
    np.testing.assert_allclose(got * FRAMES, X[:, :, :1] * (1 if condition else 2) * FRAMES, rtol=1e-6)


@pytest.mark.parametrize("condition", [True, False])
def test_part_of_loops_as_branches(condition: bool) -> None:
    branches = [loop(moved=False, s=split("sum", is_output_layer=True))["loop"] for _ in range(2)]
    branches[1]["from"] = "twice"
    got = output(cond(*branches, condition=condition), {"class": "copy", "from": "cond/s/1"})
    want = np.cumsum(X, axis=1)[:, :, 1:] * (1 if condition else 2)
    np.testing.assert_allclose(got * FRAMES, want * FRAMES, rtol=1e-5)


@pytest.mark.parametrize(
    "true, false, part, match",
    [
        (split(), TANH, "0", "layer 'cond' has no part '0'. None is known"),
        (split(), split(sizes=[1, 1, 1]), "2", "layer 'cond' has no part '2'. Known: 0, 1"),
        (split(), split(sizes=[2, 1]), "0", "the features differ"),
        (subnetwork(s=split()), subnetwork(s=split()), "s/0", "layer 'cond' has no part 's/0'"),
    ],
)
def test_no_such_part_of_both(true: Any, false: Any, part: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        output(cond(true, false, condition=True), {"class": "copy", "from": "cond/" + part})


# --- of layers of unknown shape ---


@pytest.mark.parametrize("moved", [True, False])
def test_split_of_the_previous_step(moved: bool) -> None:
    """The first round of planning does not know the shape of ``prev:x``."""
    unit = {
        "s": split("prev:x"),
        "x": {"class": "combine", "kind": "add", "from": ["data:source", "joined"]},
        "joined": {"class": "concat", "from": [("s/0", "F"), ("s/1", "F")]},
        "output": {"class": "copy", "from": "x"},
    }
    network = {"loop": {"class": "rec", "from": "data", "unit": unit, "optimize_move_layers_out": moved}}
    got = output(network, {"class": "copy", "from": "loop"})
    np.testing.assert_allclose(got * FRAMES, np.cumsum(X, axis=1) * FRAMES, rtol=1e-5)
    unit["joined"]["from"][1] = ("s/2", "F")
    with pytest.raises(ConfigError, match="layer 'loop/s' has no part '2'. Known: 0, 1"):
        output(network, {"class": "copy", "from": "loop"})


def test_parts_of_subnetworks_are_suggested() -> None:
    with pytest.raises(ConfigError, match="layer 'sub' has no part 'attn'. Did you mean 'att'"):
        output({"sub": subnetwork(att=TANH)}, {"class": "copy", "from": "sub/attn"})
