"""Ops in C++ and CUDA, compiled at run time for the user's machine and cached."""

from __future__ import annotations

from returnn_tf.native.decoding.align import align_ops, native_best_alignment, native_ctc, native_soft_alignment
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.gru import gru_ops, native_gru
from returnn_tf.native.library import examine
from returnn_tf.native.lstm import lstm_ops, native_lstm
from returnn_tf.native.mdlstm import mdlstm_ops, native_mdlstm
from returnn_tf.native.portable import portable_ops

__all__ = [
    "NativeOpError",
    "align_ops",
    "examine",
    "gru_ops",
    "lstm_ops",
    "mdlstm_ops",
    "native_best_alignment",
    "native_ctc",
    "native_gru",
    "native_lstm",
    "native_mdlstm",
    "native_soft_alignment",
    "portable_ops",
]
