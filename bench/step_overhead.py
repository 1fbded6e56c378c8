"""What the framework adds to a training step: one LSTM layer through `Trainer.step`, and the same ops written by hand.

    python bench/step_overhead.py [--sizes long,tiny] [--rounds N] [--kernels]

Both sides run the same LSTM kernel, loss, error and optimizer, and are timed in turn, so that other load on the machine
hits both; the figures are medians over the rounds, the ratio is that of the two times within a round. Limit: 3 %.
``--kernels`` times, instead, the loop in TensorFlow with the gradient written by hand against a plain `tf.while_loop`
with the automatic one.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, Callable

import numpy as np

import returnn_tf
from returnn_tf.native import lstm_ops, native_lstm
from returnn_tf.ops.cells.lstm import lstm_loop
from returnn_tf.ops.cells.time_axis import frame_mask, zero_padding
from returnn_tf.util.lazy_tf import tf

#: batch, frames, input dim, hidden dim
SIZES = {"long": (64, 100, 123, 320), "digits": (16, 100, 8, 128), "tiny": (40, 50, 9, 10)}
LABELS = 10
RATE = 1e-4


def make_feed(batch: int, frames: int, dim: int) -> dict[str, np.ndarray]:
    """Return a ragged batch: lengths from half to all of the frames."""
    rng = np.random.RandomState(1)
    lengths = np.linspace(frames / 2, frames, batch).astype("int32")
    return {
        "data": rng.normal(size=(batch, frames, dim)).astype("float32"),
        "data/size0": lengths,
        "classes": rng.randint(0, LABELS, (batch, frames)).astype("int32"),
        "classes/size0": lengths,
    }


def framework_step(feed: dict[str, np.ndarray], dim: int, hidden: int) -> Callable[[], float]:
    """Return a training step by the public API."""
    config = returnn_tf.Config({
        "extern_data": {"data": {"dim": dim}, "classes": {"dim": LABELS, "sparse": True}},
        "network": {
            "lstm": {"class": "rec", "unit": "lstm", "n_out": hidden, "from": "data"},
            "output": {"class": "softmax", "from": "lstm", "loss": "ce", "target": "classes"},
        },
        "optimizer": {"class": "adam"},
        "learning_rate": RATE,
    })  # fmt: skip
    trainer = returnn_tf.Trainer(returnn_tf.Network.from_config(config, train=True), config)
    tensors = trainer.tensors(feed)
    return lambda: float(trainer.step(tensors).total_loss)


def native_outputs(z: Any, w_re: Any, c0: Any, h0: Any, lengths: Any) -> Any:
    """Return the outputs of the kernel that the framework takes."""
    return native_lstm(lstm_ops(z.dtype), z, w_re, c0, h0, lengths)[0]


def loop_outputs(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Return the outputs of a loop over all frames, masked after the ends of the sequences."""
    return lambda z, w_re, c0, h0, lengths: zero_padding(loop(z, w_re, c0, h0)[1][1:], lengths)


class ByHand:
    """The same ops in a `tf.function`."""

    def __init__(self, dim: int, hidden: int, lstm: Callable[..., Any] = native_outputs) -> None:
        rng = np.random.RandomState(1)
        shapes = [(dim, 4 * hidden), (hidden, 4 * hidden), (4 * hidden,), (hidden, LABELS), (LABELS,)]
        self.variables = [tf.Variable(rng.normal(0, 0.05, shape).astype("float32")) for shape in shapes]
        self.slots = [[tf.Variable(tf.zeros(shape)) for shape in shapes] for _ in range(2)]
        self.count = tf.Variable(0.0)
        self.lstm = lstm
        signature = [
            tf.TensorSpec([None, None, dim]),
            tf.TensorSpec([None], "int32"),
            tf.TensorSpec([None, None], "int32"),
        ]
        self.step = tf.function(self._step, input_signature=signature, autograph=False)

    def _step(self, x: Any, lengths: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss, errors = self._loss(x, lengths, labels)
        gradients = tape.gradient(loss, self.variables)
        norm = tf.linalg.global_norm(gradients)
        good = tf.logical_and(tf.math.is_finite(norm), tf.math.is_finite(loss))
        tf.cond(good, lambda: self._update(gradients), lambda: tf.constant(False))
        return tf.stack([loss, errors, norm])

    def _loss(self, x: Any, lengths: Any, labels: Any) -> Any:
        w, w_re, b, w_out, b_out = [tf.convert_to_tensor(var) for var in self.variables]
        hidden = w_re.shape[0]
        x = tf.transpose(x, [1, 0, 2])
        shape = tf.shape(x)
        z = tf.nn.bias_add(tf.matmul(tf.reshape(x, [-1, x.shape[-1]]), w), b)
        z = tf.reshape(z, [shape[0], shape[1], 4 * hidden])
        zeros = tf.zeros([shape[1], hidden])
        h = self.lstm(z, w_re, zeros, zeros, lengths)
        logits = tf.matmul(tf.reshape(h, [-1, hidden]), w_out) + b_out
        mask = tf.reshape(frame_mask(lengths, shape[0]), [-1])
        labels = tf.reshape(tf.transpose(labels), [-1])
        values = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        wrong = tf.logical_and(mask, tf.argmax(logits, axis=-1, output_type="int32") != labels)
        return tf.reduce_sum(tf.where(mask, values, 0.0)), tf.reduce_sum(tf.cast(wrong, "float32"))

    def _update(self, gradients: list[Any]) -> Any:
        t = self.count.assign_add(1.0)
        for var, m, v, gradient in zip(self.variables, *self.slots, gradients):
            tf.raw_ops.ResourceApplyAdam(
                var=var.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=0.9**t,
                beta2_power=0.999**t,
                lr=RATE,
                beta1=0.9,
                beta2=0.999,
                epsilon=1e-8,
                grad=gradient,
            )
        return tf.constant(True)


def plain_loop(z: Any, w_re: Any, c0: Any, h0: Any) -> Any:
    """Return `lstm_loop` as one would write it first, with the automatic gradient."""
    frames, n = tf.shape(z)[0], w_re.shape[0]
    inputs = tf.TensorArray("float32", frames, element_shape=[None, 4 * n]).unstack(z)
    arrays = [tf.TensorArray("float32", frames + 1, element_shape=[None, n]).write(0, first) for first in (c0, h0)]

    def step(t: Any, c: Any, h: Any, c_array: Any, h_array: Any) -> Any:
        j, i, f, o = tf.split(inputs.read(t) + tf.matmul(h, w_re), 4, axis=1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(j)
        h = tf.sigmoid(o) * tf.tanh(c)
        return t + 1, c, h, c_array.write(t + 1, c), h_array.write(t + 1, h)

    result = tf.while_loop(lambda t, *_: t < frames, step, (0, c0, h0, *arrays), parallel_iterations=1)
    c_all, h_all = (array.stack() for array in result[3:])
    h_all.set_shape([None, None, n])
    return c_all, h_all


def timed_in_turn(first: Callable[[], float], second: Callable[[], float], rounds: int) -> np.ndarray:
    """Return seconds [rounds, 2]; each round runs both steps."""
    times = np.zeros((rounds, 2))
    for times_of_round in times:
        for side, step in enumerate((first, second)):
            start = time.perf_counter()
            step()
            times_of_round[side] = time.perf_counter() - start
    return times


def measure(name: str, kernels: bool, rounds: int) -> None:
    """Print the line of one size."""
    batch, frames, dim, hidden = SIZES[name]
    feed = make_feed(batch, frames, dim)
    tensors = [tf.constant(feed[key]) for key in ("data", "data/size0", "classes")]
    by_hand = ByHand(dim, hidden, loop_outputs(lstm_loop) if kernels else native_outputs)
    other = ByHand(dim, hidden, loop_outputs(plain_loop))
    framework = framework_step(feed, dim, hidden)

    def hand_step() -> float:
        return float(by_hand.step(*tensors)[0])

    def plain_step() -> float:
        return float(other.step(*tensors)[0])

    sides = (hand_step, plain_step if kernels else framework)
    seconds = timed_in_turn(*sides, rounds=5)[1:].mean()
    rounds = rounds or max(10, int(8 / seconds))
    times = timed_in_turn(*sides, rounds=rounds)
    first, second = 1e3 * np.median(times, axis=0)
    more = 100 * (np.median(times[:, 1] / times[:, 0]) - 1)
    print(
        "%-7s batch %d, frames %d, input %d, hidden %d: by hand %.2f ms, %s %.2f ms, %+.1f %%  (%d rounds)"
        % (name, batch, frames, dim, hidden, first, "plain loop" if kernels else "framework", second, more, rounds),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="long,digits,tiny", help="some of %s" % ",".join(SIZES))
    parser.add_argument("--rounds", type=int, default=0, help="timed steps of each side (default: about 16 s in all)")
    parser.add_argument("--kernels", action="store_true", help="compare the two LSTM loops instead")
    args = parser.parse_args()
    for name in args.sizes.split(","):
        measure(name, args.kernels, args.rounds)


if __name__ == "__main__":
    main()
