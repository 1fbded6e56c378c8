"""Layers in the step of a loop whose batch axis has other entries than the sequences, or is reduced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from tests.layers.nets import feed
from tests.layers.rec.searching import frame_loop, search_net

_MERGED = {
    "merge_dims": {"class": "merge_dims", "axes": ["B", "T"]},
    "merge_dims of time first": {"class": "merge_dims", "axes": ["T", "B"]},
    "flatten_batch": {"class": "flatten_batch", "axis": "T"},
    "flatten_batch by frame": {"class": "flatten_batch", "axis": "T", "batch_major": False},
}
#: The way back.
_SPLIT = {
    "merge_dims": {"class": "split_batch_time", "base": "frames"},
    "flatten_batch": {"class": "unflatten_batch"},
    "flatten_batch by frame": {"class": "unflatten_batch"},
}
_END = "another axis is merged into its batch axis"


def _net(merged: dict[str, Any], layers: dict[str, Any], *, moved: bool) -> dict[str, Any]:
    """Return a loop in which each step has frames [batch, time, feature], and "merged" of them."""
    unit = {
        "label": {"class": "linear", "activation": None, "n_out": 4, "from": "output"},
        "frames": {
            "class": "combine", "kind": "mul", "from": ["label", "base:enc"], "allow_broadcast_all_sources": True,
        },
        "merged": {**merged, "from": "frames", "is_output_layer": True},
        **layers,
    }  # fmt: skip
    return {
        "pool": {"class": "pool", "mode": "max", "pool_size": (2,), "padding": "same", "from": "data"},
        "enc": {"class": "linear", "activation": None, "n_out": 4, "from": "pool"},
        **frame_loop(layers=unit, optimize_move_layers_out=moved),
    }


def _run(network: dict[str, Any], name: str, *, search: bool) -> Any:
    last = {"output": {"class": "copy", "from": name}}
    return search_net({**network, **last}, search=search).run(feed()).layers["output"]


@pytest.mark.parametrize("kind", _MERGED)
def test_merged_in_each_step(kind: str) -> None:
    """The same as moved out of the loop."""
    got, want = (_run(_net(_MERGED[kind], {}, moved=m), "loop/merged", search=False) for m in (False, True))
    assert got.axes == want.axes
    np.testing.assert_allclose(got.value, want.value, rtol=1e-5)


@pytest.mark.parametrize("kind", _MERGED)
def test_merged_in_each_step_of_a_search(kind: str) -> None:
    """Its entries are not those of the hypotheses, which a choice reorders."""
    assert _run(_net(_MERGED[kind], {}, moved=True), "loop/merged", search=True).axes[1:] == ("T", "F")
    with pytest.raises(ConfigError, match=r"Layer 'loop/merged' is .*%s.* the hypotheses of the search" % _END):
        _run(_net(_MERGED[kind], {}, moved=False), "loop/merged", search=True)


@pytest.mark.parametrize("search", [True, False])
@pytest.mark.parametrize("kind", _SPLIT)
def test_split_again_in_the_step(kind: str, search: bool) -> None:
    """The values follow the hypotheses then."""
    layers = {
        "merged": {**_MERGED[kind], "from": "frames"},
        "square": {"class": "activation", "activation": "square", "from": "merged"},
        "split": {**_SPLIT[kind], "from": "square", "is_output_layer": True},
    }
    got, want = (_run(_net(_MERGED[kind], layers, moved=m), "loop/split", search=search) for m in (False, True))
    assert got.axes == want.axes
    np.testing.assert_allclose(got.value, want.value, rtol=1e-5)


def _recurrent(kind: str) -> dict[str, Any]:
    cell = {"class": "rnn_cell", "unit": "lstm", "n_out": 2, "from": "merged", "is_output_layer": True}
    return _net(_MERGED[kind], {"cell": cell}, moved=False)


def test_states_of_a_merged_batch() -> None:
    """A cell has a state for each frame of each sequence, if the number of frames is known before the loop."""
    assert _run(_recurrent("merge_dims"), "loop/cell", search=False).value.shape == (6, 4, 2)


@pytest.mark.parametrize(
    "kind, search, match",
    [
        ("flatten_batch", False, r"Layer 'loop/cell' is carried .* size of packed\(.*\) is not known before the first"),
        ("merge_dims of time first", False, "Layer 'loop/cell' is carried .* is not known before the first step"),
        ("merge_dims", True, "Layer 'loop/cell' is .*" + _END),
    ],
)
def test_states_without_a_size(kind: str, search: bool, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        _run(_recurrent(kind), "loop/cell", search=search)


@pytest.mark.parametrize("kind", _MERGED)
def test_merged_before_a_search(kind: str) -> None:
    """A value from outside would have to be repeated for each hypothesis."""
    layers = {"twice": {"class": "combine", "kind": "add", "from": ["base:merged"] * 2, "is_output_layer": True}}
    network = {"merged": {**_MERGED[kind], "from": "data"}, **frame_loop(layers=layers, optimize_move_layers_out=False)}
    with pytest.raises(ConfigError, match="Layer 'merged' is .*" + _END):
        _run(network, "loop/twice", search=True)


def _reduced(source: str, reduce: dict[str, Any], *, moved: bool) -> dict[str, Any]:
    """Return a loop with a reduction of what is known before it, or is computed in it."""
    layers = {
        "known": {"class": "activation", "activation": "tanh", "from": "data:source"},
        "sum": {"class": "combine", "kind": "add", "from": ["data:source", "prev:sum"]},
        "label": {"class": "linear", "activation": None, "n_out": 4, "from": "output"},
        "reduced": {**reduce, "from": source, "is_output_layer": True},
    }
    return frame_loop(layers=layers, optimize_move_layers_out=moved)


_REDUCTIONS = (
    [{"class": "reduce", "mode": mode, "axis": "B"} for mode in ("sum", "mean", "max", "logsumexp", "argmax")]
    + [{"class": "reduce", "mode": "sum", "axis": ["B", "F"], "keep_dims": True}]
    + [{"class": "math_norm", "p": 2, "axis": "B"}]
)  # fmt: skip


@pytest.mark.parametrize("reduce", _REDUCTIONS, ids=lambda reduce: str(sorted(map(str, reduce.values()))))
@pytest.mark.parametrize("source", ["data:source", "known"])
def test_batch_reduced_in_a_search(source: str, reduce: dict[str, Any]) -> None:
    """What is the same for all hypotheses is reduced once per sequence, in the loop as well as moved out of it."""
    got = _run(_reduced(source, reduce, moved=False), "loop/reduced", search=True)
    for moved, search in ((True, True), (False, False)):
        want = _run(_reduced(source, reduce, moved=moved), "loop/reduced", search=search)
        np.testing.assert_allclose(got.value, want.value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("source", ["label", "output", "prev:label", "sum"])
def test_hypotheses_are_not_reduced(source: str, moved: bool) -> None:
    mode = {"class": "reduce", "mode": "max", "axis": "B"}
    with pytest.raises(ConfigError, match="Layer 'loop/reduced' reduces the batch axis of .* the hypotheses"):
        _run(_reduced(source, mode, moved=moved), "loop/reduced", search=True)


def test_one_hypothesis_is_that_of_the_sequence() -> None:
    reduce = {"class": "reduce", "mode": "sum", "axis": "B"}
    networks = [_reduced("label", reduce, moved=moved) for moved in (True, False)]
    for network in networks:
        network["loop"]["unit"]["output"]["beam_size"] = 1
    got, want = (_run(network, "loop/reduced", search=True).value for network in networks)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_hypotheses_are_reduced_after_the_loop() -> None:
    network = _reduced("label", {"class": "copy"}, moved=False)
    mixed = {"output": {"class": "reduce", "mode": "max", "axis": "B", "from": "loop/reduced"}}
    assert search_net({**network, **mixed}).run(feed()).layers["output"].value.shape == (4, 4)
