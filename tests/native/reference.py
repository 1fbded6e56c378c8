"""The recurrences of the native ops, written down in numpy with float64, frame by frame and sequence by sequence."""

import numpy


def sigmoid(x):
    return 1 / (1 + numpy.exp(-x))


def lstm(z, w_re, c0, h0, lengths, reverse=False):
    """z [T, B, 4H] -> h [T, B, H], last c and h [B, H]; see returnn_tf.native.lstm.native_lstm."""
    n_frames, batch, width = z.shape
    n = width // 4
    out, c_last, h_last = numpy.zeros((n_frames, batch, n)), c0.astype("float64"), h0.astype("float64")
    for b in range(batch):
        frames = range(lengths[b])
        for t in reversed(frames) if reverse else frames:
            j, i, f, o = numpy.split(z[t, b].astype("float64") + h_last[b] @ w_re, 4)
            c_last[b] = sigmoid(f) * c_last[b] + sigmoid(i) * numpy.tanh(j)
            h_last[b] = out[t, b] = sigmoid(o) * numpy.tanh(c_last[b])
    return out, c_last, h_last
