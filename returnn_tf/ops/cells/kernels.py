"""How a unit runs over all frames: a table from unit names to implementations.

The entries here are plain TensorFlow loops. A native kernel takes over a unit by `register_native_kernel`.
"""

from __future__ import annotations

from typing import Callable, Dict, Optional, Sequence, Tuple

from returnn_tf.ops.cells.base import Cell, Params, State
from returnn_tf.ops.cells.lstm import LstmCell
from returnn_tf.ops.cells.lstm_loop import lstm_loop
from returnn_tf.ops.cells.time_axis import state_at
from returnn_tf.util.lazy_tf import tf

Kernel = Callable[
    [Cell, Params, "tf.Tensor", Optional["tf.Tensor"], State, Optional["tf.Tensor"]], Tuple["tf.Tensor", State]
]
"""``kernel(cell, params, z, lengths, state, seed)`` -> outputs [time, batch, n], and the state of each sequence after
its last frame. ``z`` [time, batch, gates * n] is the projected input, in the order in which the frames are to be run;
``lengths`` int [batch], or None if all sequences fill the array; ``seed`` int [2] in training, else None. Output frames
after the end of a sequence may hold anything: the caller replaces them."""

NativeKernel = Callable[
    [Cell, Params, "tf.Tensor", Optional["tf.Tensor"], State, Optional["tf.Tensor"], bool], Tuple["tf.Tensor", State]
]
"""``kernel(cell, params, z, lengths, state, seed, reverse)``: as `Kernel`, but ``z`` and the outputs are in the order
of time, also if each sequence is to run from its last frame to its first one, and padded output frames are 0."""

_kernels: Dict[str, Kernel] = {}
_natives: Dict[str, Callable[[Cell, tf.DType], Optional[NativeKernel]]] = {}


def register_kernel(unit: str, kernel: Kernel) -> None:
    """``kernel`` runs all cells of the canonical unit name ``unit`` from now on, also those that had a native one."""
    _kernels[unit] = kernel
    _natives.pop(unit, None)


def register_native_kernel(unit: str, choose: Callable[[Cell, tf.DType], Optional[NativeKernel]]) -> None:
    """``choose(cell, dtype)`` is the kernel for a cell of the canonical unit name ``unit``, or None if it has none."""
    _natives[unit] = choose


def native_kernel_for(cell: Cell, dtype: tf.DType) -> Optional[NativeKernel]:
    """The native kernel for a cell, or None: then `kernel_for` has one in plain TensorFlow."""
    choose = _natives.get(cell.unit)
    return None if choose is None else choose(cell, dtype)


def kernel_for(cell: Cell) -> Kernel:
    """The kernel under the name of the unit, else the loop over its step."""
    return _kernels.get(cell.unit, step_loop)


def step_loop(
    cell: Cell,
    params: Params,
    z: tf.Tensor,
    lengths: Optional[tf.Tensor],
    state: State,
    seed: Optional[tf.Tensor],
) -> Tuple[tf.Tensor, State]:
    """A loop over `Cell.step`, for any cell; see `Kernel`. A sequence keeps its state after its end."""
    n_frames, batch = tf.shape(z)[0], tf.shape(z)[1]
    weights = cell.prepare(params, batch=batch, seed=seed)
    inputs = tf.TensorArray(z.dtype, n_frames, element_shape=z.shape[1:]).unstack(z)
    # Entry 0 is a dummy, such that the array can be stacked without any frame.
    outputs = tf.TensorArray(z.dtype, n_frames + 1, element_shape=[None, cell.n_out])
    outputs = outputs.write(0, tf.zeros([batch, cell.n_out], z.dtype))
    ends = None if lengths is None else tf.cast(lengths, tf.int32)[:, None]
    frame_noise = seed is not None and cell.step_noise

    def frame(t: tf.Tensor, state: State, outputs: tf.TensorArray) -> Tuple[tf.Tensor, State, tf.TensorArray]:
        output, new = cell.step(weights, inputs.read(t), state, _frame_seed(seed, t) if frame_noise else None)
        if ends is not None:
            running = t < ends
            new = tuple(tf.where(running, after, before) for after, before in zip(new, state))
        return t + 1, new, outputs.write(t + 1, output)

    _, state, outputs = tf.while_loop(
        lambda t, *_: t < n_frames, frame, (0, tuple(state), outputs), parallel_iterations=1
    )
    return outputs.stack()[1:], state


def _frame_seed(seed: Optional[tf.Tensor], t: tf.Tensor) -> tf.Tensor:
    """Another seed in each frame, and another than that of `Cell.prepare`."""
    assert seed is not None
    return seed + tf.cast(tf.stack([0, t + 1]), seed.dtype)


def plain_lstm(
    cell: Cell,
    params: Params,
    z: tf.Tensor,
    lengths: Optional[tf.Tensor],
    state: State,
    seed: Optional[tf.Tensor],
) -> Tuple[tf.Tensor, State]:
    """The LSTM loop with its own gradient, for LSTMs without further options; see `Kernel`."""
    assert isinstance(cell, LstmCell)
    if not cell.is_plain:
        return step_loop(cell, params, z, lengths, state, seed)
    c0, h0 = state
    c, h = lstm_loop(z, cell.recurrent_weights(params, seed), c0, h0)
    # The loop runs on after the end of a sequence: its state is the one at the end, not that of the last frame.
    last: Sequence[tf.Tensor] = (c[-1], h[-1]) if lengths is None else (state_at(c, lengths), state_at(h, lengths))
    return h[1:], tuple(last)


for _unit in ("nativelstm2", "nativelstmlowmem", "basiclstm", "standardlstm", "zoneoutlstm"):
    register_kernel(_unit, plain_lstm)
