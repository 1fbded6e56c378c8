"""Native acceptors and transducers: against numpy in float64, numeric gradients, the plain form."""

import functools

import numpy as np
import pytest

from returnn_tf.native import align_ops
from returnn_tf.native.decoding.align import native_acceptor_alignment, native_acceptor_path, native_transducer
from returnn_tf.ops.sequence.fsa import Acceptors, best_path_of_acceptors, soft_alignment_of_acceptors
from returnn_tf.ops.sequence.transducer import transducer_loss
from returnn_tf.util.lazy_tf import tf
from tests.native import align_reference as reference

# batch, frames, labels, classes
SIZES = [(1, 1, 1, 2), (5, 7, 4, 6), (4, 9, 15, 3), (4, 20, 16, 40), (6, 3, 5, 5)]


@pytest.fixture(scope="module")
def ops():
    found = align_ops()
    assert found is not None, "the native alignments have to compile where the tests run"
    return found


@functools.cache
def traced_transducer(device, native, **options):
    """Return a function of scores, lengths, labels and their lengths: losses and their gradient, traced once.

    As in a network, no size is known.

    :param device: the one on which it is traced, for the cache
    """
    function = functools.partial(native_transducer, align_ops()) if native else transducer_loss

    signature = [tf.TensorSpec([None] * rank, kind) for rank, kind in zip((4, 1, 2, 1), ("float32", *3 * ["int32"]))]

    @tf.function(input_signature=signature)
    def run(scores, *others):
        with tf.GradientTape() as tape:
            tape.watch(scores)
            loss = function(scores, *others, **options)
        return loss, tape.gradient(loss, scores)

    return lambda *inputs: [result.numpy() for result in run(*inputs)]


def draw_transducer(batch, frames, n_labels, classes, seed=1):
    """A whole sequence, an empty one, one without labels, one without frames, then usual ones; the blank is 0."""
    rng = np.random.RandomState(seed)
    scores = rng.normal(0, 2, (batch, frames, n_labels + 1, classes)).astype("float32")
    lens = rng.randint(1, frames + 1, batch).astype("int32")
    label_lens = rng.randint(0, n_labels + 1, batch).astype("int32")
    lens[:4] = [frames, 0, frames, 0][:batch]
    label_lens[:4] = [n_labels, 0, 0, 1][:batch]
    return scores, lens, rng.randint(1, classes, (batch, n_labels)).astype("int32"), label_lens


@pytest.mark.sampled(2)
@pytest.mark.parametrize("label_takes_frame", [False, True])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_transducer(ops, device, size, normalized, label_takes_frame):
    """Native and plain form: the values of numpy in float64, and their slopes."""
    scores, lens, labels, label_lens = draw_transducer(*size)
    options = {"blank": 0, "normalized": normalized, "label_takes_frame": label_takes_frame}
    plain = traced_transducer(device, False, **options)(scores, lens, labels, label_lens)
    loss, gradient = traced_transducer(device, True, **options)(scores, lens, labels, label_lens)
    np.testing.assert_allclose(loss, plain[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient, plain[1], atol=2e-5)
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
        direction = np.random.RandomState(b).normal(0, 1, scores[own].shape)
        slope = float((gradient[own] * direction).sum())
        assert slope == pytest.approx(reference.slope(value, scores[own], direction), rel=2e-4, abs=2e-4)


@pytest.mark.parametrize("label_takes_frame", [False, True])
def test_padding_of_a_transducer_does_not_leak(ops, device, label_takes_frame):
    scores, lens, labels, label_lens = draw_transducer(7, 8, 5, 4)
    dirty = scores.copy()
    outside = (np.arange(8)[:, None] >= lens[:, None, None]) | (np.arange(6) > label_lens[:, None, None])
    dirty[outside] = np.nan
    for native in (False, True):
        run = traced_transducer(device, native, blank=0, label_takes_frame=label_takes_frame, normalized=False)
        clean, seen = (run(x, lens, labels, label_lens) for x in (scores, dirty))
        np.testing.assert_array_equal(clean[0], seen[0])
        np.testing.assert_array_equal(clean[1], seen[1])


@pytest.mark.usefixtures("device")
def test_long_transducer_is_exact(ops):
    scores, _, labels, _ = draw_transducer(1, 400, 40, 5)
    loss = native_transducer(ops, scores, [400], labels, [40], blank=0)
    expected = reference.transducer_loss(scores[0], labels[0], blank=0)
    assert float(loss[0]) == pytest.approx(expected, rel=3e-7)


def draw_acceptors(batch, frames, classes, states, edges, seed=2):
    """Return random graphs with a chain to the end, such that some have a path; the last has no edge at all."""
    rng = np.random.RandomState(seed)
    counts = rng.randint(1, states + 1, batch).astype("int32")
    arcs = rng.randint(0, 2**30, (batch, edges, 3)) % np.stack([counts, counts, 0 * counts + classes], 1)[:, None]
    for b, count in enumerate(counts):
        chain = np.arange(min(count - 1, edges))
        arcs[b, chain, 0], arcs[b, chain, 1] = chain, chain + 1
    arcs[rng.uniform(size=arcs.shape[:2]) < 0.1] = -1
    arcs[-1] = -1
    scores = rng.normal(0, 2, (frames, batch, classes)).astype("float32")
    lens = rng.randint(0, frames + 1, batch).astype("int32")
    return scores, lens, Acceptors(arcs.astype("int32"), rng.uniform(0, 3, (batch, edges)).astype("float32"), counts)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("size", [(1, 1, 1, 1, 1), (7, 9, 5, 4, 12), (5, 30, 40, 9, 60), (4, 0, 3, 2, 3)], ids=str)
def test_acceptors_are_the_plain_form(ops, size):
    """That form is tested against all paths, one by one."""
    scores, lens, acceptors = draw_acceptors(*size)
    plain = soft_alignment_of_acceptors(tf.constant(scores), tf.constant(lens), acceptors)
    native = native_acceptor_alignment(ops, scores, lens, acceptors.edges, acceptors.costs, acceptors.num_states)
    for a, b in zip(plain, native):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5)
    dirty = scores.copy()
    dirty[np.arange(size[1])[:, None] >= lens] = np.nan
    again = native_acceptor_alignment(ops, dirty, lens, acceptors.edges, acceptors.costs, acceptors.num_states)
    for a, b in zip(native, again):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("size", [(1, 1, 1, 1, 1), (7, 9, 5, 4, 12), (5, 30, 40, 9, 60), (4, 0, 3, 2, 3)], ids=str)
@pytest.mark.parametrize("ties", [False, True])
def test_best_paths_of_acceptors_are_those_of_the_plain_form(ops, size, ties):
    """Bit for bit, also where several are equally good."""
    scores, lens, acceptors = draw_acceptors(*size)
    if ties:
        scores, acceptors = (
            np.round(scores),
            Acceptors(acceptors.edges, np.round(acceptors.costs), acceptors.num_states),
        )
    plain = best_path_of_acceptors(tf.constant(scores), tf.constant(lens), acceptors)
    scores[np.arange(size[1])[:, None] >= lens] = np.nan
    native = native_acceptor_path(ops, scores, lens, acceptors.edges, acceptors.costs, acceptors.num_states)
    for a, b in zip(plain, native):
        np.testing.assert_array_equal(a, b)


GOOD = {
    "acceptor_soft": {
        "scores": np.zeros((3, 1, 2), "float32"), "lengths": [3], "edges": [[[0, 1, 1]]], "costs": [[0.0]],
        "num_states": [2],
    },
    "transducer": {
        "scores": np.zeros((1, 3, 2, 4), "float32"), "lengths": [3], "labels": [[1]], "label_lengths": [1],
        "blank": 0, "label_takes_frame": False, "normalized": False,
    },
}  # fmt: skip
GOOD["acceptor_best"] = GOOD["acceptor_soft"]
BAD = [
    ("acceptor_best", {"edges": [[[0, 2, 1]]]}, "edge (from 0, to 2, class 1), but there are 2 states and 2 classes"),
    ("acceptor_soft", {"edges": [[[0, 2, 1]]]}, "edge (from 0, to 2, class 1), but there are 2 states and 2 classes"),
    ("acceptor_soft", {"edges": [[[-1, 1, 0]]]}, "edge (from -1"),
    ("acceptor_soft", {"edges": [[[0, 1, 2]]]}, "class 2), but there are 2 states and 2 classes"),
    ("acceptor_soft", {"num_states": [0]}, "sequence 0 has an automaton without a state"),
    ("acceptor_soft", {"costs": [[0.0, 1.0]]}, "costs have to be [1, 1], but are [1,2]"),
    ("transducer", {"labels": [[4]]}, "labels of sequence 0 has 4 at place 0, but there are 4 classes"),
    ("transducer", {"labels": [[1, 1]]}, "scores have to be [1, time, 3, classes], but are [1,3,2,4]"),
    ("transducer", {"lengths": [4]}, "length of sequence 0 is 4, but there are 3"),
    ("transducer", {"blank": -1}, "blank -1, but there are 4 classes"),
]


@pytest.mark.parametrize("name, change, text", BAD, ids=lambda value: str(value)[:30])
def test_wrong_input(ops, name, change, text):
    run = getattr(ops, "rtf_" + name)
    run(**GOOD[name])
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        run(**{**GOOD[name], **change})
    assert text in str(info.value)
