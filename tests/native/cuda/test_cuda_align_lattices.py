"""Alignments on a GPU, in the emulator: automata, transducers; against numpy in float64 and the CPU's kernels."""

import numpy as np
import pytest

from tests.native import align_reference as reference
from tests.native.cuda.align_calls import Calls
from tests.native.cuda.build import build_emulated

pytestmark = pytest.mark.slow  # compiles kernels for the emulator

LATTICES = ("acceptor", "acceptor_best", "transducer")
TRANSDUCERS = [(1, 1, 1, 2), (5, 7, 4, 6), (4, 9, 15, 3), (4, 20, 16, 40), (3, 6, 40, 5), (3, 0, 2, 3), (0, 2, 2, 3)]


@pytest.fixture(scope="module")
def gpu():
    return Calls(*(build_emulated("align/%s_cuda.cu" % name) for name in LATTICES))


@pytest.fixture(scope="module")
def cpu():
    return Calls(*(build_emulated("align/%s_cpu.cc" % name, "-O2") for name in LATTICES), cuda=False)


def draw_transducer(batch, frames, n_labels, classes, seed=1):
    """A whole sequence, an empty one, one without labels, one without frames, then usual ones; the blank is 0."""
    rng = np.random.RandomState(seed)
    scores = rng.normal(0, 2, (batch, frames, n_labels + 1, classes)).astype("float32")
    lens, label_lens = rng.randint(0, frames + 1, batch), rng.randint(0, n_labels + 1, batch)
    lens[:4] = [frames, 0, frames, 0][:batch]
    label_lens[:4] = [n_labels, 0, 0, 1][:batch]
    return scores, lens, rng.randint(1, classes, (batch, n_labels)), label_lens


@pytest.mark.parametrize("label_takes_frame", [False, True])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("size", TRANSDUCERS, ids=str)
def test_transducer(gpu, cpu, size, normalized, label_takes_frame):
    batch = draw_transducer(*size)
    options = {"blank": 0, "normalized": normalized, "label_takes_frame": label_takes_frame}
    loss, gradient = gpu.transducer(*batch, **options)
    other, other_gradient = cpu.transducer(*batch, **options)
    np.testing.assert_allclose(loss, other, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(gradient, other_gradient, atol=3e-6)
    scores, lens, labels, label_lens = batch
    for b, (length, count) in enumerate(zip(lens, label_lens)):
        own = (b, slice(length), slice(count + 1))

        def value(x, b=b, count=count):
            return reference.transducer_loss(x, labels[b, :count], **options)

        expected = value(scores[own])
        if not np.isfinite(expected):
            assert loss[b] == 0 and not gradient[b].any()
            continue
        assert loss[b] == pytest.approx(expected, rel=1e-6, abs=1e-5)
        assert not gradient[b, length:].any() and not gradient[b, :, count + 1 :].any()
        if length * count <= 60:
            direction = np.random.RandomState(b).normal(0, 1, scores[own].shape)
            slope = float((gradient[own] * direction).sum())
            assert slope == pytest.approx(reference.slope(value, scores[own], direction), rel=2e-4, abs=2e-4)


@pytest.mark.parametrize("label_takes_frame", [False, True])
def test_padding_of_a_transducer_does_not_leak(gpu, label_takes_frame):
    scores, lens, labels, label_lens = draw_transducer(7, 8, 5, 4)
    dirty = scores.copy()
    outside = (np.arange(8)[:, None] >= lens[:, None, None]) | (np.arange(6) > label_lens[:, None, None])
    dirty[outside] = np.nan
    options = {"blank": 0, "normalized": False, "label_takes_frame": label_takes_frame}
    for a, b in zip(*(gpu.transducer(x, lens, labels, label_lens, **options) for x in (scores, dirty))):
        np.testing.assert_array_equal(a, b)


def check_unread_cells(gpu):
    """Check that cells outside of all alignments are not read: with too many labels, or too few for the frames left."""
    scores, lens, labels, label_lens = draw_transducer(4, 9, 6, 3)
    lens[1:], label_lens[1:] = [7, 5, 9], [6, 0, 1]
    t, u = np.arange(9)[:, None], np.arange(7)
    ahead = label_lens[:, None, None] - u
    live = (u <= t) & (ahead <= lens[:, None, None] - t) & (ahead >= 0) & (t < lens[:, None, None])
    dirty = np.where(live[..., None], scores, np.nan).astype("float32")
    for normalized in (False, True):
        options = {"blank": 0, "normalized": normalized, "label_takes_frame": True}
        for a, b in zip(*(gpu.transducer(x, lens, labels, label_lens, **options) for x in (scores, dirty))):
            np.testing.assert_array_equal(a, b)
            assert np.isfinite(b).all()


def test_cells_outside_of_all_alignments_are_not_read(gpu):
    check_unread_cells(gpu)


def test_more_labels_than_threads(gpu, cpu, monkeypatch):
    """With the states in shared memory, and elsewhere."""
    batch = draw_transducer(1, 2, 1050, 2)
    options = {"blank": 0, "normalized": True, "label_takes_frame": False}
    other = cpu.transducer(*batch, **options)
    for shared in (232448, 4096):
        monkeypatch.setenv("RTF_EMULATION_SHARED", str(shared))
        for a, b in zip(gpu.transducer(*batch, **options), other):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=3e-6)


def draw_acceptors(batch, frames, classes, states, edges, seed=2):
    """Return random graphs with a chain to the end, such that some have a path; the last has no edge at all."""
    rng = np.random.RandomState(seed)
    counts = rng.randint(1, states + 1, batch)
    arcs = rng.randint(0, 2**30, (batch, edges, 3)) % np.stack([counts, counts, 0 * counts + classes], 1)[:, None]
    for b, count in enumerate(counts):
        chain = np.arange(min(count - 1, edges))
        arcs[b, chain, 0], arcs[b, chain, 1] = chain, chain + 1
    arcs[rng.uniform(size=arcs.shape[:2]) < 0.1] = -1
    arcs[-1:] = -1
    scores = rng.normal(0, 2, (frames, batch, classes)).astype("float32")
    return scores, rng.randint(0, frames + 1, batch), arcs, rng.uniform(0, 3, (batch, edges)), counts


# batch, frames, classes, states, edges: groups of 1, 2, 32 lanes; more states than threads; many frames
ACCEPTORS = [(1, 1, 1, 1, 1), (7, 9, 5, 4, 12), (5, 30, 40, 9, 60), (4, 0, 3, 2, 3), (3, 12, 30, 3, 200),
             (2, 6, 1500, 1200, 3000), (3, 5, 4, 3, 0), (3, 900, 4, 20, 100), (0, 3, 2, 2, 2)]  # fmt: skip


@pytest.mark.parametrize("shared", [34 * 1024, 232448])
@pytest.mark.parametrize("size", ACCEPTORS, ids=str)
def test_acceptors_are_those_of_the_cpu(gpu, cpu, size, shared, monkeypatch):
    """That form is tested against all paths, one by one. Best paths bit for bit, also where some are equally good."""
    monkeypatch.setenv("RTF_EMULATION_SHARED", str(shared))
    scores, lens, arcs, costs, counts = draw_acceptors(*size)
    for a, b in zip(*(calls.acceptors(scores, lens, arcs, costs, counts, best=False) for calls in (gpu, cpu))):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    for some in (slice(None), slice(0, None, 2)):
        scores[:, some], costs[some] = np.round(scores[:, some]), np.round(costs[some])
        for a, b in zip(*(calls.acceptors(scores, lens, arcs, costs, counts, best=True) for calls in (gpu, cpu))):
            np.testing.assert_array_equal(a, b)


def fewest_edges(arcs, states, begin, side):
    """Return the least number of edges from a state, or to it; `arcs`: those of one graph."""
    fewest = np.where(np.arange(states) == begin, 0, 10**6)
    for _ in range(states):
        for arc in arcs[arcs[:, 2] >= 0]:
            fewest[arc[1 - side]] = min(fewest[arc[1 - side]], fewest[arc[side]] + 1)
    return fewest


def check_unread_edges(gpu, size, best):
    """Check that scores of edges outside of all paths are not read: they are NaN. Each edge has a class of its own."""
    scores, lens, arcs, costs, counts = draw_acceptors(*size)
    batch, frames, edges = len(lens), size[1], size[4]
    lens[:] = np.arange(frames, frames - batch, -1)
    arcs[..., 2] = np.where(arcs[..., 2] >= 0, np.arange(edges), -1)
    scores = np.random.RandomState(4).normal(0, 2, (frames, batch, edges)).astype("float32")
    dirty = np.full_like(scores, np.nan)
    for b in range(batch):
        before, after = fewest_edges(arcs[b], counts[b], 0, 0), fewest_edges(arcs[b], counts[b], counts[b] - 1, 1)
        for t in range(lens[b]):
            live = (before[arcs[b, :, 0]] <= t) & (after[arcs[b, :, 1]] <= lens[b] - 1 - t)
            dirty[t, b, live] = scores[t, b, live]
    clean, seen = (gpu.acceptors(x, lens, arcs, costs, counts, best=best) for x in (scores, dirty))
    for a, b in zip(clean, seen):
        np.testing.assert_array_equal(a, b)
    assert np.isfinite(seen[1]).any()


@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize("size", [(7, 9, 5, 4, 12), (5, 14, 40, 9, 60), (3, 12, 30, 3, 200)], ids=str)
def test_edges_outside_of_all_paths_are_not_visited(gpu, size, best):
    check_unread_edges(gpu, size, best)


def test_padding_and_trouble_of_acceptors(gpu, monkeypatch):
    """Padding plays no role, nor the order of the threads; NaN comes through."""
    scores, lens, arcs, costs, counts = draw_acceptors(7, 9, 5, 4, 12)
    lens[0] = 9
    dirty = scores.copy()
    dirty[np.arange(9)[:, None] >= lens] = np.nan
    for best in (False, True):
        clean = gpu.acceptors(scores, lens, arcs, costs, counts, best=best)
        monkeypatch.setenv("RTF_EMULATION_SEED", "5")
        for a, b in zip(clean, gpu.acceptors(dirty, lens, arcs, costs, counts, best=best)):
            np.testing.assert_array_equal(a, b)
        assert np.isfinite(clean[1][0])
        bad = scores.copy()
        bad[2, 0] = np.nan
        total = gpu.acceptors(bad, lens, arcs, costs, counts, best=best)[1]
        assert np.isnan(total[0]) and not np.isnan(total[1:]).any()
