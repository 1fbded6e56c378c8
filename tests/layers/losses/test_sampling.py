"""sampling_loss: what it estimates, when it samples, and the distributions it samples from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from returnn_tf.config import ConfigError
from returnn_tf.ops.sampled_loss import SAMPLERS, draws_by
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
    return float(-log_softmax(z)[np.arange(12), valid(feed["classes"])].sum())


@pytest.mark.parametrize("train, full", [(False, False), (False, True), (True, True)])
def test_full_softmax_outside_of_training(train: bool, full: bool) -> None:
    net, feed = _net(train, num_sampled=2, use_full_softmax=full), _feed()
    out = net.run(feed)
    np.testing.assert_allclose(out.losses["output"], _full(net, feed), rtol=1e-4)
    assert "output" in out.errors


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("sampler", ["log_uniform", "uniform", "fixed_unigram"])
@pytest.mark.parametrize("splits", [1, 3])
def test_many_samples(sampler: str, splits: int) -> None:
    args = {"unigrams": [5, 4, 3, 2, 2, 1, 1]} if sampler == "fixed_unigram" else None
    opts = {"num_sampled": 20000, "num_splits": splits, "sampler": sampler, "sampler_args": args}
    net, feed = _net(True, **opts, remove_accidental_hits=True), _feed()
    out = net.run(feed, with_grad=True)
    assert "output" not in out.errors
    counted = _if_drawn_as_expected(net, feed, sampler, args, 20000)
    np.testing.assert_allclose(out.losses["output"], counted, rtol=0.02)
    assert np.isfinite(out.grads["output/W"]).all()


def _if_drawn_as_expected(net: Any, feed: dict[str, Any], sampler: str, args: Any, count: int) -> float:
    """Return the loss if every class were drawn exactly as often as expected."""
    x, labels = valid(feed["data"]).astype("float64"), valid(feed["classes"])
    values = net.get_param_values()
    z = x @ values["output/W"].T + values["output/b"]
    _, log_prob = SAMPLERS[sampler](CLASSES, **(args or {}))
    q = np.exp(log_prob(tf.range(CLASSES)).numpy())
    total = 0.0
    for scores, label in zip(z, labels):
        others = sum(np.exp(scores[k]) for k in range(CLASSES) if k != label)
        true = np.exp(scores[label]) / (count * q[label])
        total += -np.log(true / (true + others))
    return total


LINEAR = {"class": "linear", "activation": None, "n_out": CLASSES, "loss": "sampling_loss", "target": "classes"}


@pytest.mark.sampled
@pytest.mark.parametrize("train, full", [(True, True), (False, False), (True, False)])
@pytest.mark.parametrize("beside_a_loop", [True, False])
def test_in_a_loop(train: bool, full: bool, beside_a_loop: bool) -> None:
    """Whether or not something else runs step by step."""
    layer = {
        "class": "softmax",
        "use_transposed_weights": True,
        "target": "classes",
        "loss": "sampling_loss",
        "loss_opts": {"num_sampled": 3, "num_splits": 2, "use_full_softmax": full},
        "from": "s",
    }
    s = {"class": "combine", "kind": "add", "from": ["prev:s" if beside_a_loop else "data:source", "data:source"]}
    loop = {"class": "rec", "from": "data", "target": "classes", "unit": {"s": s, "output": layer}}
    net, feed = network_of(loop, extern_data=EXTERN, train=True), _feed()
    out = net.run(feed, with_grad=True, train=train)
    assert np.abs(out.grads["output/rec/output/W"]).sum() > 0
    if train and not full:
        assert np.isfinite(out.losses["output/output"]) and "output/output" not in out.errors
        return
    values = net.get_param_values()
    data = np.cumsum(feed["data"], axis=1) if beside_a_loop else 2 * feed["data"]
    z = valid(data).astype("float64") @ values["output/rec/output/W"].T + values["output/rec/output/b"]
    wanted = -log_softmax(z)[np.arange(12), valid(feed["classes"])].sum()
    np.testing.assert_allclose(out.losses["output/output"], wanted, rtol=1e-4)


@pytest.mark.slow
def test_values_in_a_loop_are_those_outside() -> None:
    opts = {"num_sampled": 20000, "sampler": "uniform"}
    layer = {
        "class": "softmax", "use_transposed_weights": True, "loss": "sampling_loss", "target": "classes",
        "loss_opts": opts,
    }  # fmt: skip
    unit = {"output": {**layer, "from": "data:source"}}
    net = network_of({"class": "rec", "from": "data", "unit": unit}, extern_data=EXTERN, train=True)
    feed = _feed()
    outside = _net(True, **opts)
    outside.set_param_values({k.replace("output/rec/", ""): v for k, v in net.get_param_values().items()})
    np.testing.assert_allclose(net.run(feed).losses["output/output"], outside.run(feed).losses["output"], rtol=0.03)


def test_other_layers_with_weights_by_label() -> None:
    """Weights of an embedding, and no softmax."""
    others = {
        "emb": {"class": "linear", "activation": None, "n_out": 4, "from": "data:classes", "with_bias": False},
        "e": {"class": "reduce", "mode": "mean", "axis": "T", "from": "emb", "is_output_layer": True},
    }
    layer = {**LINEAR, "use_transposed_weights": True, "reuse_params": {"map": {"W": "emb", "b": None}}}
    net = network_of({**layer, "loss_opts": {"num_sampled": 5}}, others=others, extern_data=EXTERN, train=True)
    out = net.run(_feed(), with_grad=True)
    assert np.isfinite(out.losses["output"]) and set(out.grads) == {"emb/W", "output/b"}


def test_full_softmax_has_no_demand_on_the_weights() -> None:
    net = network_of(
        {**LINEAR, "activation": "softmax", "loss_opts": {"use_full_softmax": True}}, extern_data=EXTERN, train=True
    )
    same = network_of({**LINEAR, "activation": "softmax", "loss": "ce"}, extern_data=EXTERN, train=True)
    same.set_param_values(net.get_param_values())
    np.testing.assert_allclose(net.run(_feed()).losses["output"], same.run(_feed()).losses["output"], rtol=1e-5)


def test_learned_unigram_counts_the_labels() -> None:
    draws = draws_by("learned_unigram", CLASSES)

    @tf.function
    def step(labels: Any) -> Any:
        return draws(labels, 1000, None)

    for _ in range(200):
        drawn, of_labels, of_drawn = step(tf.constant([2, 2, 2, 5]))
    counts = np.bincount(drawn.numpy(), minlength=CLASSES)
    assert counts[2] > counts[5] > 20 * counts[[0, 1, 3, 4, 6]].max()
    np.testing.assert_allclose(np.exp(of_labels.numpy()), [0.75, 0.75, 0.75, 0.25], rtol=0.05)
    net, feed = _net(True, num_sampled=10, sampler="learned_unigram"), _feed()
    assert np.isfinite(net.run(feed).losses["output"])


@pytest.mark.parametrize(
    "change,message",
    [
        (
            {"use_transposed_weights": False, "n_out": CLASSES},
            r"the 7 labels of the target, but they are \[4, 7\]",
        ),
        ({"class": "copy"}, "but it has none"),
        ({"loss_opts": {"sampler": "unigram"}}, "'sampler' is 'unigram'"),
        ({"loss_opts": {"sampler": "fixed_unigram"}}, "counts of all 7 labels"),
        ({"loss_opts": {"sampler": "fixed_unigram", "sampler_args": {"unigrams": [1, 2]}}}, "counts of all 7 labels"),
        ({"loss_opts": {"sampler_args": {"distortion": 0.5}}}, "sampler_args are for the sampler fixed_unigram"),
        ({"loss_opts": {"num_sampled": 0}}, "num_sampled must be at least 1"),
        ({"loss_opts": {"num_splits": 0}}, "num_splits must be at least 1"),
    ],
)
def test_mistakes(change: dict[str, Any], message: str) -> None:
    layer = {"class": "softmax", "use_transposed_weights": True, "loss": "sampling_loss", "target": "classes"}
    extern = {**EXTERN, "data": {"dim": CLASSES}} if change.get("class") == "copy" else EXTERN
    layer = {**layer, **change}
    if change.get("class") == "copy":
        del layer["use_transposed_weights"]
    with pytest.raises(ConfigError, match=message):
        network_of(layer, extern_data=extern, train=True)


def test_a_layer_that_runs_step_by_step() -> None:
    unit = {
        "output": {
            "class": "softmax", "use_transposed_weights": True, "loss": "sampling_loss", "target": "classes",
            "from": ["prev:output", "data:source"],
        }
    }  # fmt: skip
    with pytest.raises(ConfigError, match="can't be on a layer that runs in a loop step by step"):
        network_of({"class": "rec", "from": "data", "unit": unit}, extern_data=EXTERN, train=True)


def test_new_labels_in_every_step_and_the_same_in_the_same_step() -> None:
    net, feed = _net(True, num_sampled=2, nce_loss=True, nce_log_norm_term=1.0), _feed()
    first, again = net.run(feed).losses["output"], net.run(feed).losses["output"]
    assert first == again
    net.global_step.assign_add(1)
    assert net.run(feed).losses["output"] != first


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_samplers_draw_what_they_say(name: str) -> None:
    draw, log_prob = SAMPLERS[name](CLASSES, unigrams=[9, 1, 0, 3, 3, 1, 2], distortion=0.5)
    probs = np.exp(log_prob(tf.range(CLASSES)).numpy())
    np.testing.assert_allclose(probs.sum(), 1.0, rtol=1e-5)
    drawn = draw(tf.random.stateless_uniform([200000], [1, 2])).numpy()
    np.testing.assert_allclose(np.bincount(drawn, minlength=CLASSES) / 200000, probs, atol=0.01)
