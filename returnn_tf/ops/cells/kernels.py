"""The loop of a cell over all frames in plain TensorFlow; see `Cell.native_kernel` for the native ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, Optional

from returnn_tf.native.portable import in_portable_ops
from returnn_tf.ops.cells.base import Cell, Params, State
from returnn_tf.ops.cells.lstm import LstmCell
from returnn_tf.ops.cells.lstm_loop import lstm_loop
from returnn_tf.ops.cells.time_axis import state_at
from returnn_tf.ops.frames.stacked import stacked
from returnn_tf.util.lazy_tf import tf

Kernel = Callable[
    [Cell, Params, "tf.Tensor", Optional["tf.Tensor"], State, Optional["tf.Tensor"]], tuple["tf.Tensor", State]
]
"""``kernel(cell, params, z, lengths, state, seed)`` -> outputs [time, batch, n], and the state of each sequence after
its last frame. ``z`` [time, batch, projected_dim] is the projected input, in the order in which frames are to be run;
``lengths`` int [batch], or None if all sequences fill the array; ``seed`` int [2] in training, else None. Output frames
after the end of a sequence may hold anything: the caller replaces them."""


def kernel_for(cell: Cell) -> Kernel:
    """Return the function that runs a cell over all frames in plain TensorFlow."""
    if in_portable_ops():  # `lstm_loop` keeps for its gradient what converters can't express
        return step_loop
    return plain_lstm if isinstance(cell, LstmCell) and cell.is_plain else step_loop


def step_loop(
    cell: Cell,
    params: Params,
    z: tf.Tensor,
    lengths: Optional[tf.Tensor],
    state: State,
    seed: Optional[tf.Tensor],
) -> tuple[tf.Tensor, State]:
    """Run `Cell.step` in a loop, for any cell; see `Kernel`. A sequence keeps its state after its end.

    Converters to other formats (ONNX, TensorFlow Lite) only know loops like this one: an array is read at the loop
    counter, or created for the loop, written at the counter in each step, and stacked after it.
    """
    n_frames, batch = tf.shape(z)[0], tf.shape(z)[1]
    weights = cell.prepare(params, batch=batch, seed=seed)
    inputs = tf.TensorArray(z.dtype, n_frames, element_shape=z.shape[1:]).unstack(z)
    outputs = tf.TensorArray(z.dtype, n_frames, element_shape=[z.shape[1], cell.n_out])
    ends = None if lengths is None else tf.expand_dims(tf.cast(lengths, tf.int32), 1)
    frame_noise = seed is not None and cell.step_noise

    def frame(t: tf.Tensor, state: State, outputs: tf.TensorArray) -> tuple[tf.Tensor, State, tf.TensorArray]:
        output, new = cell.step(weights, inputs.read(t), state, _frame_seed(seed, t) if frame_noise else None)
        if ends is not None:
            running = t < ends
            new = tuple(tf.where(running, after, before) for after, before in zip(new, state))
        return t + 1, new, outputs.write(t, output)

    _, state, outputs = tf.while_loop(
        lambda t, *_: t < n_frames, frame, (0, tuple(state), outputs), parallel_iterations=1
    )
    return stacked(outputs, [batch if z.shape[1] is None else z.shape[1], cell.n_out]), state


def _frame_seed(seed: Optional[tf.Tensor], t: tf.Tensor) -> tf.Tensor:
    """Return a seed that differs in each frame, and from that of `Cell.prepare`."""
    assert seed is not None
    return seed + tf.cast(tf.stack([0, t + 1]), seed.dtype)


def plain_lstm(
    cell: Cell,
    params: Params,
    z: tf.Tensor,
    lengths: Optional[tf.Tensor],
    state: State,
    seed: Optional[tf.Tensor],
) -> tuple[tf.Tensor, State]:
    """Run the LSTM loop with its own gradient, for LSTMs without further options; see `Kernel`."""
    assert isinstance(cell, LstmCell)
    c0, h0 = state
    c, h = lstm_loop(z, cell.recurrent_weights(params, seed), c0, h0)
    # The loop continues after the end of a sequence: its state is the one at its end, not that of the last frame.
    last: Sequence[tf.Tensor] = (c[-1], h[-1]) if lengths is None else (state_at(c, lengths), state_at(h, lengths))
    return h[1:], tuple(last)
