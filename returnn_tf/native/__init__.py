"""Ops in C++ (and CUDA) which are compiled at run time for the user's machine, and cached."""

from __future__ import annotations

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.lstm import lstm_ops, native_lstm

__all__ = ["NativeOpError", "lstm_ops", "native_lstm"]
