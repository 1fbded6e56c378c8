"""Parameters of a cell that grows: each part is copied to its place, so that the larger cell computes the same."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from returnn_tf.engine.pretrain.carry_over import common_blocks
from returnn_tf.ops.cells import Cell, run_cell, unit_class, unit_names
from returnn_tf.tensor.parts import Parts, total_size
from returnn_tf.util.lazy_tf import tf

INPUTS = 6
LENGTHS = [5, 3]

# unit -> options of the smaller cell with 8 outputs, and of the larger one with 16
GROWING: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("basicrnn", {}, {}),
    ("nativelstm2", {}, {}),
    ("lstmblock", {}, {}),
    ("standardlstm", {"use_peepholes": True}, {"use_peepholes": True}),
    ("gru", {}, {}),
    ("rhn", {"depth": 2}, {"depth": 2}),
    ("mingru", {}, {}),
    ("minlstm", {}, {}),
    ("sru", {}, {}),
    ("sru", {"recurrent_vectors": False}, {"recurrent_vectors": False}),
    ("lru", {"d_state": 16}, {"d_state": 32}),
    ("s4d", {"d_state": 16}, {"d_state": 16}),
    ("mamba", {"d_conv": 3}, {"d_conv": 4}),
    ("slstm", {"num_heads": 1}, {"num_heads": 1}),
    ("slstm", {"num_heads": 2}, {"num_heads": 4}),
    ("slstm", {"num_heads": 2}, {"num_heads": 2}),
    ("mlstm", {"num_heads": 2}, {"num_heads": 4}),
    ("gla", {"num_heads": 2}, {"num_heads": 4}),
    ("gla", {"num_heads": 2, "gate_rank": 3, "norm": "layer"}, {"num_heads": 4, "gate_rank": 5, "norm": "layer"}),
    ("deltanet", {"num_heads": 2, "conv_size": 2}, {"num_heads": 4, "conv_size": 4}),
    ("rwkv6", {"head_size": 4, "mix_rank": 2}, {"head_size": 4, "mix_rank": 3}),
    ("rwkv7", {"head_size": 4, "gate_rank": 3}, {"head_size": 4, "gate_rank": 5}),
]


def cell_of(unit: str, n_out: int, opts: dict[str, Any], in_dim: int = INPUTS) -> Cell:
    return unit_class(unit)(n_out, in_dim, unit_opts=opts, behavior_version=21)


def copied(values: NDArray[Any], shape: tuple[int, ...], old: tuple[Parts, ...], new: tuple[Parts, ...]) -> Any:
    """Return an array of zeros with the values of each part in its place."""
    result = np.zeros(shape, "float32")
    for blocks in itertools.product(*(common_blocks(a, b) for a, b in zip(old, new))):
        result[tuple(to for _, to in blocks)] = values[tuple(place for place, _ in blocks)]
    return result


def grown(small: Cell, large: Cell) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return random parameters of a cell, and those of a larger one, 0 where nothing is copied."""
    rng = np.random.default_rng(3)
    shapes = {spec.name: spec.shape for spec in large.param_specs()}
    old_axes, new_axes = small.param_axes(), large.param_axes()
    before = {spec.name: rng.normal(0, 0.5, spec.shape).astype("float32") for spec in small.param_specs()}
    assert list(before) == list(shapes)
    after = {name: copied(before[name], shapes[name], old_axes[name], new_axes[name]) for name in shapes}
    for name, values in before.items():  # nothing is lost
        assert np.count_nonzero(after[name]) == values.size, name
    return before, after


def outputs(cell: Cell, params: dict[str, Any], x: NDArray[Any]) -> NDArray[Any]:
    values = {name: tf.constant(value) for name, value in params.items()}
    result: NDArray[Any] = run_cell(cell, values, tf.constant(x), tf.constant(LENGTHS))[0].numpy()
    return result


@pytest.mark.parametrize("unit, old, new", GROWING, ids=["%s-%d" % (unit, i) for i, (unit, _, _) in enumerate(GROWING)])
def test_a_larger_cell_computes_the_same(unit: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Where all that is new is 0, the old channels keep their values."""
    small, large = cell_of(unit, 8, old), cell_of(unit, 16, new)
    before, after = grown(small, large)
    x = np.random.default_rng(1).normal(size=(5, 2, INPUTS)).astype("float32")
    expected, found = outputs(small, before, x), outputs(large, after, x)
    moved = np.zeros_like(found)
    for place, to in common_blocks(small.output_parts(), large.output_parts()):
        moved[..., to] = expected[..., place]
    assert np.abs(expected).max() > 0.1
    kept = moved != 0
    np.testing.assert_allclose(found[kept], moved[kept], rtol=2e-4, atol=2e-5)


HEADS = {"num_heads": 2}


@pytest.mark.parametrize(
    "unit, old, new",
    [
        ("mamba2", {"headdim": 4, "d_state": 3, "d_conv": 2}, {"headdim": 4, "d_state": 5, "d_conv": 4}),
        ("mamba2", {"headdim": 4, "ngroups": 2}, {"headdim": 8, "ngroups": 2}),
        ("mlstm", HEADS, HEADS),
        ("gla", HEADS, HEADS),
        ("deltanet", HEADS, HEADS),
        ("rwkv6", {"head_size": 4}, {"head_size": 8}),
        ("rwkv7", {}, {}),
        ("standardlstm", {}, {}),
        ("layernormvariantslstm", {}, {}),
    ],
)
def test_no_part_is_lost(unit: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Also where the larger cell cannot compute the same, as it normalises or scales by the size of its heads."""
    grown(cell_of(unit, 8, old), cell_of(unit, 16, new))
    grown(cell_of(unit, 8, old), cell_of(unit, 16, new, in_dim=9))


def test_the_parts_of_mamba2() -> None:
    """Gate, x, B, C and step size are columns of one matrix, and grow apart from each other."""
    small, large = (cell_of("mamba2", n, {"headdim": 4, "d_state": 3, "d_conv": 2}, 2) for n in (2, 4))
    blocks = common_blocks(small.param_axes()["in_proj"][1], large.param_axes()["in_proj"][1])
    numbers = np.concatenate([np.arange(to.start, to.stop) for _, to in blocks])
    np.testing.assert_array_equal(numbers, [*range(4), *range(8, 12), *range(16, 22), 22])


@pytest.mark.sampled
@pytest.mark.parametrize("unit", [name for name in unit_names() if name != "cumsum"])  # its output is like its input
@pytest.mark.parametrize("n_out, in_dim", [(8, 6), (8, 8), (16, 8)])
def test_parts_fill_their_axes(unit: str, n_out: int, in_dim: int) -> None:
    """Whatever the sizes are, also where the input is as large as the output."""
    cell = cell_of(unit, n_out, {"headdim": 4} if unit == "mamba2" else {}, in_dim)
    for spec in cell.param_specs():
        axes = cell.param_axes()[spec.name]
        assert tuple(map(total_size, axes)) == spec.shape
    assert total_size(cell.output_parts()) == n_out
