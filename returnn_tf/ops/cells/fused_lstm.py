"""An LSTM over whole sequences as one op of TensorFlow, in graphs without native ops."""

from __future__ import annotations

import uuid
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.portable import graph_ops
from returnn_tf.ops.cells.base import Cell, CellFrames, Kernel, Params, State, all_lengths
from returnn_tf.ops.cells.lstm import LstmCell, NativeLstm
from returnn_tf.ops.cells.time_axis import state_at
from returnn_tf.util.lazy_tf import tf

Weights = tuple["tf.Tensor", "tf.Tensor", "tf.Tensor"]
"""Input weights [in, 4 n], bias [4 n] and recurrent weights [n, 4 n]; gates in the order j, i, f, o."""


class FusedForm(NamedTuple):
    """An op that runs an LSTM over all frames.

    :param run: function of x [time, batch, in], weights, lengths (int [batch], or None if all sequences fill the array)
        and state (c and h [batch, n]), which returns outputs [time, batch, n], and c and h after the last frame of each
        sequence; output frames after the end of a sequence may hold anything
    :param most_weights: in + n times n, from which on a loop is faster; None: the op is better at any size
    :param fixed: whether ``run`` gets the weights as arrays, a fixed number of sequences, and states of zeros
    """

    run: Callable[[tf.Tensor, Any, Optional[tf.Tensor], State], tuple[tf.Tensor, State]]
    most_weights: Optional[int] = None
    fixed: bool = False


def fused_kernel(
    cell: Cell, params: Params, x: tf.Tensor, seed: Optional[tf.Tensor], *, from_zeros: bool
) -> Optional[Kernel]:
    """Return a kernel by the op that `GraphOps` names, which gets the input x in the place of ``z``.

    :param x: the input
    :param seed: see `Cell.prepare`
    :param from_zeros: whether the initial state is zero
    :return: None if the cell is to run in another way: without such an op, or as the op can't express it
    """
    form: Optional[FusedForm] = graph_ops().lstm
    if form is None or not isinstance(cell, LstmCell) or not cell.is_plain or x.dtype != tf.float32:
        return None
    if form.most_weights is not None and (cell.in_dim + cell.n_out) * cell.n_out > form.most_weights:
        return None
    weights: Any
    if form.fixed:
        values = {spec.name: _present_value(params[spec.name]) for spec in cell.param_specs()}
        if not from_zeros or seed is not None or x.shape[1] is None or any(v is None for v in values.values()):
            return None
        with tf.init_scope():  # computes now
            stored = {name: tf.constant(value) for name, value in values.items()}
            found = _weights(cell, cell.split_kernels(stored), None)
            weights = None if found is None else tuple(part.numpy() for part in found)
    else:
        weights = _weights(cell, params, seed)
    if weights is None:
        return None
    run = form.run
    return lambda _, frames: run(frames.z, weights, frames.lengths, frames.state)


def _weights(cell: LstmCell, params: Params, seed: Optional[tf.Tensor]) -> Optional[Weights]:
    weights = cell.input_weights(params)
    if weights is None or weights[1] is None:
        return None
    return weights[0], weights[1], cell.recurrent_weights(params, seed)


def _present_value(tensor: tf.Tensor) -> Optional[NDArray[Any]]:
    """Return the value of a variable that a graph reads, or None if the tensor is anything else."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    if tensor.op.type != "ReadVariableOp":
        return None
    handle = tensor.op.inputs[0]
    variables = [outside for outside, inside in getattr(tensor.graph, "captures", ()) if inside is handle]
    with tf.init_scope():
        if not variables or not hasattr(variables[0], "numpy"):
            return None
        value: NDArray[Any] = tf.raw_ops.ReadVariableOp(resource=variables[0], dtype=tensor.dtype).numpy()
        return value


def _cudnn_lstm(x: tf.Tensor, weights: Weights, lengths: Optional[tf.Tensor], state: State) -> tuple[tf.Tensor, State]:
    """Run the op CudnnRNNV3 over all frames."""
    w, bias, w_re = weights
    n, c0, h0 = w_re.shape[0], *state

    def gates(matrix: tf.Tensor) -> list[tf.Tensor]:
        """Return the part of each gate in the op's order i, f, j, o, transposed."""
        j, i, f, o = tf.split(tf.transpose(matrix), 4)
        return [i, f, j, o]

    all_params = tf.raw_ops.CudnnRNNCanonicalToParams(
        num_layers=1, num_units=n, input_size=w.shape[0],
        weights=[*gates(w), *gates(w_re)], biases=[*gates(bias), *([tf.zeros([n], x.dtype)] * 4)], rnn_mode="lstm",
    )  # fmt: skip
    out = tf.raw_ops.CudnnRNNV3(
        input=x, input_h=tf.expand_dims(h0, 0), input_c=tf.expand_dims(c0, 0), params=all_params,
        sequence_lengths=all_lengths(lengths, x), rnn_mode="lstm", is_training=False, time_major=True,
    )  # fmt: skip
    out.output.set_shape([x.shape[0], x.shape[1], n])
    return out.output, (tf.squeeze(out.output_c, 0), tf.squeeze(out.output_h, 0))


#: For converters to formats that have an LSTM. TensorFlow itself runs this op on GPUs only.
CUDNN_LSTM = FusedForm(_cudnn_lstm)


def _block_lstm(x: tf.Tensor, weights: Weights, lengths: Optional[tf.Tensor], state: State) -> tuple[tf.Tensor, State]:
    """Run the op BlockLSTM over all frames. Frames after the end of a sequence are computed, but not read.

    TensorFlow computes the gradient of BlockLSTMV2 as if its gates were in the order of BlockLSTM (2.16).
    """
    w, bias, w_re = weights
    n, c0, h0 = w_re.shape[0], *state
    j, i, f, o = tf.split(tf.concat([w, w_re, tf.expand_dims(bias, 0)], axis=0), 4, axis=1)
    in_order, peephole = tf.concat([i, j, f, o], axis=1), tf.zeros([n], x.dtype)
    out = tf.raw_ops.BlockLSTM(
        seq_len_max=tf.cast(tf.shape(x)[0], tf.int64), x=x, cs_prev=c0, h_prev=h0, w=in_order[:-1], b=in_order[-1],
        wci=peephole, wcf=peephole, wco=peephole, forget_bias=0.0, cell_clip=-1.0,
    )  # fmt: skip
    ends = tf.fill([tf.shape(x)[1]], tf.shape(x)[0]) if lengths is None else lengths
    c, h = (state_at(tf.concat([[first], after], axis=0), ends) for first, after in ((c0, out.cs), (h0, out.h)))
    return out.h, (c, h)


#: For graphs that TensorFlow runs. The op multiplies the input frame by frame, which takes longer with many units.
BLOCK_LSTM = FusedForm(_block_lstm, most_weights=1 << 16)


#: The value, in the first step, of the feature that empties the state.
_RESET = 1000.0


def _tflite_lstm(
    x: tf.Tensor, weights: tuple[NDArray[Any], ...], lengths: Optional[tf.Tensor], state: State
) -> tuple[tf.Tensor, State]:
    """Run the LSTM op of TFLite over all frames.

    TFLite's converter makes its op of a function that it takes for the LSTM layer of Keras: it gets input, h, c,
    weights, recurrent weights, bias, and returns five tensors, of which only the second one, all outputs, is read.

    TFLite's op keeps its state from run to run, against what all other exports do. So a first frame closes all gates,
    by a feature that is 0 in all other frames. And the op never sees NaN or infinity, from which no gate would free it:
    their frames give NaN.
    """
    w, bias, w_re = weights
    (_, batch, n_in), n = x.shape, len(w_re)
    order = np.arange(4 * n).reshape([4, n])[[1, 2, 0, 3]].reshape(-1)  # from j, i, f, o to i, f, j, o
    largest = np.abs(w).max(initial=0.1)  # weights that are quantised share their scale
    closing = -largest * np.repeat([[1, 1, 0, 1]], n, axis=1)
    w = np.concatenate([w[:, order], closing.astype(w.dtype)])
    nothing = x * 0.0
    x = tf.pad(tf.where(tf.equal(nothing, 0.0), x, tf.zeros_like(x)), [[0, 0], [0, 0], [0, 1]])
    first = np.zeros([1, batch, n_in + 1], w.dtype)
    first[..., -1] = _RESET

    def whole(x: tf.Tensor, h: tf.Tensor, c: tf.Tensor, w: tf.Tensor, w_re: tf.Tensor, bias: tf.Tensor) -> Any:
        i, f, j, o = tf.split(w_re, 4, axis=1)
        z = tf.gather(tf.tensordot(x, w, 1) + bias, np.argsort(order), axis=-1)
        cell = NativeLstm(n, 4 * n, input_projection=False)
        y, (c, h) = cell.step_loop({"W_re": tf.concat([j, i, f, o], axis=1)}, CellFrames(z, None, (c, h)))
        return h, y, h, c, tf.zeros([])

    attributes = {"api_implements": "lstm_%s" % uuid.uuid4(), "time_major": True, "go_backwards": False}
    run = tf.function(whole, autograph=False, experimental_attributes=attributes)
    zeros = tf.zeros([batch, n])
    y = run(
        tf.concat([first, x], axis=0),
        zeros,
        zeros,
        tf.constant(w),
        tf.constant(w_re[:, order]),
        tf.constant(bias[order]),
    )[1]
    y = y[1:] + tf.reduce_sum(nothing, axis=-1, keepdims=True)
    y.set_shape([None, batch, n])
    # No op gives out c: this loop is left out of the file if nothing reads the state.
    w_re_only = NativeLstm(n, 4 * n, input_projection=False)
    z = tf.tensordot(x[..., :n_in], weights[0], 1) + bias
    return y, w_re_only.step_loop({"W_re": tf.constant(w_re)}, CellFrames(z, lengths, state))[1]


#: For TFLite's converter, which ends the process if weights are no constants.
TFLITE_LSTM = FusedForm(_tflite_lstm, most_weights=1 << 18, fixed=True)
