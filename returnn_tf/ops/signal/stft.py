"""The short-time Fourier transform and its inverse."""

from __future__ import annotations

from typing import Any

from returnn_tf.ops.frames.empty_axes import without_empty_axes
from returnn_tf.util.filters import inverse_window
from returnn_tf.util.filters import window as window_of
from returnn_tf.util.lazy_tf import tf


def stft(x: Any, *, size: int, shift: int, fft_size: int, window: str = "hanning", one_sided: bool = True) -> Any:
    """Return ``y[t, f] = sum over i of x[t * shift + i] * window[i] * exp(-2j * pi * f * i / fft_size)``.

    :param x: real [N, ..., samples]
    :param size: samples per frame; frames that are not complete are left out
    :param fft_size: at least ``size``; frames are filled up with zeros
    :param one_sided: only the frequencies up to half the sampling rate, which determine the others
    :return: complex [N, ..., frames, fft_size // 2 + 1], or [N, ..., frames, fft_size]
    """
    # The gradient of the frames of no signals fails.
    frames = without_empty_axes(x, [None] * (x.shape.rank - 2), lambda x: tf.signal.frame(x, size, shift))
    frames *= tf.constant(window_of(window, size), x.dtype)
    if one_sided:
        return tf.signal.rfft(frames, [fft_size])
    frames = tf.pad(frames, [(0, 0)] * (frames.shape.rank - 1) + [(0, fft_size - size)])
    return tf.signal.fft(tf.complex(frames, tf.zeros_like(frames)))


def inverse_stft(y: Any, *, size: int, shift: int, fft_size: int) -> Any:
    """Return the signal with this transform by `stft` with a Hann window (Griffin & Lim 1984).

    :param y: complex [N, frames, fft_size // 2 + 1]
    :return: real [N, (frames - 1) * shift + size]
    """
    values = inverse_window(window_of("hanning", size), shift)
    return tf.signal.inverse_stft(y, size, shift, fft_size, lambda _, dtype: tf.constant(values, dtype))
