"""A recurrent cell over whole sequences."""

from __future__ import annotations

from typing import Optional

from returnn_tf.native.portable import in_portable_ops
from returnn_tf.ops.cells.base import Cell, NativeKernel, Params, State
from returnn_tf.ops.cells.fused_lstm import fused_form
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
) -> tuple[tf.Tensor, State]:
    """Run ``cell`` over all frames of all sequences.

    :param params: by their name in `Cell.param_specs`
    :param x: [time, batch, in_dim], or int [time, batch] of class indices
    :param lengths: int [batch], or None if all sequences fill the array
    :param initial_state: tensors [batch, size], see `Cell.state_sizes`; default zeros
    :param direction: -1: each sequence runs from its last frame to its first one; the output has the order of the input
    :param seed: int [2]: training, draw noise from it; None: no noise
    :return: outputs [time, batch, n], which are 0 after the end of a sequence, and the state of each sequence after the
        frame that ran last (the initial state if there is none)
    """
    fused = fused_form(cell, params, x, seed, from_zeros=initial_state is None)
    native = None if fused else _whole_kernel(cell, params, x)
    # A plain kernel has one direction only: the narrower array of x and z is reversed for it.
    reverse = direction == -1
    is_narrow = x.dtype.is_integer or cell.in_dim <= cell.projected_dim
    reverse_x = reverse and not native and (is_narrow or fused is not None)
    first = _reversed(x, lengths) if reverse_x else x
    z = first if fused else cell.project_input(params, first)
    z.set_shape([None, None, cell.in_dim if fused else cell.projected_dim])
    if initial_state is None:
        initial_state = cell.zero_state(tf.shape(z)[1], z.dtype)
    if native:
        outputs, state = native(cell, params, z, lengths, initial_state, seed, reverse)
    else:
        z = _reversed(z, lengths) if reverse and not reverse_x else z
        if fused:
            form, weights = fused
            outputs, state = form.run(z, weights, lengths, initial_state)
        else:
            outputs, state = kernel_for(cell)(cell, params, z, lengths, initial_state, seed)
        outputs = _reversed(outputs, lengths) if reverse else outputs
        outputs = outputs if lengths is None else zero_padding(outputs, lengths)
    outputs.set_shape([x.shape[0], x.shape[1], cell.n_out])
    return outputs, state


def _whole_kernel(cell: Cell, params: Params, x: tf.Tensor) -> Optional[NativeKernel]:
    """Return what runs all frames at once in both directions, or None: then a loop does, in one direction."""
    native = cell.native_kernel(next(iter(params.values()), x).dtype)  # a unit may have no parameters
    # Converters to other formats only know loops like `step_loop`.
    return native or (None if in_portable_ops() else cell.parallel_kernel())


def _reversed(x: tf.Tensor, lengths: Optional[tf.Tensor]) -> tf.Tensor:
    return tf.reverse(x, axis=[0]) if lengths is None else reverse_sequences(x, lengths)
