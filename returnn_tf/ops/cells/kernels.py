"""The loop of a cell over all frames in plain TensorFlow; see `Cell.native_kernel` for the native ops."""

from __future__ import annotations

from typing import Optional

from returnn_tf.native.portable import in_portable_ops
from returnn_tf.ops.cells.base import Cell, Kernel, Params, State
from returnn_tf.ops.frames.stacked import stacked
from returnn_tf.ops.xla import xla_limit
from returnn_tf.util.lazy_tf import tf


def kernel_for(cell: Cell) -> Kernel:
    """Return the function that runs a cell over all frames in plain TensorFlow."""
    own = None if in_portable_ops() else cell.loop_kernel()
    return step_loop if own is None else own


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
        lambda t, *_: t < n_frames, frame, (0, tuple(state), outputs),
        parallel_iterations=1, maximum_iterations=xla_limit(n_frames),
    )  # fmt: skip
    return stacked(outputs, [batch if z.shape[1] is None else z.shape[1], cell.n_out]), state


def _frame_seed(seed: Optional[tf.Tensor], t: tf.Tensor) -> tf.Tensor:
    """Return a seed that differs in each frame, and from that of `Cell.prepare`."""
    assert seed is not None
    return seed + tf.cast(tf.stack([0, t + 1]), seed.dtype)
