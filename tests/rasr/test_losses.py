"""Losses and automata of RASR in networks: values and gradients, by a stand-in for RASR."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, DataError
from returnn_tf.engine.support.step_errors import naming_sequences
from tests.layers.examples import EMULATOR
from tests.layers.losses.single import LENS, log_softmax

TAGS = ["ab", "abc", "a"]
DIM = 4


def _options(mode: str, **options: Any) -> dict[str, Any]:
    words = "--fake.mode=" + mode
    return {"sprintExecPath": [sys.executable, EMULATOR], "sprintConfigStr": words, "rasr_timeout": 30, **options}


def _network(layers: dict[str, Any], extern: Any = None, **settings: Any) -> Network:
    """Return a network whose layer "z" passes the data on."""
    z = {"class": "linear", "activation": None, "with_bias": False, "n_out": DIM, "from": "data"}
    config = {
        "behavior_version": 21,
        "extern_data": {"data": {"dim": DIM}, **(extern or {})},
        "network": {"z": z, **layers},
        **settings,
    }
    net = Network.from_config(Config(config), train=True)
    net.set_param_values({"z/W": np.eye(DIM)})
    return net


def _feed(tags: list[str] = TAGS, **more: Any) -> dict[str, Any]:
    x = np.random.default_rng(5).normal(size=(len(tags), 5, DIM)).astype("float32")
    return {"data": x, "data/size0": LENS[: len(tags)], "seq_tag": np.array(tags, object), **more}


def _softmax(loss: str, opts: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"class": "activation", "activation": "softmax", "from": "z", "loss": loss, "loss_opts": opts, **options}


def _grad_of_weights(signal: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the gradient of the identity weights for one of the values before the softmax, [batch, time, dim]."""
    return sum(x[b, :n].T @ signal[b, :n] for b, n in enumerate(LENS))


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_loss_and_gradient_of_rasr(scale: float) -> None:
    net = _network({"output": _softmax("sprint", {"sprint_opts": _options("iter")}, loss_scale=scale)})
    feed = _feed()
    out = net.run(feed, with_grad=True)
    logp = log_softmax(feed["data"].astype("float64"))
    np.testing.assert_allclose(out.losses["output"], -sum(logp[b, :n, 0].sum() for b, n in enumerate(LENS)), rtol=1e-5)
    signal = np.exp(logp)
    signal[:, :, 0] -= 1
    np.testing.assert_allclose(out.grads["z/W"], scale * _grad_of_weights(signal, feed["data"]), rtol=1e-4, atol=1e-5)
    assert out.counts["output"] == LENS.sum() and "output" not in out.errors


def _full_sum(logp: np.ndarray, length: int, size: int, tdp: float) -> float:
    """Return -log of the sum over all ways through the automaton of a name with this many characters."""
    alpha = np.full(size + 1, -np.inf)
    alpha[0] = 0
    for t in range(length):
        new = np.full(size + 1, -np.inf)
        for p in range(size):
            new[p + 1] = np.logaddexp(alpha[p], alpha[p + 1]) + logp[t, p] - tdp
        alpha = new
    return -alpha[size]


@pytest.mark.parametrize("tdp_scale", [1.0, 0.1, 0.0])
@pytest.mark.parametrize("how", ["loss", "layer"])
def test_sum_over_the_paths_of_automata(tdp_scale: float, how: str) -> None:
    options = _options("loop", numInstances=2)
    if how == "loss":
        net = _network({"output": _softmax("fast_bw", {"sprint_opts": options, "tdp_scale": tdp_scale})})
    else:
        bw = {"class": "fast_bw", "align_target": "sprint", "sprint_opts": options, "input_type": "prob", "from": "p"}
        opts = {"align_layer": "bw", "loss_wrt_to_act_in": "softmax"}
        p = {"class": "activation", "activation": "softmax", "from": "z"}
        output = {"class": "copy", "from": "p", "loss": "via_layer", "loss_opts": opts}
        net = _network({"p": p, "bw": {**bw, "tdp_scale": tdp_scale}, "output": output})
    feed = _feed()
    out = net.run(feed, with_grad=True)

    def total(x: np.ndarray) -> float:
        logp = log_softmax(x.astype("float64"))
        return sum(_full_sum(logp[b], n, len(TAGS[b]), 0.25 * tdp_scale) for b, n in enumerate(LENS))

    np.testing.assert_allclose(out.losses["output"], total(feed["data"]), rtol=1e-4)
    signal = np.zeros_like(feed["data"], "float64")
    for index in np.ndindex(signal.shape):
        if index[1] < LENS[index[0]]:
            step = np.zeros_like(signal)
            step[index] = 1e-5
            signal[index] = (total(feed["data"] + step) - total(feed["data"] - step)) / 2e-5
    np.testing.assert_allclose(out.grads["z/W"], _grad_of_weights(signal, feed["data"]), rtol=1e-3, atol=1e-4)


def test_a_segment_without_a_path_has_no_loss() -> None:
    net = _network({"output": _softmax("fast_bw", {"sprint_opts": _options("loop")})})
    out = net.run(_feed(["ab", "abcd", "a"]), with_grad=True)  # the second has 3 frames
    assert out.losses["output"] > 0 and np.isfinite(out.grads["z/W"]).all()
    alone = {**_feed(["abcd"]), "data/size0": np.array([3], "int32")}
    out = net.run(alone, with_grad=True)
    assert out.losses["output"] == 0 and not out.grads["z/W"].any()


def test_the_error_is_that_of_the_frames() -> None:
    labels = np.random.default_rng(1).integers(0, DIM, size=(3, 5)).astype("int32")
    extern = {"classes": {"dim": DIM, "sparse": True}}
    net = _network({"output": _softmax("sprint", {"sprint_opts": _options("iter")}, target="classes")}, extern)
    feed = _feed(classes=labels, **{"classes/size0": LENS})
    best = feed["data"].argmax(-1)
    expected = sum((best[b, :n] != labels[b, :n]).sum() for b, n in enumerate(LENS))
    assert net.run(feed).errors["output"] == expected


def test_errors_of_rasr_name_layer_and_segment() -> None:
    net = _network({"output": _softmax("fast_bw", {"sprint_opts": _options("loop")})})
    with pytest.raises(DataError) as error, naming_sequences("train epoch 1", TAGS):
        net.run(_feed(["ab", "bad", "a"]))
    text = str(error.value)
    assert text.startswith(
        "train epoch 1: Layer 'output': loss 'fast_bw': error in RASR for segment 'bad': RuntimeError"
    )
    assert text.endswith("sequences of the batch: ab, abc, a")


@pytest.mark.slow
def test_training_with_names_from_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of the sequences get into the network although no dataset delivers them as data."""
    from returnn_tf.cli.main import main

    monkeypatch.chdir(tmp_path)
    opts = _options("loop")
    (tmp_path / "a.config").write_text(
        """#!returnn
import numpy
seqs = [{"data": numpy.full((6 + i, 4), 0.1 * i, "float32")} for i in range(4)]
train = {"class": "StaticDataset", "data": seqs, "seq_ordering": "random"}
dev = dict(train)
extern_data = {"data": {"dim": 4}}
network = {"output": {"class": "softmax", "n_out": 10, "from": "data", "loss": "fast_bw",
                      "loss_opts": {"sprint_opts": %r}}}
batch_size, max_seqs, num_epochs, learning_rate, model = 100, 2, 2, 0.1, "model/net"
behavior_version = 21
"""
        % opts
    )
    assert main(["a.config"]) == 0
    assert list(tmp_path.glob("model/net.002.*"))
