"""A recurrent cell over whole sequences."""

from __future__ import annotations

from typing import Optional, Tuple

from returnn_tf.ops.cells.base import Cell, Params, State
from returnn_tf.ops.cells.kernels import kernel_for
from returnn_tf.ops.cells.time_axis import reverse_sequences, zero_padding
from returnn_tf.util.lazy_tf import tf


def run_cell(
    cell: Cell,
    params: Params,
    x: tf.Tensor,
    lengths: Optional[tf.Tensor],
    *,
    initial_state: Optional[State] = None,
    direction: int = 1,
    seed: Optional[tf.Tensor] = None,
) -> Tuple[tf.Tensor, State]:
    """Run ``cell`` over all frames of all sequences.

    :param params: by their name in `Cell.param_specs`
    :param x: [time, batch, in_dim], or int [time, batch] of class indices
    :param lengths: int [batch], or None if all sequences fill the array
    :param initial_state: tensors [batch, n] in the order of `Cell.state_keys`; default zeros
    :param direction: -1: each sequence runs from its last frame to its first one; the output has the order of the input
    :param seed: int [2]: training, draw noise from it; None: no noise
    :return: outputs [time, batch, n], which are 0 after the end of a sequence, and the state of each sequence after the
        frame that ran last (the initial state if it has none)
    """
    # Reverse the narrower array of x and z.
    reverse_x = direction == -1 and (x.dtype.is_integer or cell.in_dim <= cell.gates * cell.n_out)
    if reverse_x:
        x = _reversed(x, lengths)
    z = cell.project_input(params, x)
    z.set_shape([None, None, cell.gates * cell.n_out])
    if direction == -1 and not reverse_x:
        z = _reversed(z, lengths)
    if initial_state is None:
        zeros = tf.zeros([tf.shape(z)[1], cell.n_out], z.dtype)
        initial_state = (zeros,) * cell.n_states
    outputs, state = kernel_for(cell)(cell, params, z, lengths, initial_state, seed)
    if direction == -1:
        outputs = _reversed(outputs, lengths)
    if lengths is not None:
        outputs = zero_padding(outputs, lengths)
    outputs.set_shape([x.shape[0], x.shape[1], cell.n_out])
    return outputs, state


def _reversed(x: tf.Tensor, lengths: Optional[tf.Tensor]) -> tf.Tensor:
    return tf.reverse(x, axis=[0]) if lengths is None else reverse_sequences(x, lengths)
