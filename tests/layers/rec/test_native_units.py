"""Units that run as native ops compute what their loops in plain TensorFlow compute, through the whole compiler."""

import numpy as np
import pytest

import returnn_tf
from returnn_tf.native import library
from returnn_tf.ops.cells import gru, lstm
from tests.tiers import usual

NETWORKS = {
    "plain": {"unit": "lstm"},
    "backward": {"unit": "nativelstm2", "direction": -1},
    "other order of gates": {"unit": "standardlstm", "direction": -1},
    "low memory": {"unit": "nativelstmlowmem"},
    "initial state": {"unit": "lstm", "initial_state": "var"},
    "GRU": {"unit": "gru"},
    "GRU backward": {"unit": "grucell", "direction": -1, "initial_state": "var"},
    "recurrent dropout": {"unit": "lstm", "unit_opts": {"rec_weight_dropout": 0.3}},
}


def run(options, monkeypatch, native):
    monkeypatch.setenv(library.SWITCH, "1" if native else "0")
    monkeypatch.setattr(library, "_loaded", {})
    n_states = 1 if "gru" in options["unit"] else 2
    network = {
        "lstm": {"class": "rec", "n_out": 5, "from": "data", **options},
        "last": {
            "class": "get_last_hidden_state",
            "n_out": 5 * n_states,
            "from": "lstm",
            "key": "*",
        },
        "last_sum": {"class": "reduce", "mode": "sum", "axes": "f", "from": "last", "loss": "as_is"},
        "output": {"class": "softmax", "from": "lstm", "target": "classes", "loss": "ce"},
    }
    config = returnn_tf.Config(
        {
            "network": network,
            "extern_data": {"data": {"dim": 3}, "classes": {"dim": 4, "sparse": True}},
            "behavior_version": 21,
            "random_seed": 3,
        }
    )
    net = returnn_tf.Network.from_config(config, train=True)
    rng = np.random.RandomState(5)
    net.set_param_values({name: rng.normal(0, 0.4, param.shape) for name, param in sorted(net.params.items())})
    lengths = np.array([6, 2, 4], "int32")
    feed = {
        "data": rng.normal(0, 1, (3, 6, 3)).astype("float32"),
        "data/size0": lengths,
        "classes": rng.randint(0, 4, (3, 6)).astype("int32"),
        "classes/size0": lengths,
    }
    return net.run(feed, with_grad=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(NETWORKS, set(NETWORKS) - {"plain", "backward", "GRU"}))
def test_same_as_plain_tensorflow(name, monkeypatch):
    native, plain = (run(NETWORKS[name], monkeypatch, native) for native in (True, False))
    assert native.total_loss == pytest.approx(plain.total_loss, rel=1e-6)
    assert native.grads.keys() == plain.grads.keys()
    for name, gradient in native.grads.items():
        np.testing.assert_allclose(gradient, plain.grads[name], atol=1e-5, err_msg=name)


@pytest.mark.parametrize("unit, module, op", [("lstm", lstm, "native_lstm"), ("gru", gru, "native_gru")])
def test_it_is_the_native_op_that_runs(monkeypatch, unit, module, op):
    calls = []
    plain = getattr(module, op)
    monkeypatch.setattr(module, op, lambda *args, **kwargs: calls.append(1) or plain(*args, **kwargs))
    run({"unit": unit}, monkeypatch, native=True)
    assert calls


@pytest.mark.slow
def test_other_activation_runs_in_plain_tensorflow(monkeypatch):
    monkeypatch.setattr(gru, "native_gru", None)
    run({"unit": "gru", "unit_opts": {"activation": "relu"}}, monkeypatch, native=True)
