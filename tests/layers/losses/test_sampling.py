"""sampling_loss: what it estimates, when it samples, and the distributions it samples from."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import tensorflow as tf

from returnn_tf.ops.sampled_loss import SAMPLERS
from tests.layers.losses.single import feed_of, log_softmax, network_of, valid

CLASSES = 7
EXTERN = {"data": {"dim": 4}, "classes": {"dim": CLASSES, "sparse": True}}


def _net(train: bool, **opts: Any) -> Any:
    layer = {"class": "softmax", "use_transposed_weights": True, "loss": "sampling_loss", "target": "classes"}
    return network_of({**layer, "loss_opts": opts}, extern_data=EXTERN, train=train)


def _feed() -> dict[str, Any]:
    return {k: v for k, v in feed_of(labels=CLASSES).items() if not k.startswith("target")}


def _full(net: Any, feed: dict[str, Any]) -> float:
    x = valid(feed["data"]).astype("float64")
    values = net.get_param_values()
    z = x @ values["output/W"].T + values["output/b"]
    return float(-log_softmax(z)[numpy.arange(12), valid(feed["classes"])].sum())


@pytest.mark.parametrize("train, full", [(False, False), (False, True), (True, True)])
def test_full_softmax_outside_of_training(train: bool, full: bool) -> None:
    net, feed = _net(train, num_sampled=2, use_full_softmax=full), _feed()
    out = net.run(feed)
    numpy.testing.assert_allclose(out.losses["output"], _full(net, feed), rtol=1e-4)
    assert "output" in out.errors


@pytest.mark.parametrize("sampler", ["log_uniform", "uniform", "fixed_unigram"])
@pytest.mark.parametrize("splits", [1, 3])
def test_many_samples(sampler: str, splits: int) -> None:
    args = {"unigrams": [5, 4, 3, 2, 2, 1, 1]} if sampler == "fixed_unigram" else None
    opts = {"num_sampled": 20000, "num_splits": splits, "sampler": sampler, "sampler_args": args}
    net, feed = _net(True, **opts, remove_accidental_hits=True), _feed()
    out = net.run(feed, with_grad=True)
    assert "output" not in out.errors
    counted = _if_drawn_as_expected(net, feed, sampler, args, 20000)
    numpy.testing.assert_allclose(out.losses["output"], counted, rtol=0.02)
    assert numpy.isfinite(out.grads["output/W"]).all()


def _if_drawn_as_expected(net: Any, feed: dict[str, Any], sampler: str, args: Any, count: int) -> float:
    """The loss if every class were drawn exactly as often as expected."""
    x, labels = valid(feed["data"]).astype("float64"), valid(feed["classes"])
    values = net.get_param_values()
    z = x @ values["output/W"].T + values["output/b"]
    _, log_prob = SAMPLERS[sampler](CLASSES, **(args or {}))
    q = numpy.exp(log_prob(tf.range(CLASSES)).numpy())
    total = 0.0
    for scores, label in zip(z, labels):
        others = sum(numpy.exp(scores[k]) for k in range(CLASSES) if k != label)
        true = numpy.exp(scores[label]) / (count * q[label])
        total += -numpy.log(true / (true + others))
    return total


def test_new_labels_in_every_step_and_the_same_in_the_same_step() -> None:
    net, feed = _net(True, num_sampled=2, nce_loss=True, nce_log_norm_term=1.0), _feed()
    first, again = net.run(feed).losses["output"], net.run(feed).losses["output"]
    assert first == again
    net.global_step.assign_add(1)
    assert net.run(feed).losses["output"] != first


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_samplers_draw_what_they_say(name: str) -> None:
    draw, log_prob = SAMPLERS[name](CLASSES, unigrams=[9, 1, 0, 3, 3, 1, 2], distortion=0.5)
    probs = numpy.exp(log_prob(tf.range(CLASSES)).numpy())
    numpy.testing.assert_allclose(probs.sum(), 1.0, rtol=1e-5)
    drawn = draw(tf.random.stateless_uniform([200000], [1, 2])).numpy()
    numpy.testing.assert_allclose(numpy.bincount(drawn, minlength=CLASSES) / 200000, probs, atol=0.01)
