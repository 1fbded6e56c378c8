"""The steps in plain TensorFlow: its ops and `tf.while_loop`, written by hand."""

from __future__ import annotations

from typing import Any, Callable, Optional

import tensorflow as tf
from model_rows import DROPOUT, KERNEL, RATE, Model, serve, threads
from tf_losses import loss_of, steps_of


class Network:
    """Parameters and the functions that use them; the first call creates them, later ones take them in order."""

    def __init__(self, m: Model) -> None:
        self.m = m
        self.variables: list = []
        self._at = 0

    def __call__(self, data: dict[str, Any]) -> Any:
        """Return the logits [batch, time, labels]."""
        self._at, m, x = 0, self.m, data["x"]
        if m.kind == "attention":
            y = self._attention_model(data)
        elif m.kind in ("lm", "ctc"):
            y = tf.gather(self._param(m.labels, m.dim), x) if m.kind == "lm" else x
            y = self._recurrent(y, data["lengths"], m.kind == "ctc")
        elif m.kind == "feed-forward":
            y = x
            for i in range(m.layers):
                y = tf.nn.relu(self._dense(tf.nn.dropout(y, DROPOUT) if i else y, m.size))
        else:
            y = self._encoder(x, data["lengths"] if m.shortest < 1 else None)
        return self._dense(y, m.labels + (m.kind == "ctc"))

    def _param(self, *shape: int, value: Optional[float] = None) -> Any:
        if self._at == len(self.variables):
            scale = (sum(shape[-2:]) / 2) ** -0.5
            start = tf.random.normal(shape, 0, scale) if value is None else tf.fill(shape, value)
            self.variables.append(tf.Variable(start))
        self._at += 1
        return self.variables[self._at - 1]

    def _dense(self, x: Any, n_out: int, bias: bool = True) -> Any:
        y = tf.tensordot(x, self._param(x.shape[-1], n_out), 1)
        return y + self._param(n_out, value=0.0) if bias else y

    def _norm(self, x: Any, axes: tuple = (-1,)) -> Any:
        mean, variance = tf.nn.moments(x, axes, keepdims=True)
        scale, offset = self._param(x.shape[-1], value=1.0), self._param(x.shape[-1], value=0.0)
        return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-6)

    def _feed_forward(self, x: Any, activation: Callable[[Any], Any], scale: float = 1.0) -> Any:
        y = tf.nn.dropout(activation(self._dense(self._norm(x), self.m.hidden)), DROPOUT)
        y = tf.nn.dropout(self._dense(y, self.m.size), DROPOUT)
        return x + (y if scale == 1 else scale * y)

    def _attention(self, x: Any, mask: Any) -> Any:
        m = self.m
        batch, frames = x.shape[:2]
        qkv = tf.reshape(self._dense(self._norm(x), 3 * m.size, False), [batch, frames, 3, m.heads, -1])
        q, k, v = tf.unstack(tf.transpose(qkv, [2, 0, 3, 1, 4]))
        energy = tf.matmul(q * q.shape[-1] ** -0.5, k, transpose_b=True)
        weights = tf.nn.dropout(tf.nn.softmax(energy if mask is None else energy + mask), DROPOUT)
        y = tf.reshape(tf.transpose(tf.matmul(weights, v), [0, 2, 1, 3]), [batch, frames, m.size])
        return x + tf.nn.dropout(self._dense(y, m.size, False), DROPOUT)

    def _convolution(self, x: Any) -> Any:
        a, b = tf.split(self._dense(self._norm(x), 2 * self.m.size), 2, axis=-1)
        y = (a * tf.sigmoid(b))[:, :, None]  # the kernel for CPUs crashes with a long filter in the second axis
        y = tf.nn.depthwise_conv2d(y, self._param(KERNEL, 1, self.m.size, 1), [1, 1, 1, 1], "SAME")[:, :, 0]
        y = tf.nn.silu(self._norm(y + self._param(self.m.size, value=0.0), (0, 1)))
        return x + tf.nn.dropout(self._dense(y, self.m.size), DROPOUT)

    def _encoder(self, x: Any, lengths: Any) -> Any:
        mask = None
        if lengths is not None:
            mask = tf.where(tf.sequence_mask(lengths, x.shape[1]), 0.0, -1e30)[:, None, None]
        x = self._dense(x, self.m.size)
        for _ in range(self.m.layers):
            if self.m.kind == "transformer":
                x = self._feed_forward(self._attention(x, mask), tf.nn.relu)
            else:
                x = self._attention(self._feed_forward(x, tf.nn.silu, 0.5), mask)
                x = self._norm(self._feed_forward(self._convolution(x), tf.nn.silu, 0.5))
        return self._norm(x)

    def _lstm(self, x: Any) -> Any:
        """Return the outputs [batch, time, n]; frames after the end are computed like all others."""
        n, (batch, frames) = self.m.size, x.shape[:2]
        z = tf.transpose(self._dense(x, 4 * n), [1, 0, 2])
        z = tf.TensorArray("float32", frames, element_shape=[batch, 4 * n]).unstack(z)
        weights = tf.convert_to_tensor(self._param(n, 4 * n))
        out = tf.TensorArray("float32", frames, element_shape=[batch, n])

        def body(t: Any, c: Any, h: Any, out: Any) -> Any:
            c, h = _cell(z.read(t) + tf.matmul(h, weights), c)
            return [t + 1, c, h, out.write(t, h)]

        zero = tf.zeros([batch, n])
        out = tf.while_loop(lambda t, *_: t < frames, body, [0, zero, zero, out], maximum_iterations=frames)[-1]
        return tf.transpose(out.stack(), [1, 0, 2])

    def _recurrent(self, x: Any, lengths: Any, both: bool) -> Any:
        for _ in range(self.m.layers):
            forward = self._lstm(x)
            if both:
                backward = tf.reverse_sequence(self._lstm(tf.reverse_sequence(x, lengths, 1)), lengths, 1)
                forward = tf.concat([forward, backward], axis=-1)
            x = forward
        return x

    def _attention_model(self, data: dict[str, Any]) -> Any:
        m, labels = self.m, data["labels"]
        enc = self._recurrent(data["x"], data["lengths"], True)
        (batch, steps), frames, size = labels.shape, enc.shape[1], 2 * m.size
        mask = tf.where(tf.sequence_mask(data["lengths"], frames), 0.0, -1e30)
        emb = tf.gather(self._param(m.labels, m.hidden), tf.pad(labels[:, :-1], [[0, 0], [1, 0]]))
        keys = self._dense(enc, size)
        z = tf.transpose(self._dense(emb, 4 * m.hidden), [1, 0, 2])
        z = tf.TensorArray("float32", steps, element_shape=[batch, 4 * m.hidden]).unstack(z)
        shapes = [(size + m.hidden, 4 * m.hidden), (m.hidden, size), (1, size), (size, 1)]
        w_state, w_context, w_feedback, w_energy = (tf.convert_to_tensor(self._param(*shape)) for shape in shapes)

        def body(t: Any, c: Any, h: Any, att: Any, total: Any, out: Any) -> Any:
            c, h = _cell(z.read(t) + tf.matmul(tf.concat([att, h], axis=1), w_state), c)
            hidden = tf.tanh(keys + tf.matmul(h, w_context)[:, None] + total[:, :, None] * w_feedback[0])
            weights = tf.nn.softmax(tf.tensordot(hidden, w_energy, 1)[..., 0] + mask)
            att = tf.matmul(weights[:, None], enc)[:, 0]
            return [t + 1, c, h, att, total + weights, out.write(t, tf.concat([h, att], axis=1))]

        zeros = [tf.zeros([batch, n]) for n in (m.hidden, m.hidden, size, frames)]
        out = tf.TensorArray("float32", steps, element_shape=[batch, m.hidden + size])
        out = tf.while_loop(lambda t, *_: t < steps, body, [0, *zeros, out], maximum_iterations=steps)[-1]
        return tf.tanh(self._dense(tf.concat([tf.transpose(out.stack(), [1, 0, 2]), emb], axis=-1), m.hidden))


def _cell(z: Any, c: Any) -> Any:
    i, j, f, o = tf.split(z, 4, axis=-1)
    c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(j)
    return c, tf.sigmoid(o) * tf.tanh(c)


def make_steps(m: Model) -> dict[str, Callable[[], Any]]:
    """Return the steps of `model_rows.serve`."""
    arrays = m.data()
    data = {key: tf.constant(value) for key, value in arrays.items()}
    network = Network(m)
    network({key: value[:1] for key, value in data.items()})  # creates the variables
    slots = [[tf.Variable(tf.zeros_like(var)) for var in network.variables] for _ in range(2)]
    count = tf.Variable(0.0)

    def apply(gradients: list) -> None:
        t = count.assign_add(1.0)
        for var, first, second, gradient in zip(network.variables, *slots, gradients):
            tf.raw_ops.ResourceApplyAdam(
                var=var.handle, m=first.handle, v=second.handle, beta1_power=0.9**t, beta2_power=0.999**t, lr=RATE,
                beta1=0.9, beta2=0.999, epsilon=1e-8, grad=tf.convert_to_tensor(gradient),
            )  # fmt: skip

    return steps_of(lambda: loss_of(m, network(data), data), network.variables, apply, arrays)


if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(threads())
    tf.zeros([])  # what TensorFlow needs by itself is not counted
    serve(make_steps)
