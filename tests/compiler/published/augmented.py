"""Configs with code of their own: masked spectra, schedules of training, summaries."""

from __future__ import annotations

from typing import Any

from .attention import DECISION, EXTERN, decoder, encoder, rec
from .case import Case, Layers, layer


def mask_range(x: Any, axis: int, pos: Any, max_amount: int) -> Any:
    """Set up to `max_amount` consecutive entries of the axis to 0, from `pos` [B]."""
    import tensorflow as tf
    from TFUtil import where_bc

    batch, dim = tf.shape(x)[0], tf.shape(x)[axis]
    amount = tf.random.uniform([batch], 1, max_amount + 1, dtype=tf.int32)
    end = tf.minimum(pos + amount, dim)
    indices = tf.expand_dims(tf.range(dim), 0)
    hit = tf.logical_and(indices >= tf.expand_dims(pos, 1), indices < tf.expand_dims(end, 1))
    hit = tf.reshape(hit, [batch, dim, 1] if axis == 1 else [batch, 1, dim])
    return where_bc(hit, 0.0, x)


def random_mask(x: Any, axis: int, least: int, most: Any, max_amount: int) -> Any:
    """Mask a random number of ranges, by a loop."""
    import tensorflow as tf
    from returnn.tf.compat import v1 as tf1

    batch, dim = tf.shape(x)[0], tf.shape(x)[axis]
    num = tf1.random_uniform(shape=(batch,), minval=least, maxval=most + 1, dtype=tf.int32)
    scores = -tf1.log(-tf1.log(tf1.random_uniform((batch, dim), 1e-6, 1 - 1e-6)))
    _, positions = tf.nn.top_k(scores, tf.reduce_max(num))

    def body(i: Any, x: Any) -> tuple[Any, Any]:
        from returnn.tf.util.basic import where_bc

        masked = mask_range(x, axis, positions[:, i], max_amount)
        return i + 1, where_bc(tf.reshape(tf.less(i, num), [batch, 1, 1]), masked, x)

    _, x = tf1.while_loop(
        cond=lambda i, _: tf.less(i, tf.reduce_max(num)), body=body, loop_vars=(0, x),
        shape_invariants=(tf.TensorShape(()), x.get_shape()),
    )  # fmt: skip
    return x


def transform(data: Any, network: Any, time_factor: int = 1) -> Any:
    """Mask ranges of time and of features in training, more after some steps."""
    import tensorflow as tf
    from returnn.tf.compat import v1 as tf1

    step = network.global_train_step
    step1 = tf.where(tf.greater_equal(step, 1), 1, 0)
    step2 = tf.where(tf.greater_equal(step, 4), 1, 0)
    most = network.get_config().typed_value("mask_most", 2)
    x = data.get_placeholder_as_batch_major()

    def masked() -> Any:
        y = random_mask(x, 1, 1, tf.maximum(tf.shape(x)[1] // 4, 1) * (1 + step1), 2)
        y = random_mask(y, 2, 1, most + step2, data.dim // 5)
        tf1.summary.image("masked", tf1.expand_dims(y, axis=-1))
        return y

    return network.cond_on_train(masked, lambda: x)


def augmented() -> Layers:
    net = encoder("source", both=False)
    net["source"] = layer(
        "eval",
        "data",
        eval="self.network.get_config().typed_value('transform')(source(0, as_data=True), network=self.network)",
    )
    return {**net, "output": rec(decoder()), "decision": DECISION}


def summary(name: str, x: Any) -> None:
    """Write statistics of `x` [T, B, F] as TF 1 does."""
    from returnn.tf.compat import v1 as tf

    x_shape = tf.shape(x)
    x_ = tf.reshape(x, [-1, x_shape[-1]])
    mean = tf.reduce_mean(x_, axis=0)
    tf.summary.image(name, tf.expand_dims(tf.transpose(x, [1, 2, 0]), axis=3))
    tf.summary.scalar("%s_max_abs" % name, tf.reduce_max(tf.abs(x)))
    tf.summary.scalar("%s_mean" % name, tf.reduce_mean(mean))
    tf.summary.scalar("%s_stddev" % name, tf.sqrt(tf.reduce_mean(tf.square(x))))
    tf.summary.histogram("%s_hist" % name, x)


def summarised(source: Any, self: Any, **kwargs: Any) -> Any:
    """Write statistics of the source in training, and pass it on."""
    import tensorflow as tf

    data = source(0, as_data=True)
    x = data.get_placeholder_as_time_major()
    with tf.name_scope("features"):
        summary("features", x)
    lens = data.get_sequence_lengths()
    noise = tf.random.normal(tf.shape(x), stddev=0.01)
    scale = self.network.cond_on_train(
        lambda: tf.minimum(tf.cast(self.network.global_train_step, tf.float32), 1.0), lambda: 0.0
    )
    mask = tf.sequence_mask(lens, maxlen=tf.shape(x)[0], dtype=tf.float32)
    return x + scale * noise * tf.expand_dims(tf.transpose(mask), -1)


def same_as_input(sources: Any, name: str, **kwargs: Any) -> Any:
    return sources[0].output.copy_as_time_major().copy_template(name="%s_output" % name)


def warped() -> Layers:
    return {
        "source": layer("eval", "data", eval=summarised, out_type=same_as_input),
        "lstm": layer("rec", "source", unit="nativelstm2", n_out=4, direction=-1),
        "noise": layer("eval", "lstm", eval="source(0) * self.network.get_config().float('factor', 1.0)"),
        "output": layer("softmax", "noise", loss="ce", target="classes"),
    }


ALIGNED = {"data": {"dim": 6}, "classes": {"dim": 5, "sparse": True}}
CASES = {
    "spec-augment": Case(augmented(), EXTERN, "decision", {"transform": transform, "mask_most": 1}, labels=2),
    "summaries": Case(warped(), ALIGNED, None, {"factor": 0.5}),
}
