"""The recurrent cells once more in numpy, frame by frame and sequence by sequence: the references of test_cells.py."""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(j, i, f, o, c):
    """Return new (c, h) from the pre-activations."""
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(j)
    return c, sigmoid(o) * np.tanh(c)


def native(p, x, state, opts):
    c, h = state
    j, i, f, o = np.split((x @ p["W"] + p["b"] if "W" in p else x) + h @ p["W_re"], 4)
    c, h = lstm(j, i, f, o, c)
    return h, (c, h)


def low_memory(p, x, state, opts):
    c, h = state
    c, h = lstm(*np.split(np.concatenate([x, h]) @ p["W"] + p["b"], 4), c)
    return h, (c, h)


def kernel_lstm(p, x, state, opts, scope="lstm_cell/"):
    c, h = state
    i, j, f, o = np.split(np.concatenate([x, h]) @ p[scope + "kernel"] + p[scope + "bias"], 4)
    f = f + opts.get("forget_bias", 1.0)
    act = {"tanh": np.tanh, "relu": lambda a: np.maximum(a, 0)}[opts.get("activation", "tanh")]
    if opts.get("use_peepholes"):
        i, f = i + c * p[scope + "w_i_diag"], f + c * p[scope + "w_f_diag"]
    c = sigmoid(f) * c + sigmoid(i) * act(j)
    if opts.get("cell_clip"):
        c = np.clip(c, -opts["cell_clip"], opts["cell_clip"])
    if opts.get("use_peepholes"):
        o = o + c * p[scope + "w_o_diag"]
    h = sigmoid(o) * act(c)
    return h, (c, h)


def basic_lstm(p, x, state, opts):
    return kernel_lstm(p, x, state, opts, "basic_lstm_cell/")


def zoneout(p, x, state, opts):
    zc, zh = opts.get("zoneout_factor_cell", 0), opts.get("zoneout_factor_output", 0)
    new_h, (new_c, _) = kernel_lstm(p, x, state, opts)
    c = (1 - zc) * new_c + zc * state[0]
    h = (1 - zh) * new_h + zh * state[1]
    return (h if opts.get("use_zoneout_output") else new_h), (c, h)


def gru(p, x, state, opts):
    (h,) = state
    r, u = np.split(sigmoid(np.concatenate([x, h]) @ p["gru_cell/gates/kernel"] + p["gru_cell/gates/bias"]), 2)
    c = np.tanh(np.concatenate([x, r * h]) @ p["gru_cell/candidate/kernel"] + p["gru_cell/candidate/bias"])
    h = u * h + (1 - u) * c
    return h, (h,)


def basic_rnn(p, x, state, opts):
    h = np.tanh(np.concatenate([x, state[0]]) @ p["basic_rnn_cell/kernel"] + p["basic_rnn_cell/bias"])
    return h, (h,)


def rhn(p, x, state, opts):
    (s,) = state
    for depth in range(opts.get("depth", 5)):
        z = s @ p["rhn_cell/depth_%d/W" % depth]
        if depth == 0:
            z = z + (x @ p["W"] + p["b"] if "W" in p else x)
        h, t = np.split(z, 2)
        t = sigmoid(t)
        s = t * np.tanh(h) + (1 - t) * s
    return s, (s,)


def layer_norm(x, p, place):
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-12)
    return x * p["gamma_" + place] + p.get("beta_" + place, 0)


def layer_norm_lstm(p, x, state, opts):
    c, h = state
    x, h = x @ p["W_ff"], h @ p["W_re"]
    if opts.get("global_norm", True):
        i, j, f, o = np.split(layer_norm(x, p, "input_below") + layer_norm(h, p, "state_below"), 4)
    elif opts.get("global_norm_joined"):
        i, j, f, o = np.split(layer_norm(x + h, p, "lstm_in"), 4)
    elif opts.get("per_gate_norm"):
        i, j, f, o = (layer_norm(g, p, k + "_gate") for g, k in zip(np.split(x + h, 4), "ijfo"))
    else:
        i, j, f, o = np.split(x + h + p["bias"], 4)
    c_before = c = sigmoid(f) * c + sigmoid(i) * np.tanh(j)
    if opts.get("cell_norm", True):
        c = layer_norm(c, p, "new_c")
    h = sigmoid(o) * np.tanh(c if opts.get("cell_norm_in_output", True) else c_before)
    if opts.get("hidden_norm"):
        h = layer_norm(h, p, "new_h")
    return h, (c, h)


STEPS = {
    "nativelstm2": native,
    "nativelstmlowmem": low_memory,
    "standardlstm": kernel_lstm,
    "basiclstm": basic_lstm,
    "zoneoutlstm": zoneout,
    "gru": gru,
    "basicrnn": basic_rnn,
    "rhn": rhn,
    "layernormvariantslstm": layer_norm_lstm,
}


def run(unit, opts, p, x, lengths, initial_state, direction):
    """Like `run_cell`: x [time, batch, in]; outputs with zeros in the padding, and the states after the last frame."""
    n = initial_state[0].shape[-1]
    outputs = np.zeros(x.shape[:2] + (n,))
    states = []
    for b, length in enumerate(lengths):
        state = tuple(part[b] for part in initial_state)
        for t in range(length)[::direction]:
            outputs[t, b], state = STEPS[unit](p, x[t, b], state, opts)
        states.append(state)
    return outputs, tuple(np.stack(parts) for parts in zip(*states))
