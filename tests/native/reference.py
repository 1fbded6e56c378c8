"""The recurrences of the native ops, written down in numpy with float64, frame by frame."""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(z, w_re, c0, h0, lengths, reverse=False):
    """Return h [T, B, H], last c and h [B, H] for z [T, B, 4H]; see returnn_tf.native.lstm.native_lstm."""
    n_frames, batch, width = z.shape
    out, c, h = np.zeros((n_frames, batch, width // 4)), c0.astype("float64"), h0.astype("float64")
    for t in range(n_frames)[:: -1 if reverse else 1]:
        there = (t < lengths)[:, None]
        j, i, f, o = np.split(z[t].astype("float64") + h @ w_re, 4, axis=1)
        c = np.where(there, sigmoid(f) * c + sigmoid(i) * np.tanh(j), c)
        h = np.where(there, sigmoid(o) * np.tanh(c), h)
        out[t] = np.where(there, h, 0)
    return out, c, h


def gru(z, w_gates, w_candidate, h0, lengths, reverse=False):
    """Return h [T, B, H] and last h [B, H] for z [T, B, 3H]; see returnn_tf.native.gru.native_gru."""
    n_frames, batch, width = z.shape
    n = width // 3
    out, h = np.zeros((n_frames, batch, n)), h0.astype("float64")
    for t in range(n_frames)[:: -1 if reverse else 1]:
        there = (t < lengths)[:, None]
        r, u = np.split(sigmoid(z[t, :, : 2 * n].astype("float64") + h @ w_gates), 2, axis=1)
        c = np.tanh(z[t, :, 2 * n :] + (r * h) @ w_candidate)
        h = np.where(there, u * h + (1 - u) * c, h)
        out[t] = np.where(there, h, 0)
    return out, h


def mdlstm(z, left, up, heights, widths, flips, stable=True):
    """Return h [B, H, W, n] for z [B, H, W, 5n] of one direction; see returnn_tf.ops.dense.mdlstm."""
    n = left.shape[0]
    out = np.zeros((*z.shape[:3], n))
    for b, (height, width) in enumerate(zip(heights, widths)):
        pixels = z[b, :height, :width][:: -1 if flips[0] else 1, :: -1 if flips[1] else 1].astype("float64")
        h, c = np.zeros((height + 1, width + 1, n)), np.zeros((height + 1, width + 1, n))
        for i in range(height):
            for j in range(width):
                gates = pixels[i, j] + h[i + 1, j] @ left + h[i, j + 1] @ up
                gate_i, f, mix, o = sigmoid(gates[: 4 * n]).reshape(4, n)
                if stable:
                    kept = f * (mix * c[i + 1, j] + (1 - mix) * c[i, j + 1])
                else:
                    kept = f * c[i + 1, j] + mix * c[i, j + 1]
                c[i + 1, j + 1] = kept + gate_i * np.tanh(gates[4 * n :])
                h[i + 1, j + 1] = o * np.tanh(c[i + 1, j + 1])
        out[b, :height, :width] = h[1:, 1:][:: -1 if flips[0] else 1, :: -1 if flips[1] else 1]
    return out
