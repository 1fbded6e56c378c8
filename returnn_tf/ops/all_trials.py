"""All functions with a form on GPUs, for what tries all of them out."""

from __future__ import annotations

from returnn_tf.native.fused.update_trials import (
    ADAFACTOR_TRIAL,
    NORM_OF_ALL_TRIAL,
    UPDATE_BY_SUMS_TRIAL,
    UPDATE_TRIAL,
)
from returnn_tf.native.trials.trial import Trial
from returnn_tf.ops.after_product import ACTIVATE_TRIAL, GATE_TRIAL
from returnn_tf.ops.cells.gru import GRU_TRIAL
from returnn_tf.ops.cells.lstm import LSTM_TRIAL
from returnn_tf.ops.cells.matrix.chunkwise import MATRIX_SCAN_TRIAL, ONE_DECAY_TRIAL
from returnn_tf.ops.cells.matrix.delta_rule import DELTA_RULE_TRIAL
from returnn_tf.ops.cells.slstm import SLSTM_TRIAL
from returnn_tf.ops.dense.attention_forms import ATTENTION_BY_DISTANCE_TRIAL, ATTENTION_TRIAL
from returnn_tf.ops.dense.attention_in_place import IN_PLACE_TRIAL
from returnn_tf.ops.dense.convolution import DEPTHWISE_TRIAL
from returnn_tf.ops.dense.in_beam import ONCE_ATTENTION_TRIAL
from returnn_tf.ops.dense.mdlstm import MDLSTM_TRIAL
from returnn_tf.ops.frames.chunks import CHUNK_TRIAL
from returnn_tf.ops.many_labels import SOFTMAX_TRIAL
from returnn_tf.ops.normalize import BATCH_NORM_TRIAL, NORM_TRIAL
from returnn_tf.ops.sequence.alignment_trials import (
    ACCEPTOR_PATH_TRIAL,
    ACCEPTOR_TRIAL,
    BEST_TRIAL,
    CTC_TRIAL,
    SOFT_TRIAL,
    TRANSDUCER_TRIAL,
)
from returnn_tf.ops.sequence.best_labels import BEST_LABELS_TRIAL
from returnn_tf.ops.sequence.linear_recurrence import COMPLEX_SCAN_TRIAL, SCAN_TRIAL
from returnn_tf.ops.sequence.selective_scan import SELECTIVE_SCAN_TRIAL

TRIALS: tuple[Trial, ...] = (
    LSTM_TRIAL,
    GRU_TRIAL,
    MDLSTM_TRIAL,
    CTC_TRIAL,
    SOFT_TRIAL,
    BEST_TRIAL,
    ACCEPTOR_TRIAL,
    ACCEPTOR_PATH_TRIAL,
    TRANSDUCER_TRIAL,
    CHUNK_TRIAL,
    SCAN_TRIAL,
    COMPLEX_SCAN_TRIAL,
    SELECTIVE_SCAN_TRIAL,
    NORM_TRIAL,
    BATCH_NORM_TRIAL,
    DEPTHWISE_TRIAL,
    ACTIVATE_TRIAL,
    GATE_TRIAL,
    MATRIX_SCAN_TRIAL,
    ONE_DECAY_TRIAL,
    DELTA_RULE_TRIAL,
    ATTENTION_TRIAL,
    ATTENTION_BY_DISTANCE_TRIAL,
    SLSTM_TRIAL,
    BEST_LABELS_TRIAL,
    IN_PLACE_TRIAL,
    ONCE_ATTENTION_TRIAL,
    SOFTMAX_TRIAL,
    UPDATE_TRIAL,
    UPDATE_BY_SUMS_TRIAL,
    ADAFACTOR_TRIAL,
    NORM_OF_ALL_TRIAL,
)
