"""Single steps of a cell: on sources without time, with axis ``single_step_dim``, with ``state``, and in loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.tensor import single_step_dim
from tests.layers.nets import LENS, TIME, feed, net_of, template

N = 2
Value = np.ndarray
State = tuple[Value, ...]


def sigmoid(x: Value) -> Value:
    """Return the logistic function."""
    return 1 / (1 + np.exp(-x))


def lstm(params: dict[str, Value], x: Value, state: State) -> State:
    """Return (c, h) after a step of an LSTM with the gates j, i, f, o."""
    j, i, f, o = np.split(x @ params["W"] + state[1] @ params["W_re"] + params["b"], 4, axis=-1)
    c = sigmoid(f) * state[0] + sigmoid(i) * np.tanh(j)
    return c, sigmoid(o) * np.tanh(c)


def gru(params: dict[str, Value], x: Value, state: State) -> State:
    """Return (h,) after a step of a GRU."""
    (h,) = state
    gates = sigmoid(np.concatenate([x, h], -1) @ params["gru_cell/gates/kernel"] + params["gru_cell/gates/bias"])
    r, u = np.split(gates, 2, axis=-1)
    kernel, bias = params["gru_cell/candidate/kernel"], params["gru_cell/candidate/bias"]
    return (u * h + (1 - u) * np.tanh(np.concatenate([x, r * h], -1) @ kernel + bias),)


UNITS: dict[str, Any] = {"lstm": (lstm, ("c", "h")), "gru": (gru, (None,))}


def random_params(net: Any) -> dict[str, Value]:
    """Set all parameters to random values."""
    rng = np.random.default_rng(7)
    values = {name: rng.normal(size=old.shape).astype("float32") for name, old in net.get_param_values().items()}
    net.set_param_values(values)
    return values


def initial(unit: str, params: dict[str, Value], scope: str, given: Any, shape: tuple[int, ...]) -> State:
    """Return the state before the first step."""
    start: list[Any] = [0.0 if given in (None, "zeros") else 1.0] * len(UNITS[unit][1])
    if given == "var":
        start = [params["%sinitial_%s" % (scope, key or "var")] for key in UNITS[unit][1]]
    return tuple(np.broadcast_to(value, shape) for value in start)


def relative(params: dict[str, Value], scope: str) -> dict[str, Value]:
    """The parameters in a scope."""
    return {name[len(scope) :]: value for name, value in params.items() if name.startswith(scope)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("given", [None, "ones", "var"])
@pytest.mark.parametrize(("key", "axis"), [("mean", None), ("data", single_step_dim), ("wide", single_step_dim)])
def test_outside_of_loops(unit: str, given: Any, key: str, axis: Any) -> None:
    """Every vector is a sequence of its own; the state can be taken from it."""
    options = {} if axis is None else {"axis": axis}
    network = {
        "mean": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"},
        "cell": {"class": "rec", "unit": unit, "n_out": N, "initial_state": given, **options,
                 "from": key if key == "mean" else "data:" + key},
        "state": {"class": "get_last_hidden_state", "from": "cell", "key": "*", "is_output_layer": True},
        "output": {"class": "copy", "from": "cell"},
    }  # fmt: skip
    net = net_of(network)
    params = random_params(net)
    arrays = feed()
    out = net.run(arrays).layers
    x = arrays.get(key)
    if x is None:
        x = np.stack([arrays["data"][b, :n].mean(axis=0) for b, n in enumerate(LENS)])
    start = initial(unit, params, "cell/rec/", given, (*x.shape[:-1], N))
    state = UNITS[unit][0](relative(params, "cell/rec/"), x, start)
    np.testing.assert_allclose(out["output"].value, state[-1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(out["state"].value, np.concatenate(state, -1), rtol=1e-4, atol=1e-5)


def test_the_features_become_last_and_labels_are_looked_up() -> None:
    """The order of the other axes stays."""
    network = {
        "first": {"class": "transpose", "perm": {"F": "T", "T": "F"}, "from": "data", "is_output_layer": True},
        "a": {"class": "rec", "unit": "lstm", "n_out": N, "axis": single_step_dim, "from": "first",
              "is_output_layer": True},
        "output": {"class": "rec", "unit": "lstm", "n_out": N, "axis": single_step_dim, "from": "data:labels"},
    }  # fmt: skip
    net = net_of(network)
    params = random_params(net)
    arrays = feed()
    out = net.run(arrays).layers
    assert out["first"].axes == ("B", "F", "T")
    assert out["a"].axes == out["output"].axes == ("B", "T", "F")
    zeros = (np.zeros((3, 4, N)),) * 2
    expected = lstm(relative(params, "a/rec/"), arrays["data"], zeros)[1]
    np.testing.assert_allclose(out["a"].value, expected, rtol=1e-4, atol=1e-5)
    one_hot = np.eye(5)[arrays["labels"]]
    expected = lstm(relative(params, "output/rec/"), one_hot, zeros)[1]
    np.testing.assert_allclose(out["output"].value, expected, rtol=1e-4, atol=1e-5)


FORMS: dict[str, dict[str, Any]] = {
    "rec": {"class": "rec"},
    "single_step_dim": {"class": "rec", "axis": single_step_dim},
    "the axis of the loop": {"class": "rec", "axis": TIME},
    "rnn_cell": {"class": "rnn_cell"},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("key", ["data", "wide"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("moved", [True, False])
def test_in_loops(form: str, key: str, unit: str, moved: bool) -> None:
    """One step of the cell in each step of the loop, also where all of them are computed at once."""
    cell = {**FORMS[form], "unit": unit, "n_out": N, "from": "data:source", "initial_state": "var"}
    last = {"class": "get_last_hidden_state", "from": "loop/cell", "key": "*", "is_output_layer": True}
    network = {
        "loop": {"class": "rec", "from": "data:" + key, "optimize_move_layers_out": moved, "unit": {
            "cell": {**cell, "is_output_layer": True}, "output": {"class": "copy", "from": ["cell", "prev:cell"]}}},
        "last": last,
        "output": {"class": "copy", "from": "loop"},
    }  # fmt: skip
    net = net_of(network)
    params = random_params(net)
    scope = "loop/rec/cell/rec/"
    names = scope if moved else "loop/rec/cell/"
    assert {name for name in params if "initial" in name} == {
        "%sinitial_%s" % (names, key or "var") for key in UNITS[unit][1]
    }
    arrays = feed()
    out = net.run(arrays).layers
    for b, n in enumerate(LENS):
        x = arrays[key][b]
        state = initial(unit, params, names, "var", (*x.shape[1:-1], N))
        for t in range(n):
            before, state = state, UNITS[unit][0](relative(params, scope), x[t], state)
            expected = np.concatenate([state[-1], before[-1]], -1)
            np.testing.assert_allclose(out["output"].value[b, t], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(out["last"].value[b], np.concatenate(state, -1), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled
@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("form", ["explicit", "dict", "outside"])
def test_given_state(form: str, moved: bool) -> None:
    """The state before a step may be that of other layers: then nothing is carried from step to step."""
    states: dict[str, Any] = {
        "explicit": {"h": "prev:h", "c": "prev:c"},
        "dict": {"h": "base:mean", "c": "base:mean"},
        "outside": "base:start",
    }
    unit = {
        "cell": {"class": "rec", "unit": "lstm", "n_out": N, "from": "data:source", "state": states[form]},
        "h": {"class": "get_last_hidden_state", "from": "cell", "key": "h"},
        "c": {"class": "get_last_hidden_state", "from": "cell", "key": "c"},
        "output": {"class": "copy", "from": ["h", "c"] if form == "explicit" else "cell"},
    }
    network = {
        "mean": {"class": "linear", "activation": "tanh", "n_out": N, "from": "pooled"},
        "pooled": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"},
        "start": {"class": "rec", "unit": "lstm", "n_out": N, "from": "pooled"},
        "first": {"class": "get_last_hidden_state", "from": "start", "is_output_layer": True},
        "m": {"class": "copy", "from": "mean", "is_output_layer": True},
        "output": {"class": "rec", "from": "data", "optimize_move_layers_out": moved, "unit": unit},
    }
    net = net_of(network)
    params = random_params(net)
    arrays = feed()
    out = net.run(arrays).layers
    for b, n in enumerate(LENS):
        state: State = (np.zeros(N),) * 2
        for t in range(n):
            if form == "dict":
                state = (out["m"].value[b],) * 2
            elif form == "outside":
                state = tuple(np.split(out["first"].value[b], 2))
            state = lstm(relative(params, "output/rec/cell/rec/"), arrays["data"][b, t], state)
            expected = np.concatenate(state[::-1]) if form == "explicit" else state[1]
            np.testing.assert_allclose(out["output"].value[b, t], expected, rtol=1e-4, atol=1e-5)


def test_given_state_outside_of_loops() -> None:
    """It makes a single step even of a source with time; the state has the axes that fit."""
    network = {
        "h": {"class": "linear", "activation": "tanh", "n_out": N, "from": "data", "is_output_layer": True},
        "output": {"class": "rec", "unit": "gru", "n_out": N, "from": "data", "state": "h"},
    }
    net = net_of(network)
    params = random_params(net)
    arrays = feed()
    out = net.run(arrays).layers
    expected = gru(relative(params, "output/rec/"), arrays["data"], (out["h"].value,))[0]
    np.testing.assert_allclose(out["output"].value, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("options", "match"), [
    ({"direction": -1, "axis": single_step_dim}, "direction -1 reverses a sequence, but this is a single step"),
    ({"state": "m", "initial_state": "zeros"}, "state gives the state before this one step"),
    ({"state": {"h": "m"}}, "state has no key 'c'"),
    ({"state": {"h": "m", "c": "m", "d": "m"}}, "state has the unknown key 'd'"),
    ({"state": "m"}, "state: layer 'm' has no hidden state"),
    ({"state": ["m"]}, "option 'state' must be"),
    ({"initial_state": ["zeros"]}, "initial_state is a list of 1 entries, but the state of this unit is c and h"),
    ({"state": "wrong", "unit": "gru"}, "state: layer 'wrong' is"),
])  # fmt: skip
def test_bad_options(options: dict[str, Any], match: str) -> None:
    """One message that names the option."""
    network = {
        "m": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"},
        "wrong": {"class": "linear", "activation": None, "n_out": 7, "from": "m"},
        "output": {"class": "rec", "unit": "lstm", "n_out": 3, "from": "m", **options},
    }
    with pytest.raises(ConfigError, match="Layer 'output' .*" + match):
        template(network)


def test_a_step_network_is_no_single_step() -> None:
    """It has to iterate over something."""
    unit = {"output": {"class": "copy", "from": "data:source"}}
    for options in ({"axis": single_step_dim}, {"state": "data"}):
        with pytest.raises(ConfigError, match=r"Layer 'output' .*single step"):
            template({"output": {"class": "rec", "unit": unit, "from": "data", **options}})
