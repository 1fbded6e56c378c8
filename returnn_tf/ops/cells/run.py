"""A recurrent cell over whole sequences."""

from __future__ import annotations

from typing import NamedTuple, Optional

from returnn_tf.native.portable import in_portable_ops
from returnn_tf.ops.cells.base import Cell, CellFrames, Kernel, Params, State
from returnn_tf.ops.cells.fused_lstm import fused_kernel
from returnn_tf.ops.cells.time_axis import running_order, zero_padding
from returnn_tf.ops.mixed_precision import full, reduced
from returnn_tf.ops.rounded import as_floats
from returnn_tf.util.lazy_tf import tf


class _Form(NamedTuple):
    """The way in which a cell runs over all frames.

    :param projects: the kernel gets the input itself, and projects it
    :param in_time_order: the kernel gets frames in the order of time, and sets padded outputs to 0; else it gets them
        in the order in which they run, and padded outputs may be anything
    """

    kernel: Kernel
    projects: bool = False
    in_time_order: bool = False


def _form(cell: Cell, params: Params, x: tf.Tensor, seed: Optional[tf.Tensor], *, from_zeros: bool) -> _Form:
    """Return the first form that applies."""
    if fused := fused_kernel(cell, params, x, seed, from_zeros=from_zeros):
        return _Form(fused, projects=True)
    if native := cell.native_kernel(next(iter(params.values()), x).dtype):  # a unit may have no parameters
        return _Form(native, in_time_order=True)
    if in_portable_ops():  # converters to other formats only know loops like this one
        return _Form(cell.step_loop)
    if parallel := cell.parallel_kernel():
        return _Form(parallel, in_time_order=True)
    return _Form(cell.loop_kernel() or cell.step_loop)


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

    :param params: by their name in `Cell.param_specs`; a kernel gets what is rounded as floats
    :param x: [time, batch, in_dim], or int [time, batch] of class indices
    :param lengths: int [batch], or None if all sequences fill the array
    :param initial_state: tensors [batch, size], see `Cell.state_sizes`; default zeros
    :param direction: -1: each sequence runs from its last frame to its first one; the output has the order of the input
    :param seed: int [2]: training, draw noise from it; None: no noise
    :return: outputs [time, batch, n], which are 0 after the end of a sequence, and the state of each sequence after the
        frame that ran last (without frames the initial one)
    """
    low = cell.product_dtype
    if low is not None and cell.native_kernel(tf.as_dtype(low)):  # else only the input projection is in that type
        x, params = reduced(x, low), {name: reduced(value, low) for name, value in params.items()}
        initial_state = None if initial_state is None else tuple(reduced(part, low) for part in initial_state)
    params = cell.split_kernels(params)
    floats = {name: as_floats(value) for name, value in params.items()}
    form = _form(cell, floats, x, seed, from_zeros=initial_state is None)
    reverse = direction == -1
    # The narrower array of x and z is reversed.
    is_narrow = form.projects or x.dtype.is_integer or cell.in_dim <= cell.projected_dim
    reverse_frames = reverse and not form.in_time_order
    first = running_order(x, lengths, reverse_frames and is_narrow)
    z = first if form.projects else cell.project_input(params, first)
    z.set_shape([None, None, cell.in_dim if form.projects else cell.projected_dim])
    if initial_state is None:
        initial_state = cell.zero_state(tf.shape(z)[1], z.dtype)
    z = running_order(z, lengths, reverse_frames and not is_narrow)
    outputs, state = form.kernel(floats, CellFrames(z, lengths, initial_state, seed, reverse))
    if not form.in_time_order:
        outputs = running_order(outputs, lengths, reverse)
        outputs = outputs if lengths is None else zero_padding(outputs, lengths)
    outputs.set_shape([x.shape[0], x.shape[1], cell.n_out])
    return full(outputs, low), tuple(full(part, low) for part in state)
