"""Units whose states have sizes of their own: initial and last states, single steps, masks, and what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from tests.layers.nets import LENS, feed, net_of

UNIT = {"unit": "mamba2", "unit_opts": {"headdim": 3, "d_state": 2}, "n_out": 3}
#: Its states: the last frames of the convolution, and a matrix for each of the two heads.
SIZES = {"conv": 30, "S": 12}
REC = {"class": "rec", **UNIT, "from": "data"}
#: Two thirds of the frames, or the others.
HEAD, TAIL = (
    {"class": "slice", "axis": "T", "from": "data", **part} for part in ({"slice_end": 2}, {"slice_start": 2})
)


def states_of(name: str) -> dict[str, Any]:
    """Return layers with the states of a layer."""
    return {key: {"class": "get_last_hidden_state", "from": name, "key": key, "n_out": SIZES[key]} for key in SIZES}


def tail_of(value: Any, start: int) -> list[Any]:
    """Return the valid frames of each sequence from frame ``start`` on."""
    frames = value if value.shape[0] == len(LENS) else np.moveaxis(value, 0, 1)
    return [row[max(0, start) : length] for row, length in zip(frames, LENS)]


@pytest.mark.slow
@pytest.mark.parametrize("given", ["layer", "dict of layers"])
def test_begins_where_another_ended(given: str) -> None:
    """The last frames after the state of the first ones are those of the whole sequence."""
    network = {
        "whole": {**REC, "is_output_layer": True},
        "head": HEAD, "tail": TAIL,
        "first": {**REC, "from": "head", "reuse_params": "whole"},
        **states_of("first"),
        "all": {"class": "get_last_hidden_state", "from": "first", "key": "*", "is_output_layer": True},
        "output": {
            **REC, "from": "tail", "reuse_params": "whole",
            "initial_state": "first" if given == "layer" else {key: key for key in SIZES},
        },
    }  # fmt: skip
    layers = net_of(network).run(feed()).layers
    output = layers["output"].value
    output = output if output.shape[0] == len(LENS) else np.moveaxis(output, 0, 1)
    for row, expected in zip(output, tail_of(layers["whole"].value, 2)):
        np.testing.assert_allclose(row[: len(expected)], expected, atol=1e-5)
    assert layers["all"].value.shape == (3, sum(SIZES.values()))


def test_variables_as_initial_state() -> None:
    net = net_of({"output": {**REC, "initial_state": "var"}}, train=True)
    shapes = {name: tuple(param.shape) for name, param in net.params.items() if "initial" in name}
    assert shapes == {"output/rec/initial_conv": (30,), "output/rec/initial_S": (12,)}


@pytest.mark.slow
def test_single_step_from_states() -> None:
    """One step from given states, layer by layer, is the next frame."""
    network = {
        "head": {"class": "slice", "axis": "T", "slice_end": 1, "from": "data"},
        "first": {**REC, "from": "head", "reuse_params": "two"}, **states_of("first"),
        "second": {"class": "slice", "axis": "T", "slice_start": 1, "slice_end": 2, "from": "data"},
        "frame": {"class": "reduce", "mode": "sum", "axes": "T", "from": "second"},
        "two_frames": {"class": "slice", "axis": "T", "slice_end": 2, "from": "data"},
        "two": {**REC, "from": "two_frames", "is_output_layer": True},
        "output": {**REC, "from": "frame", "state": {key: key for key in SIZES}, "reuse_params": "two"},
        "after": {"class": "get_last_hidden_state", "from": "output", "key": "*", "is_output_layer": True},
        "expected": {"class": "get_last_hidden_state", "from": "two", "key": "*", "is_output_layer": True},
    }  # fmt: skip
    layers = net_of(network).run(feed()).layers
    two = layers["two"].value
    second = two[:, 1] if two.shape[0] == len(LENS) else two[1]
    np.testing.assert_allclose(layers["output"].value, second, atol=1e-5)
    np.testing.assert_allclose(layers["after"].value, layers["expected"].value, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("moved", [False, True])
def test_under_a_mask(moved: bool) -> None:
    """States stay in steps that are not selected: the selected frames are those of a sequence of its own."""
    masked = {"class": "masked_computation", "mask": "m", "from": "data:source", "unit": {**REC, "class": "rnn_cell"}}
    unit = {
        "sum": {"class": "reduce", "mode": "sum", "axes": "F", "from": "data:source"},
        "m": {"class": "compare", "kind": "greater", "value": 0.0, "from": "sum"},
        "s": {**masked, "initial_output": "zeros"},
        "output": {"class": "copy", "from": ["s", "prev:s"]},
    }
    network = {
        "loop": {"class": "rec", "from": "data", "unit": unit, "optimize_move_layers_out": moved},
        "output": {"class": "copy", "from": "loop"},
    }
    net = net_of(network)
    plain = net_of({"output": REC})
    for name, param in plain.params.items():
        param.assign(net.params["loop/rec/s/rec/" + name.rpartition("rec/")[2]])
    data, got = feed()["data"], net.run(feed()).layers["output"].value
    got = got if got.shape[0] == len(LENS) else np.moveaxis(got, 0, 1)
    for b, length in enumerate(LENS):
        chosen = [t for t in range(length) if data[b, t].sum() > 0]
        if not chosen:
            assert not got[b, :length].any()
            continue
        arrays = {"data": data[b : b + 1, chosen], "data/size0": np.array([len(chosen)], "int32")}
        expected = plain.run({**feed(), **arrays}, fetch=["output"]).layers["output"].value.reshape(len(chosen), 3)
        held = np.zeros(3)
        for t in range(length):
            np.testing.assert_allclose(got[b, t, 3:], held, atol=1e-5)
            held = expected[chosen.index(t)] if t in chosen else held
            np.testing.assert_allclose(got[b, t, :3], held, atol=1e-5)


OTHER = {"a": {**REC, "unit_opts": {"headdim": 3, "d_state": 4}}, "l": {**REC, "unit": "lstm", "unit_opts": None}}
RWKV6, RWKV7 = ({"class": "rec", "unit": unit, "n_out": 3, "from": "data"} for unit in ("rwkv6", "rwkv7"))
MINGRU, GLA = (
    {"class": "rec", "unit": unit, "n_out": 1, "unit_opts": opts, "from": "data"}
    for unit, opts in (("mingru", None), ("gla", {"key_ratio": 1, "num_heads": 1}))
)
DENSE = {"x": {"class": "linear", "activation": None, "n_out": 7, "from": "mean"},
         "mean": {"class": "reduce", "mode": "mean", "axes": "T", "from": "data"}}  # fmt: skip


@pytest.mark.parametrize(
    "layers,message",
    [
        (
            {"output": {**REC, "initial_state": "l"}},
            r"initial_state: the state of layer 'l' is c \(3\) and h \(3\), but that of this unit is conv \(30\) and S "
            r"\(12\)\. Take the state of a layer with the same unit",
        ),
        (
            {"output": {**REC, "initial_state": "a"}},
            r"the state of layer 'a' is conv \(42\) and S \(24\), but that of this unit is conv \(30\) and S \(12\)\. "
            "The n_out and unit_opts of both layers must be the same",
        ),
        (
            {"first": RWKV6, "output": {**RWKV7, "initial_state": "first"}},
            "the state of layer 'first' is a memory of unit 'rwkv6', but that of this unit is a memory of unit 'rwkv7'",
        ),
        (
            {"first": MINGRU, "output": {**GLA, "initial_state": "first"}},
            "the state of layer 'first' is an output, but that of this unit is a memory of unit 'gla'",
        ),
        (
            {
                "first": {**MINGRU, "unit": "mlstm", "unit_opts": {"num_heads": 1}},
                "output": {**REC, "initial_state": "first"},
            },
            r"layer 'first' is C \(1\), n \(1\) and m \(1\), but that of this unit is conv \(30\) and S \(12\)",
        ),
        ({"output": {**REC, "initial_state": {"conv": "zeros"}}}, "initial_state has no key 'S'"),
        ({"output": {**REC, "initial_state": {"conv": "zeros", "S": "x"}}}, r"initial_state\['S'\]: layer 'x' is "),
        ({"output": {**REC, "from": "mean", "state": {"conv": "x", "S": "x"}}}, r"state\['conv'\]: layer 'x' is "),
        ({"s": REC, "output": {"class": "get_last_hidden_state", "from": "s", "key": "T"}}, "has no key 'T'"),
        (
            {"s": REC, "output": {"class": "get_last_hidden_state", "from": "s", "key": "S", "n_out": 3}},
            "n_out is 3, but the state 'S' has dim 12",
        ),
        ({"output": {**REC, "unit_opts": {"d_sate": 4}}}, "unknown option 'd_sate'. Did you mean 'd_state'"),
        (
            {"output": {**REC, "unit": "rwkv6", "unit_opts": {"head_size": 3}, "from": "data:labels"}},
            "unit 'rwkv6' needs vectors, but the input is sparse with dim 5. Put a layer in front that looks up",
        ),
        ({"output": {**REC, "input_projection": False}}, "unit 'mamba2' .* no separate input projection"),
    ],
)
def test_errors(layers: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        net_of({**OTHER, **DENSE, **layers})
