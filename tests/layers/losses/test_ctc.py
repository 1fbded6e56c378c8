"""ctc as loss and as layer: against the sum over all paths, and what the options change."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from tests.layers.losses.single import log_softmax, network_of

EXTERN = {"data": {"dim": 3}, "classes": {"dim": 2, "sparse": True}}
LENS = np.array([4, 3, 2], "int32")
LABELS = np.array([[0, 0], [1, 0], [1, 0]], "int32")
LABEL_LENS = np.array([2, 2, 0], "int32")


def _feed(labels: np.ndarray = LABELS, label_lens: np.ndarray = LABEL_LENS) -> dict[str, Any]:
    data = np.random.default_rng(3).normal(size=(3, 4, 3)).astype("float32")
    return {"data": data, "data/size0": LENS, "classes": labels, "classes/size0": label_lens}


def _paths(log_p: np.ndarray, labels: Sequence[int], blank: int, loop: bool) -> list[tuple[float, tuple[int, ...]]]:
    """Return (score, path) of all paths which stand for these labels."""
    result = []
    for path in itertools.product(range(log_p.shape[1]), repeat=len(log_p)):
        emitted = [c for c, _ in itertools.groupby(path)] if loop else list(path)
        if [c for c in emitted if c != blank] == list(labels):
            result.append((float(log_p[np.arange(len(log_p)), list(path)].sum()), path))
    return result


def _expected(feed: dict[str, Any], blank: int, loop: bool = True, best: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return ([batch] losses, [batch, time, classes] gradient w.r.t. the logits)."""
    losses, grad = np.zeros(3), np.zeros([3, 4, 3])
    for b, (n, m) in enumerate(zip(LENS, feed["classes/size0"])):
        log_p = log_softmax(feed["data"][b, :n].astype("float64"))
        paths = _paths(log_p, feed["classes"][b, :m], blank, loop)
        if not paths:
            continue
        paths = [max(paths)] if best else paths
        scores = np.array([s for s, _ in paths])
        losses[b] = -np.logaddexp.reduce(scores)
        posterior = np.zeros([n, 3])
        for score, path in paths:
            posterior[np.arange(n), list(path)] += np.exp(score + losses[b])
        grad[b, :n] = np.exp(log_p) - posterior
    return losses, grad


def _run(
    layer: dict[str, Any], feed: dict[str, Any], version: int = 21, **others: dict[str, Any]
) -> tuple[Any, np.ndarray]:
    """Return (result, gradient w.r.t. the logits): those are data times the unit matrix plus 0."""
    linear = {"class": "linear", "activation": None, "n_out": 3, "from": "data"}
    net = network_of(
        {"from": "z", **layer}, others={"z": linear, **others}, extern_data=EXTERN, behavior_version=version
    )
    net.set_param_values({"z/W": np.eye(3), "z/b": np.zeros([3])})
    out = net.run(feed, with_grad=True)
    return out, out.grads["z/W"]


def _check(out: Any, grad: np.ndarray, feed: dict[str, Any], expected: tuple[np.ndarray, np.ndarray]) -> None:
    losses, logits_grad = expected
    np.testing.assert_allclose(out.losses["output"], losses.sum(), rtol=1e-4)
    np.testing.assert_allclose(grad, np.einsum("bti,btj->ij", feed["data"], logits_grad), rtol=1e-3, atol=1e-4)


SOFTMAX = {"class": "activation", "activation": "softmax", "target": "classes", "loss": "ctc"}


@pytest.mark.parametrize(
    "opts, loop, best",
    [
        ({}, True, False),
        ({"use_native": True}, True, False),
        ({"use_viterbi": True}, True, True),
        ({"ctc_opts": {"ctc_merge_repeated": False}}, False, False),
        ({"ctc_opts": {"label_loop": False, "max_approx": True}, "use_native": True}, False, True),
        ({"ctc_opts": {"logits_normalize": False, "grad_wrt_softmax_in": False}, "use_native": True}, True, False),
        ({"ctc_opts": {"logits_normalize": False}, "use_native": True}, True, False),
        ({"ctc_opts": {"grad_wrt_softmax_in": False}, "use_native": True}, True, False),
    ],
    ids=str,
)
def test_loss_is_the_sum_over_all_paths(opts: dict[str, Any], loop: bool, best: bool) -> None:
    """One of the sequences has no labels."""
    feed = _feed()
    out, grad = _run({**SOFTMAX, "loss_opts": opts}, feed)
    _check(out, grad, feed, _expected(feed, 2, loop, best))
    assert out.counts["output"] == 4


@pytest.mark.parametrize(
    "layer",
    [
        SOFTMAX,
        {**SOFTMAX, "loss_opts": {"use_native": True}},
        {**SOFTMAX, "loss_opts": {"auto_clip_target_len": True}},
        {**SOFTMAX, "loss_opts": {"ctc_opts": {"preprocess_collapse_repeated": True}}},
        {"class": "ctc_loss", "logits": "z", "targets": "data:classes", "loss": "as_is"},
    ],
    ids=str,
)
def test_no_sequence_has_labels(layer: dict[str, Any]) -> None:
    """All paths are those of blanks; the targets have no frames at all."""
    feed = _feed(np.zeros([3, 0], "int32"), np.zeros([3], "int32"))
    out, grad = _run(layer, feed)
    _check(out, grad, feed, _expected(feed, 2))


@pytest.mark.parametrize(
    "layer", [{"activation": "log_softmax"}, {"activation": "log_softmax", "from": "copy"}], ids=str
)
def test_output_in_log_space(layer: dict[str, Any]) -> None:
    feed = _feed()
    copy = {"class": "eval", "eval": "source(0) + 0.0", "from": "z"}
    out, grad = _run({**SOFTMAX, **layer, "loss_opts": {"output_in_log_space": True}}, feed, copy=copy)
    _check(out, grad, feed, _expected(feed, 2))


def test_probabilities_of_another_layer() -> None:
    """Without a softmax to look behind, the log of the output is taken."""
    feed = _feed()
    p = {"class": "activation", "activation": "softmax", "from": "z"}
    layer = {"class": "eval", "eval": "source(0) * 1.0", "from": "p", "target": "classes", "loss": "ctc"}
    out, grad = _run(layer, feed, p=p)
    _check(out, grad, feed, _expected(feed, 2))


@pytest.mark.sampled
@pytest.mark.parametrize("blank", [0, 1, 2])
@pytest.mark.parametrize(
    "opts", [{}, {"max_approx": True}, {"label_loop": False}, {"logits_normalized": True}], ids=str
)
def test_layer_with_any_blank(blank: int, opts: dict[str, Any]) -> None:
    labels = np.where(blank <= LABELS, LABELS + 1, LABELS).astype("int32")
    feed = _feed(labels)
    extern = {"data": {"dim": 3}, "classes": {"dim": 3, "sparse": True}}
    z: dict[str, Any] = {"class": "linear", "activation": None, "n_out": 3, "from": "data"}
    if "logits_normalized" in opts:
        z["activation"] = "log_softmax"
    layer = {
        "class": "ctc_loss",
        "logits": "z",
        "targets": "data:classes",
        "blank_index": blank,
        "loss": "as_is",
        **opts,
    }
    net = network_of(layer, others={"z": z}, extern_data=extern, behavior_version=30)
    net.set_param_values({"z/W": np.eye(3), "z/b": np.zeros([3])})
    out = net.run(feed, with_grad=True)
    expected = _expected(feed, blank, opts.get("label_loop", True), opts.get("max_approx", False))
    _check(out, out.grads["z/W"], feed, expected)
    np.testing.assert_allclose(out.layers["output"].value, expected[0], rtol=1e-4, atol=1e-5)


@pytest.mark.sampled
@pytest.mark.parametrize("version", [21, 30])
@pytest.mark.parametrize("max_approx", [False, True])
def test_no_alignment(version: int, max_approx: bool) -> None:
    """Loss 0; before behavior version 30 with the softmax as gradient."""
    feed = _feed(np.array([[0, 1, 0], [0, 0, 1], [1, 1, 0]], "int32"), np.array([3, 3, 2], "int32"))
    layer = {"class": "ctc_loss", "logits": "z", "targets": "data:classes", "max_approx": max_approx, "loss": "as_is"}
    out, grad = _run(layer, feed, version)
    losses, expected = _expected(feed, 2, best=max_approx)
    assert losses[0] > 0 and (losses[1:] == 0).all()
    if version < 30:
        for b in (1, 2):
            expected[b, : LENS[b]] = np.exp(log_softmax(feed["data"][b, : LENS[b]]))
    _check(out, grad, feed, (losses, expected))


@pytest.mark.slow
def test_targets_clipped_and_collapsed() -> None:
    feed = _feed(np.array([[0, 0, 1], [0, 1, 0], [1, 0, 0]], "int32"), np.array([3, 3, 2], "int32"))
    out, grad = _run({**SOFTMAX, "loss_opts": {"auto_clip_target_len": True}}, feed)
    _check(out, grad, feed, _expected({**feed, "classes/size0": np.array([3, 2, 1], "int32")}, 2))
    clipped, _ = _run(SOFTMAX, {**feed, "classes/size0": np.array([3, 2, 1], "int32")})
    assert out.errors == clipped.errors
    out, grad = _run({**SOFTMAX, "loss_opts": {"ctc_opts": {"preprocess_collapse_repeated": True}}}, feed)
    collapsed = {
        **feed,
        "classes": np.array([[0, 1, 0], [0, 1, 0], [1, 0, 0]]),
        "classes/size0": np.array([2, 3, 2]),
    }
    _check(out, grad, feed, _expected(collapsed, 2))


@pytest.mark.parametrize("train, expected", [(True, 1.0), (False, 0.0)])
def test_error_is_greedy_in_training_and_beam_search_otherwise(train: bool, expected: float) -> None:
    """The best path is all blank, yet the label has more probability in all its paths together."""
    layer = {"class": "activation", "activation": "softmax", "target": "classes", "loss": "ctc"}
    net = network_of(layer, extern_data=EXTERN, train=train)
    data = np.log(np.array([[[0.4, 1e-9, 0.6], [0.4, 1e-9, 0.6]]], "float32"))
    feed = {
        "data": data,
        "data/size0": np.array([2], "int32"),
        "classes": np.array([[0]], "int32"),
        "classes/size0": np.array([1], "int32"),
    }
    # The best class per frame is the blank; label 0 has 0.64 in all its paths together.
    assert net.run(feed).errors["output"] == expected


@pytest.mark.parametrize("wrt_softmax", [True, False])
def test_gradient_of_scores_that_are_no_logs_of_probabilities(wrt_softmax: bool) -> None:
    """Minus the alignment; or softmax minus alignment, as if there were a softmax, which the value does not have."""
    feed = _feed()
    opts = {"logits_normalize": False, "grad_wrt_softmax_in": wrt_softmax}
    layer = {"class": "copy", "target": "classes", "loss": "ctc"}
    out, grad = _run({**layer, "loss_opts": {"output_in_log_space": True, "ctc_opts": opts}}, feed)
    losses, expected = np.zeros(3), np.zeros([3, 4, 3])
    for b, (n, m) in enumerate(zip(LENS, LABEL_LENS)):
        x = feed["data"][b, :n].astype("float64")
        paths = _paths(x, LABELS[b, :m], 2, True)
        losses[b] = -np.logaddexp.reduce([score for score, _ in paths])
        for score, path in paths:
            expected[b, np.arange(n), list(path)] -= np.exp(score + losses[b])
        expected[b, :n] += np.exp(log_softmax(x)) if wrt_softmax else 0
    _check(out, grad, feed, (losses, expected))


@pytest.mark.parametrize("native", [True, False])
def test_another_blank(native: bool) -> None:
    """Value, gradient and error are those of the classes in another order."""
    feed = _feed(LABELS + 1)
    moved = _feed()
    moved["data"] = np.roll(feed["data"], -1, axis=2)
    extern = {"data": {"dim": 3}, "classes": {"dim": 3, "sparse": True}}
    net = network_of(
        {**SOFTMAX, "n_out": 3, "loss_opts": {"use_native": native, "ctc_opts": {"blank_index": 0}}, "target": "c"},
        others={"c": {"class": "reinterpret_data", "set_sparse_dim": 2, "from": "data:classes"}},
        extern_data=extern,
    )
    other, _ = _run(SOFTMAX, moved)
    out = net.run(feed)
    np.testing.assert_allclose(out.losses["output"], other.losses["output"], rtol=1e-5)
    assert out.errors == other.errors


@pytest.mark.parametrize(
    "opts,message",
    [
        ({"use_viterbi": True, "ctc_opts": {"label_loop": False}}, "use_viterbi takes no ctc_opts"),
        ({"ctc_opts": {"blank_index": 3}}, "blank_index 3: there are only 3 classes"),
        ({"ctc_opts": {"grad_wrt_softmax": False}}, "Did you mean 'grad_wrt_softmax_in'"),
    ],
)
def test_mistakes_in_ctc_opts(opts: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        network_of({**SOFTMAX, "loss_opts": opts}, extern_data=EXTERN)
