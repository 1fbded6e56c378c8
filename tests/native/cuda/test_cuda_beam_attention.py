"""Attention in a search on an emulated GPU: what the kernels for the CPU compute."""

from __future__ import annotations

import numpy as np
import pytest

from tests.native.beam_attention_cases import FRAMES, IN_PLACE, LENGTHS, ONCE, STEPS
from tests.native.cuda.beam_attention_calls import in_place, once
from tests.native.cuda.build import build_emulated, copy_sources, replace
from tests.native.cuda.calls import assert_same_bits

pytestmark = pytest.mark.slow  # compiles kernels for the emulator

#: Entries, steps, heads, sizes of key and value: the cases of the test on the CPU, and one, two and three tiles of
#: frames, keys that are read by four numbers at a time, and values of two blocks.
SHAPES = [(size[0], STEPS, *size[1:]) for size in IN_PLACE]
SHAPES += [(3, 0, 2, 4, 3), (2, 127, 1, 4, 3), (2, 128, 2, 8, 6), (2, 300, 1, 3, 130)]
#: Of frames of sequences: of the test on the CPU, and two tiles.
ONCE_SHAPES = [((3, beam, FRAMES, heads, size), value) for beam, heads, size, value in ONCE]
ONCE_SHAPES += [((1, 5, 200, 2, 8), 33), ((2, 3, 129, 1, 5), 4), ((0, 2, 5, 1, 3), 4), ((2, 2, 0, 1, 3), 4)]


@pytest.fixture(scope="module")
def gpu():
    return build_emulated("search/beam_attention_cuda.cu")


@pytest.fixture(scope="module")
def of_cpu():
    """Kernels for the CPU: in place, and once per sequence."""
    return [build_emulated("search/%s_cpu.cc" % name, "-O2") for name in ("attention", "once")]


def close(one, other):
    return all(np.allclose(*pair, rtol=1e-5, atol=1e-5, equal_nan=True) for pair in zip(one, other))


def lengths_of(kind, batch, beam, frames):
    if kind is None:
        return None
    if isinstance(kind, str):
        return np.random.RandomState(1).randint(-1, frames + 3, batch * beam)
    return np.resize(np.minimum(kind, frames), batch).repeat(beam)


@pytest.mark.sampled
@pytest.mark.parametrize("with_shift, copies", [(False, True), (True, False)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_in_place(gpu, of_cpu, shape, with_shift, copies):
    found = in_place(gpu, shape, with_shift=with_shift, copies=copies)
    expected = in_place(of_cpu[0], shape, with_shift=with_shift)
    assert close(found, expected)


@pytest.mark.parametrize("row", [-1, 3])
def test_a_wrong_row(gpu, row):
    """The host can't see it: the hypothesis gets NaN, and the others what they would."""
    shape, rows = (3, 4, 2, 5, 6), np.zeros((3, 4), "int32")
    y, *_ = in_place(gpu, shape, rows=rows)
    rows = rows.copy()
    rows[1, 2] = row
    wrong, *_ = in_place(gpu, shape, rows=rows)
    assert np.isnan(wrong[1]).all()
    np.testing.assert_array_equal(wrong[[0, 2]], y[[0, 2]])


@pytest.mark.sampled
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("shape, value", ONCE_SHAPES, ids=str)
def test_once(gpu, of_cpu, shape, value, lengths):
    batch, beam, frames, *_ = shape
    given = lengths_of(lengths, batch, beam, frames)
    assert close([once(gpu, shape, value, given)], [once(of_cpu[1], shape, value, given)])


def test_hypotheses_do_not_depend_on_others(gpu):
    """The numbers of the first hypotheses of a beam are those of a smaller beam, to the last bit."""
    first = once(gpu, (1, 2, 140, 2, 6), 5)
    np.testing.assert_array_equal(once(gpu, (1, 2, 140, 2, 6), 5, [140, 3])[:1], first[:1])


def test_same_bits(gpu, monkeypatch):
    lengths = lengths_of("by hypothesis", 2, 5, 150)
    assert_same_bits(
        monkeypatch, lambda: [*in_place(gpu, (3, 140, 2, 5, 40)), once(gpu, (2, 5, 150, 2, 6), 40, lengths)]
    )


@pytest.mark.parametrize("bad", [0, 2, 3])
def test_nan_stays_in_its_hypothesis(gpu, bad):
    """Also among those that a block has together; a hypothesis without frames has no NaN."""
    shape, value = (1, 5, 9, 2, 4), 3
    lengths = np.array([9, 9, 0, 9, 1])
    clean, found = once(gpu, shape, value, lengths), once(gpu, shape, value, lengths, bad=bad)
    assert np.isfinite(clean).all() and not clean[2].any()
    assert np.isnan(found[bad]).all() == (lengths[bad] > 0)
    others = np.arange(5) != bad if lengths[bad] else np.full(5, True)
    np.testing.assert_array_equal(found[others], clean[others])


#: what, text, what takes its place
MUTATIONS = [
    ("nothing", "", ""),
    ("the highest energy of a warp alone", "of_warps[i * kWarps + other]);", "of_warps[i * kWarps + warp]);"),
    ("sums keep their scale", "sums[i] = sums[i] * factor + weight;", "sums[i] += weight;"),
    ("results keep their scale", "results[i][c] *= factor;", ";"),
    ("weights are overwritten", "most;\n    }\n    __syncthreads();\n#pragma", "most;\n    }\n#pragma"),
    ("weights are not awaited", "    __syncthreads();\n    const int n =", "    const int n ="),
    ("queries are not awaited", "  __syncthreads();\n  float highest", "  float highest"),
    ("the parts are not awaited", "    __syncthreads();\n    float result = 0.0f;", "    float result = 0.0f;"),
    ("frames after the end", "if (frame >= group.length(i))", "if (frame >= frames)"),
    ("frames of another step", "step * x.s.entries + row", "x.s.entries + row"),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("what, text, by", MUTATIONS, ids=[mutation[0] for mutation in MUTATIONS])
def test_mutations(tmp_path, monkeypatch, of_cpu, what, text, by):
    copy_sources("search", tmp_path)
    replace(tmp_path / "search" / "beam_attention_cuda.cu", text, by)
    gpu = build_emulated(str(tmp_path / "search" / "beam_attention_cuda.cu"))
    lengths = lengths_of("by hypothesis", 2, 5, 150)
    shapes = ((2, 300, 1, 5, 40), ((2, 5, 150, 2, 6), 40, lengths))
    expected, found = [*in_place(of_cpu[0], shapes[0]), once(of_cpu[1], *shapes[1])], 0
    for seed in range(1, 5):
        monkeypatch.setenv("RTF_EMULATION_SEED", str(seed))
        try:
            found += not close([*in_place(gpu, shapes[0]), once(gpu, *shapes[1])], expected)
        except AssertionError:  # a deadlock
            found += 1
    assert found == 0 if what == "nothing" else found > 0
