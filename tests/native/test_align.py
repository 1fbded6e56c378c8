"""Native alignments: against numpy in float64, numeric gradients, the plain form, ragged and empty batches, padding."""

import numpy as np
import pytest

from returnn_tf.native import align_ops, native_best_alignment, native_ctc, native_soft_alignment
from returnn_tf.ops.sequence.ctc_variants import ctc_variant
from returnn_tf.ops.sequence.fast_bw import (
    best_alignment,
    chain_topology,
    ctc_topology,
    label_topology,
    soft_alignment,
)
from returnn_tf.util.lazy_tf import tf
from tests.native import align_reference as reference

# frames, batch, classes, labels; numbers of states beside the lanes of a vector (4, 8, 16) and on them
SIZES = [(1, 1, 2, 1), (6, 5, 3, 3), (13, 4, 17, 7), (25, 6, 5, 8), (40, 3, 33, 16), (9, 4, 4, 4)]


@pytest.fixture(scope="module")
def ops():
    found = align_ops()
    assert found is not None, "the native alignments have to compile where the tests run"
    return found


def draw(frames, batch, classes, n_labels, blank=0, seed=1, scale=2.0):
    """Return the scores, lengths, labels, their lengths; a usual one, an empty one, one with too many labels."""
    rng = np.random.RandomState(seed)
    scores = rng.normal(0, scale, (frames, batch, classes)).astype("float32")
    labels = rng.randint(0, classes - 1, (batch, n_labels)).astype("int32")
    labels += labels >= blank
    lens = rng.randint(frames // 2, frames + 1, batch).astype("int32")
    label_lens = rng.randint(0, min(n_labels, max(frames // 3, 1)) + 1, batch).astype("int32")
    lens[0] = frames
    for b, (length, count) in enumerate([(0, 0), (frames // 3, n_labels), (0, 1)], start=1):
        if b < batch:
            lens[b], label_lens[b] = length, count
    return scores, lens, labels, label_lens


def states_of(topology):
    return {
        "classes": topology.classes,
        "num_states": topology.num_states,
        "loop": topology.loop,
        "skip": topology.skip,
        "optional_ends": topology.optional_ends,
    }


def with_gradient(function, x):
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = function(x)
    return loss.numpy(), tape.gradient(loss, x).numpy()


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("label_loop", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_ctc(ops, size, label_loop, normalized):
    """Values are those of numpy in float64, the gradient is the slope of these."""
    blank = size[2] // 2
    scores, lens, labels, label_lens = draw(*size, blank)
    options = {"blank": blank, "label_loop": label_loop, "normalized": normalized}
    loss, gradient = with_gradient(lambda x: native_ctc(ops, x, lens, labels, label_lens, **options), scores)
    for b, (length, count) in enumerate(zip(lens, label_lens)):

        def value(x, b=b, count=count):
            return reference.ctc_loss(x, labels[b, :count], **options)

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


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("blank", [0, 2, 4])
@pytest.mark.parametrize("softmax", [False, True])
def test_ctc_is_the_plain_form(ops, blank, softmax):
    """Also in sequences without an alignment."""
    scores, lens, labels, label_lens = draw(12, 7, 5, 6, blank)
    for normalized in (False, True):
        plain = with_gradient(
            lambda x, n=normalized: ctc_variant(
                x, lens, labels, label_lens, blank=blank, normalized=n, keep_gradient_without_alignment=softmax
            ),
            scores,
        )
        native = with_gradient(
            lambda x, n=normalized: native_ctc(
                ops, x, lens, labels, label_lens, blank=blank, normalized=n, softmax_without_alignment=softmax
            ),
            scores,
        )
        for a, b in zip(plain, native):
            np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("kind", ["ctc", "rna", "labels", "chain"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_topologies(ops, size, kind):
    """Posteriors, sums and best paths are those of the plain form; it has paths and posteriors tested one by one."""
    scores, lens, labels, label_lens = draw(*size)
    if kind in ("ctc", "rna"):
        topology = ctc_topology(labels, label_lens, 0, label_loop=kind == "ctc")
    elif kind == "labels":
        topology = label_topology(labels, label_lens)
    else:
        topology = chain_topology(tf.minimum(label_lens, size[2]), min(size[3], size[2]))
        topology = topology if size[3] <= size[2] else chain_topology(tf.minimum(label_lens, size[2]), size[2])
    for plain, native, tolerance in ((soft_alignment, native_soft_alignment, 2e-5), (best_alignment, native_best_alignment, 0)):  # fmt: skip  # noqa: E501
        for a, b in zip(plain(scores, lens, topology), native(ops, scores, lens, **states_of(topology))):
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=tolerance)


@pytest.mark.usefixtures("device")
@pytest.mark.slow
def test_long_sequences_are_exact(ops):
    """Where sums in log space lose digits: 3000 frames, scores in the thousands."""
    scores, _, labels, _ = draw(3000, 2, 9, 150, 8, scale=8.0)
    lens, counts = np.array([3000, 2000], "int32"), np.array([150, 100], "int32")
    loss, gradient = with_gradient(lambda x: native_ctc(ops, x, lens, labels, counts, blank=8), scores)
    for b in range(2):
        expected = reference.ctc_loss(scores[: lens[b], b], labels[b, : counts[b]], 8)
        assert loss[b] == pytest.approx(expected, rel=3e-7)
    topology = ctc_topology(labels, counts, 8)
    posteriors = native_soft_alignment(ops, scores, lens, **states_of(topology))[0]
    sums = tf.reduce_sum(posteriors, axis=2).numpy()
    np.testing.assert_allclose(sums[:2000], 1.0, rtol=1e-4)
    np.testing.assert_array_equal(sums[2000:, 1], 0.0)
    np.testing.assert_allclose(gradient.sum(-1), 0.0, atol=1e-4)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("low", [-1e3, -1e6, -1e9, -np.inf])
def test_forbidden_classes(ops, low):
    """Scores far below all others, as masks give them, on all paths of some sequences."""
    scores, lens, labels, label_lens = draw(20, 5, 6, 4)
    scores[3:9, :, 2:] = low
    label_lens[4], lens[4] = 4, 8
    topology = ctc_topology(labels, label_lens, 0)
    posteriors, total = (x.numpy() for x in native_soft_alignment(ops, scores, lens, **states_of(topology)))
    assert np.isfinite(posteriors).all() and posteriors.max() <= 9  # states
    for b in range(5):
        chain = reference.ctc_chain(labels[b, : label_lens[b]], 0, True)
        expected = reference.alignment_score(scores[: lens[b], b], *chain, True, np.logaddexp)
        assert float(total[b]) == pytest.approx(expected, rel=1e-6)
        if expected > -1e7:
            np.testing.assert_allclose(posteriors[: lens[b], b].sum(-1), 1.0, rtol=1e-5)


@pytest.mark.usefixtures("device")
def test_rare_labels_stay(ops):
    """A path that is e^-1000 times less likely than others up to some frame, and the only one in the end."""
    scores = np.zeros((40, 1, 3), "float32")
    scores[:20, :, 1] = -100.0
    labels = np.full((1, 30), 1, "int32")
    topology = ctc_topology(labels, tf.constant([30]), 0, label_loop=False)
    posteriors, total = native_soft_alignment(ops, scores, [40], **states_of(topology))
    chain = reference.ctc_chain(labels[0], 0, False)
    expected = reference.alignment_score(scores[:, 0], *chain, True, np.logaddexp)
    assert expected < -900 and float(total[0]) == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(posteriors[:, 0, 1], [0.5] * 20 + [1.0] * 20, rtol=1e-5)


@pytest.mark.usefixtures("device")
def test_padding_does_not_leak(ops):
    scores, lens, labels, label_lens = draw(15, 6, 5, 4)
    dirty, dirty_labels = scores.copy(), labels.copy()
    dirty[np.arange(15)[:, None] >= lens] = np.nan
    dirty_labels[np.arange(4) >= label_lens[:, None]] = 99
    for normalized in (False, True):
        seen = [
            with_gradient(
                lambda s, y=y, n=normalized: native_ctc(ops, s, lens, y, label_lens, blank=0, normalized=n), x
            )
            for x, y in ((scores, labels), (dirty, dirty_labels))
        ]
        np.testing.assert_array_equal(*[loss for loss, _ in seen])
        np.testing.assert_array_equal(*[gradient for _, gradient in seen])
    topology = ctc_topology(labels, label_lens, 0)
    for function in (native_soft_alignment, native_best_alignment):
        results = [function(ops, x, lens, **states_of(topology)) for x in (scores, dirty)]
        for clean, result in zip(*results):
            np.testing.assert_array_equal(clean, result)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_is_seen(ops, bad):
    """Numerical trouble must come through to the checks above."""
    scores, lens, labels, label_lens = draw(15, 6, 5, 4)
    label_lens[0] = 2
    scores[3, 0] = bad
    loss, gradient = with_gradient(lambda x: native_ctc(ops, x, lens, labels, label_lens, blank=0), scores)
    assert np.isnan(loss[0]) and np.isnan(gradient[:, 0]).any()
    assert np.isfinite(loss[1:]).all() and np.isfinite(gradient[:, 1:]).all()


def test_sequences_do_not_depend_on_the_batch(ops):
    """Bit for bit: neither the other sequences, nor the padding, nor the thread change a sum."""
    scores, lens, labels, label_lens = draw(30, 11, 7, 6)
    topology = ctc_topology(labels, label_lens, 0)
    together = native_soft_alignment(ops, scores, lens, **states_of(topology))
    loss, gradient = with_gradient(lambda x: native_ctc(ops, x, lens, labels, label_lens, blank=0), scores)
    for b in range(11):
        one, frames, count = slice(b, b + 1), lens[b], label_lens[b]
        own = ctc_topology(labels[one, :count], label_lens[one], 0)
        alone = native_soft_alignment(ops, scores[:frames, one], lens[one], **states_of(own))
        np.testing.assert_array_equal(alone[0], together[0][:frames, one])
        np.testing.assert_array_equal(alone[1], together[1][one])
        alone = native_ctc(ops, scores[:frames, one], lens[one], labels[one, :count], label_lens[one], blank=0)
        np.testing.assert_array_equal(alone, loss[one])
        assert not gradient[frames:, b].any()


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("frames, batch, n_labels", [(0, 3, 2), (4, 0, 2), (0, 0, 0), (4, 2, 0)])
def test_empty(ops, frames, batch, n_labels):
    scores, labels = np.zeros((frames, batch, 3), "float32"), np.zeros((batch, n_labels), "int32")
    lens, counts = np.full([batch], frames, "int32"), np.full([batch], n_labels, "int32")
    loss, gradient = with_gradient(lambda x: native_ctc(ops, x, lens, labels, counts, blank=2), scores)
    assert gradient.shape == scores.shape
    np.testing.assert_allclose(loss, np.full([batch], 4 * np.log(3.0) if frames and not n_labels else 0.0), 1e-6)
    topology = label_topology(labels, counts)
    for function in (native_soft_alignment, native_best_alignment):
        total = function(ops, scores, lens, **states_of(topology))[1]
        np.testing.assert_array_equal(total, np.full([batch], -np.inf))


BAD = [
    ({"scores": np.zeros((4, 2), "float32")}, "scores have to be [time, batch, classes], but are [4,2]"),
    ({"lengths": [4, 5]}, "length of sequence 1 is 5, but there are 4"),
    ({"lengths": [-1, 4]}, "length of sequence 0 is -1"),
    ({"lengths": [4]}, "length has to be [2], but is [1]"),
    ({"labels": [[0, 1], [3, 0]]}, "labels of sequence 1 has 3 at place 0, but there are 3 classes"),
    ({"labels": [[-1, 1], [0, 0]]}, "labels of sequence 0 has -1 at place 0"),
    ({"label_lengths": [1, 3]}, "number of labels of sequence 1 is 3, but there are 2"),
    ({"blank": 3}, "blank 3, but there are 3 classes"),
]


@pytest.mark.parametrize("change, text", BAD, ids=lambda value: str(value)[:30])
def test_wrong_input(ops, change, text):
    inputs = {"scores": np.zeros((4, 2, 3), "float32"), "lengths": [4, 4], "labels": [[0, 1], [0, 0]]}
    inputs.update({"label_lengths": [2, 1], "blank": 2, **change})
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        ops.rtf_ctc(**inputs, label_loop=True, normalized=False, softmax_without_alignment=False)
    assert text in str(info.value)


def test_in_a_function_with_unknown_shapes(ops):
    """Static shapes that are not known, and the gradient while tracing."""

    @tf.function(input_signature=[tf.TensorSpec([None, None, 5]), *[tf.TensorSpec(s, tf.int32) for s in ([None], [None, None], [None])]])  # fmt: skip  # noqa: E501
    def step(x, lens, labels, label_lens):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = native_ctc(ops, x, lens, labels, label_lens, blank=0)
        path, _ = native_best_alignment(ops, x, lens, **states_of(ctc_topology(labels, label_lens, 0)))
        assert loss.shape.as_list() == [None] and path.shape.as_list() == [None, None]
        return loss, tape.gradient(loss, x)

    inputs = draw(9, 4, 5, 3)
    loss, gradient = step(*inputs)
    assert gradient.shape == (9, 4, 5) and loss.shape == (4,)
