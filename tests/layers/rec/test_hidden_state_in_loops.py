"""`get_last_hidden_state` in loops: the state after the step, and by ``prev:`` before it."""

import numpy as np
import pytest

from tests.layers.nets import LENS, feed, net_of

CELL = {"class": "rnn_cell", "unit": "lstm", "n_out": 3, "from": "data:source"}
LINEAR = {"class": "linear", "activation": "tanh", "n_out": 3}


def run(unit, **options):
    network = {"loop": {"class": "rec", "from": "data", "unit": unit, **options}}
    net = net_of({**network, "output": {"class": "copy", "from": "loop"}})
    return np.moveaxis(net.run(feed()).layers["output"].value, 0, 1), net


def lstm_states(net, inputs, name="loop/rec/s/rec/", start=0.0):
    """Return [time, batch, (c, h)] by numpy: gates j, i, f, o."""
    w, w_re, b = (net.params[name + p].numpy() for p in ("W", "W_re", "b"))
    c, h, states = np.full([3, 3], start), np.full([3, 3], start), []
    for x in inputs:
        j, i, f, o = np.split(x @ w + h @ w_re + b, 4, axis=1)
        i, f, o = (1 / (1 + np.exp(-g)) for g in (i, f, o))
        c = c * f + np.tanh(j) * i
        h = np.tanh(c) * o
        states.append(np.concatenate([c, h], axis=1))
    return np.stack(states)


def check(got, expected):
    for b, length in enumerate(LENS):
        np.testing.assert_allclose(got[:length, b], expected[:length, b], rtol=1e-4, atol=1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("prev", [False, True])
@pytest.mark.parametrize("key,part", [("*", slice(0, 6)), ("c", slice(0, 3)), ("h", slice(3, 6))])
def test_state_of_each_step(moved, prev, key, part):
    state = {"class": "get_last_hidden_state", "key": key, "from": ["prev:s" if prev else "s"]}
    got, net = run({"s": CELL, "output": state}, optimize_move_layers_out=moved)
    expected = lstm_states(net, np.moveaxis(feed()["data"], 0, 1))[:, :, part]
    if prev:
        expected = np.concatenate([np.zeros_like(expected[:1]), expected[:-1]])
    check(got, expected)


def test_state_before_the_step_feeds_the_cell():
    """As in attention decoders: the state before the step decides what the cell sees."""
    unit = {
        "state": {"class": "get_last_hidden_state", "from": ["prev:s"], "n_out": 6},
        "e": {**LINEAR, "from": "state"},
        "s": {**CELL, "from": ["data:source", "e"]},
        "output": {"class": "copy", "from": "s"},
    }
    got, net = run(unit)
    data = np.moveaxis(feed()["data"], 0, 1)
    w, b = (net.params["loop/rec/e/" + p].numpy() for p in ("W", "b"))
    inputs, state = [], np.zeros([3, 6])
    for x in data:
        inputs.append(np.concatenate([x, np.tanh(state @ w + b)], axis=1))
        state = lstm_states(net, inputs)[-1]
    check(got, lstm_states(net, inputs)[:, :, 3:])


def test_state_of_a_masked_cell_stays():
    unit = {
        "sum": {"class": "reduce", "mode": "sum", "axes": "F", "from": "data:source"},
        "m": {"class": "compare", "kind": "greater", "value": 0.0, "from": "sum"},
        "s": {"class": "masked_computation", "mask": "m", "from": "data:source", "unit": {**CELL, "from": "data"}},
        "output": {"class": "get_last_hidden_state", "from": ["s"], "n_out": 6},
    }
    got, net = run(unit)
    data = feed()["data"]
    for b, length in enumerate(LENS):
        frames = [t for t in range(length) if data[b, t].sum() > 0]
        states = lstm_states(net, [np.tile(data[b, t], (3, 1)) for t in frames]) if frames else None
        for t in range(length):
            count = sum(f <= t for f in frames)
            expected = states[count - 1, 0] if count else np.zeros(6)
            np.testing.assert_allclose(got[t, b], expected, rtol=1e-4, atol=1e-6)
