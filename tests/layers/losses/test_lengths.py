"""Sequences of a batch that do not fit: the message names the layer and the sequences."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from tests.layers.losses.single import feed_of, linear, network_of


@pytest.mark.parametrize("loss, target", [("ce", "classes"), ("mse", "target")])
def test_output_and_target_of_different_lengths(loss: str, target: str) -> None:
    net = network_of(linear(loss, target, activation="softmax"))
    feed = feed_of()
    feed[target + "/size0"] = np.array([5, 4, 2], "int32")
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        net.run(feed)
    text = str(info.value)
    assert "Layer output (class linear)" in text
    assert "time" in text and "time:" + target in text
    assert re.search(r"frames of the output:\] \[3 4\].*frames of the target:\] \[4 2\]", text), text
    assert re.search(r"counted from 0:\] \[1 2\]", text), text


def test_arrays_of_different_sizes_with_the_same_lengths() -> None:
    """Only the lengths must agree; more padding in one of the arrays does not matter."""
    net = network_of(linear("ce", activation="softmax"))
    feed = feed_of()
    expected = net.run(feed).losses["output"]
    feed["classes"] = np.pad(feed["classes"], [[0, 0], [0, 2]])
    np.testing.assert_allclose(net.run(feed).losses["output"], expected)
    feed["classes"] = feed["classes"][:, :5]
    feed["data"] = np.pad(feed["data"], [[0, 0], [0, 3], [0, 0]], constant_values=9.0)
    np.testing.assert_allclose(net.run(feed).losses["output"], expected)


def test_ctc_target_longer_than_the_output() -> None:
    net = network_of({"class": "softmax", "loss": "ctc", "target": "classes"})
    feed = feed_of()
    feed["classes"] = np.array([[0, 0, 0, 1, 2], [0, 1, 2, 2, 2], [0, 1, 1, 2, 2]], "int32")
    feed["classes/size0"] = np.array([3, 3, 4], "int32")  # they need 5, 3 and 5 of the 5, 3 and 4 frames
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        net.run(feed)
    text = str(info.value)
    assert "Layer output (class softmax)" in text
    assert "ignore_longer_outputs_than_inputs" in text
    assert re.search(r"counted from 0:\] \[2\].*frames:\] \[4\].*needed:\] \[5\].*labels:\] \[4\]", text), text


def test_ctc_without_the_sequences_that_do_not_fit() -> None:
    opts = {"ctc_opts": {"ignore_longer_outputs_than_inputs": True}}
    net = network_of({"class": "softmax", "loss": "ctc", "target": "classes", "loss_opts": opts})
    feed = feed_of()
    feed["classes"] = np.array([[0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 0, 0]], "int32")
    feed["classes/size0"] = np.array([2, 2, 3], "int32")  # the last one needs 5 of its 4 frames
    all_three = net.run(feed, with_grad=True)
    two = net.run({k: v[:2] for k, v in feed.items()}, with_grad=True)
    np.testing.assert_allclose(all_three.losses["output"], two.losses["output"], rtol=1e-5)
    np.testing.assert_allclose(all_three.grads["output/W"], two.grads["output/W"], rtol=1e-4, atol=1e-6)
