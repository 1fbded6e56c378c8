"""Alignments on a GPU, in the emulator: chains, CTC, best paths; against numpy in float64 and the CPU's kernels."""

import os

import numpy as np
import pytest

from tests.native import align_reference as reference
from tests.native.cuda.align_calls import KERNELS, Calls
from tests.native.cuda.build import HERE, SANITIZERS, SOURCES, build_emulated, run_sanitized

pytestmark = pytest.mark.slow  # compiles kernels for the emulator

# frames, batch, classes, labels; numbers of states beside the lanes of a warp and on them
SIZES = [(1, 1, 2, 1), (6, 5, 3, 3), (13, 4, 17, 7), (25, 6, 5, 8), (40, 3, 33, 16), (9, 4, 40, 16)]


@pytest.fixture(scope="module")
def gpu():
    return Calls(*(build_emulated("align/%s_cuda.cu" % name) for name in ("chain", "viterbi")))


@pytest.fixture(scope="module")
def cpu():
    return Calls(build_emulated("align/chain_cpu.cc", "-O2"), cuda=False)


def draw(frames, batch, classes, n_labels, blank=0, seed=1, scale=2.0):
    """Return the scores, lengths, labels, their lengths; a usual one, an empty one, one with too many labels."""
    rng = np.random.RandomState(seed)
    scores = rng.normal(0, scale, (frames, batch, classes)).astype("float32")
    labels = rng.randint(0, classes - 1, (batch, n_labels))
    labels += labels >= blank
    lens = rng.randint(frames // 2, frames + 1, batch)
    label_lens = rng.randint(0, min(n_labels, max(frames // 3, 1)) + 1, batch)
    lens[0] = frames
    for b, (length, count) in enumerate([(0, 0), (frames // 3, n_labels), (0, 1)], start=1):
        if b < batch:
            lens[b], label_lens[b] = length, count
    return scores, lens, labels, label_lens


def ctc_options(blank, label_loop=True, normalized=False, softmax=False):
    return {
        "blank": blank, "label_loop": label_loop, "normalized": normalized, "softmax_without_alignment": softmax,
    }  # fmt: skip


def draw_chains(frames, batch, classes, states, optional_ends, seed=1):
    """Return the scores, lengths, and chains with any flags."""
    rng = np.random.RandomState(seed)
    scores = rng.normal(0, 2, (frames, batch, classes)).astype("float32")
    chain = {
        "classes": rng.randint(0, classes, (batch, states)),
        "num_states": rng.randint(0, states + 1, batch),
        "loop": rng.randint(0, 4, (batch, states)) > 0,
        "skip": rng.randint(0, 2, (batch, states)),
        "optional_ends": optional_ends,
    }
    return scores, rng.randint(frames // 2, frames + 1, batch), chain


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("label_loop", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_ctc(gpu, size, label_loop, normalized):
    """Values are those of numpy in float64, the gradient is the slope of these."""
    blank = size[2] // 2
    scores, lens, labels, label_lens = draw(*size, blank)
    loss, gradient = gpu.ctc(scores, lens, labels, label_lens, **ctc_options(blank, label_loop, normalized))
    for b, (length, count) in enumerate(zip(lens, label_lens)):

        def value(x, b=b, count=count):
            return reference.ctc_loss(x, labels[b, :count], blank, label_loop, normalized)

        own = scores[:length, b]
        expected = value(own)
        assert not gradient[length:, b].any()
        if not np.isfinite(expected):
            assert loss[b] == 0 and not gradient[:, b].any()
            continue
        assert loss[b] == pytest.approx(expected, rel=1e-6, abs=1e-5)
        direction = np.random.RandomState(b).normal(0, 1, own.shape)
        slope = float((gradient[:length, b] * direction).sum())
        assert slope == pytest.approx(reference.slope(value, own, direction), rel=2e-4, abs=2e-4)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("softmax", [False, True])
def test_ctc_is_that_of_the_cpu(gpu, cpu, softmax, normalized):
    """Also in sequences without an alignment."""
    batch = draw(12, 7, 5, 6, 2)
    results = [calls.ctc(*batch, **ctc_options(2, True, normalized, softmax)) for calls in (gpu, cpu)]
    for a, b in zip(*results):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=2e-6)


# frames, batch, classes, states, ends; more frames than a part of the way back, more states than threads
CHAINS = [(1, 1, 2, 1, 0), (6, 5, 3, 3, 1), (70, 6, 5, 12, 0), (140, 3, 33, 64, 1), (9, 4, 4, 40, 1), (5, 2, 3, 0, 1),
          (0, 3, 3, 2, 1), (4, 0, 3, 2, 1), (9, 2, 5, 1100, 0)]  # fmt: skip


@pytest.mark.parametrize("shared", [0, 2048 + 256, 232448])
@pytest.mark.parametrize("size", CHAINS, ids=str)
def test_chains_are_those_of_the_cpu(gpu, cpu, size, shared, monkeypatch):
    """Best paths bit for bit. With so little shared memory the rows of the states are elsewhere."""
    scores, lens, chain = draw_chains(*size)
    if size[3] > 1000:  # short ways to the end
        chain["num_states"][:] = [7, 1033]
        scores, lens = np.repeat(scores, 60, 0), lens * 60
        chain["skip"][:] = 1
    if size[1] > 1:
        scores[:, 1] = np.round(scores[:, 1])  # paths that are equally good
    monkeypatch.setenv("RTF_EMULATION_SHARED", str(max(shared, 2300)))
    for best in (True, False) if shared or size[3] < 1000 else (True,):
        for a, b in zip(*(calls.chains(scores, lens, chain, best=best) for calls in (gpu, cpu))):
            np.testing.assert_allclose(a, b, rtol=0 if best else 1e-6, atol=0 if best else 2e-6)


def test_long_sequences_are_exact(gpu):
    scores, _, labels, _ = draw(700, 2, 9, 60, 8, scale=8.0)
    loss, gradient = gpu.ctc(scores, [700, 500], labels, [60, 31], **ctc_options(8))
    for b, (length, count) in enumerate([(700, 60), (500, 31)]):
        assert loss[b] == pytest.approx(reference.ctc_loss(scores[:length, b], labels[b, :count], 8), rel=3e-7)
    np.testing.assert_allclose(gradient.sum(-1), 0.0, atol=1e-4)


@pytest.mark.parametrize("low", [-1e3, -1e6, -1e9, -np.inf])
def test_forbidden_classes(gpu, cpu, low):
    """Scores far below all others, as masks give them, on all paths of some sequences."""
    scores, lens, chain = draw_chains(20, 5, 6, 9, 1)
    scores[3:9, :, 2:] = low
    results = [calls.chains(scores, lens, chain, best=False) for calls in (gpu, cpu)]
    for a, b in zip(*results):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=2e-6)
    assert np.isfinite(results[0][0]).all()


def test_padding_does_not_leak(gpu):
    scores, lens, labels, label_lens = draw(15, 6, 5, 4)
    dirty, dirty_labels = scores.copy(), labels.copy()
    dirty[np.arange(15)[:, None] >= lens] = np.nan
    dirty_labels[np.arange(4) >= label_lens[:, None]] = 99
    for normalized in (False, True):
        options = ctc_options(0, normalized=normalized)
        clean = gpu.ctc(scores, lens, labels, label_lens, **options)
        seen = gpu.ctc(dirty, lens, dirty_labels, label_lens, **options)
        for a, b in zip(clean, seen):
            np.testing.assert_array_equal(a, b)
    scores, lens, chain = draw_chains(15, 6, 5, 4, 1)
    dirty = scores.copy()
    dirty[np.arange(15)[:, None] >= lens] = np.nan
    for best in (False, True):
        for a, b in zip(*(gpu.chains(x, lens, chain, best=best) for x in (scores, dirty))):
            np.testing.assert_array_equal(a, b)


def live_states(frames, loop, skip, ends):
    """Return bool [frames, states]: whether an alignment may be in that state, by all transitions from both ends."""
    states = len(loop)
    into = np.diag(loop) | np.eye(states, k=1, dtype=bool) | (np.eye(states, k=2, dtype=bool) & skip)
    live = []
    for ways, start in ((into, np.arange(states) < ends), (into.T, np.arange(states) >= states - ends)):
        reached = [start]
        while len(reached) < frames:
            reached.append(reached[-1] @ ways)
        live.append(reached)
    return np.array(live[0]) & np.array(live[1][::-1])


def check_unread_scores(gpu, frames, states, may_skip, optional_ends, best):
    """Check that scores outside of all alignments are not read: they are NaN. Each state has a class of its own."""
    loop, skip = np.ones(states, bool), np.full(states, may_skip)
    chain = {"loop": loop[None], "skip": skip[None], "optional_ends": optional_ends,
             "classes": np.arange(states)[None], "num_states": [states]}  # fmt: skip
    scores = np.random.RandomState(3).normal(0, 2, (frames, 1, states)).astype("float32")
    live = live_states(frames, loop, skip, 1 + optional_ends)
    dirty = np.where(live[:, None], scores, np.nan).astype("float32")
    clean, seen = (gpu.chains(x, [frames], chain, best=best) for x in (scores, dirty))
    for a, b in zip(clean, seen):
        np.testing.assert_array_equal(a, b)
    assert np.isfinite(seen[1]).all() == live.any(1).all()


@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize("optional_ends", [0, 1])
@pytest.mark.parametrize("may_skip", [False, True])
@pytest.mark.parametrize("frames, states", [(9, 6), (40, 67), (12, 1), (5, 9)])
def test_scores_outside_of_all_alignments_are_not_read(gpu, frames, states, may_skip, optional_ends, best):
    check_unread_scores(gpu, frames, states, may_skip, optional_ends, best)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_is_seen(gpu, bad):
    """Numerical trouble must come through to the checks above."""
    scores, lens, labels, label_lens = draw(15, 6, 5, 4)
    label_lens[0] = 2
    scores[3, 0] = bad
    loss, gradient = gpu.ctc(scores, lens, labels, label_lens, **ctc_options(0))
    assert np.isnan(loss[0]) and np.isnan(gradient[:, 0]).any()
    assert np.isfinite(loss[1:]).all() and np.isfinite(gradient[:, 1:]).all()


def test_order_of_threads_and_batch_do_not_matter(gpu, monkeypatch):
    """Bit for bit."""
    scores, lens, labels, label_lens = draw(20, 5, 7, 6)
    options = ctc_options(0)
    together = gpu.ctc(scores, lens, labels, label_lens, **options)
    for seed, multiprocessors in ((2, 1), (3, 7)):
        monkeypatch.setenv("RTF_EMULATION_SEED", str(seed))
        monkeypatch.setenv("RTF_EMULATION_SMS", str(multiprocessors))
        for a, b in zip(together, gpu.ctc(scores, lens, labels, label_lens, **options)):
            np.testing.assert_array_equal(a, b)
    for b in range(5):
        one = slice(b, b + 1)
        loss, gradient = gpu.ctc(scores[: lens[b], one], lens[one], labels[one], label_lens[one], **options)
        np.testing.assert_array_equal(loss, together[0][one])
        np.testing.assert_array_equal(gradient, together[1][: lens[b], one])


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("sanitizer, cases", list(zip(SANITIZERS, ["25", "3"])))
def test_sanitizers(sanitizer, cases, seed):
    driver = os.path.join(HERE, "align_driver.cc")
    kernels = [os.path.join(SOURCES, "align", "%s_cuda.cu" % name) for name in KERNELS]
    run_sanitized(driver, *kernels, seed=seed, sanitizer=sanitizer, arguments=[cases])
