"""Layer classes as configs define them on RETURNN's bases; a config imports this file, so imports are those of one."""

# mypy: ignore-errors
# ruff: noqa

import tensorflow as tf
from TFNetworkLayer import CopyLayer, LayerBase, Loss, _ConcatInputLayer, auto_register_layer_classes
from TFUtil import Data, Dim, get_initializer


class HalfOfMeanLayer(_ConcatInputLayer):
    """Subtract half of the mean over the valid frames, and scale by a trained factor."""

    layer_class = "half_of_mean"

    def __init__(self, factor=0.5, **kwargs):
        super(HalfOfMeanLayer, self).__init__(**kwargs)
        data = self.input_data.copy_as_batch_major()
        x = data.placeholder
        lens = data.get_sequence_lengths()
        mask = tf.cast(tf.sequence_mask(lens, data.time_dimension()), tf.float32)[:, :, None]
        mean = tf.reduce_sum(x * mask, axis=1, keep_dims=True) / tf.cast(lens, tf.float32)[:, None, None]
        with self.var_creation_scope():
            scale = self.add_param(tf.get_variable("scale", shape=[data.dim], initializer=tf.constant_initializer(2.0)))
            fixed = tf.get_variable("fixed", initializer=[1.0, 2.0, 3.0])
            self.add_param(fixed, trainable=False)
        self.output.placeholder = (x - factor * mean) * scale + fixed
        self.output.size_placeholder = data.size_placeholder.copy()

    @classmethod
    def get_out_data_from_opts(cls, name, sources, **kwargs):
        return sources[0].output.copy_as_batch_major().copy_template("%s_output" % name)


class AddOneHotToTimeLayer(_ConcatInputLayer):
    """Append the one-hot code of the frame index to the features; time-major."""

    layer_class = "add_one_hot_to_time"

    def __init__(self, n_positions, **kwargs):
        super(AddOneHotToTimeLayer, self).__init__(**kwargs)
        x = self.input_data.get_placeholder_as_time_major()
        shape = tf.shape(x)
        code = tf.one_hot(tf.minimum(tf.range(shape[0]), n_positions - 1), n_positions)
        code = tf.tile(tf.expand_dims(code, 1), [1, shape[1], 1])
        self.output.placeholder = tf.concat([x, code], axis=2)
        self.output.time_dim_axis = 0
        self.output.batch_dim_axis = 1
        self.output.size_placeholder = {0: self.input_data.get_sequence_lengths()}

    @classmethod
    def get_out_data_from_opts(cls, name, sources, n_positions, **kwargs):
        dim = sources[0].output.dim + n_positions
        return Data(name=name, shape=(None, dim), dim=dim, dtype="float32", batch_dim_axis=1, time_dim_axis=0)


class EverySecondLayer(LayerBase):
    """Take every second frame: an axis with lengths of its own."""

    layer_class = "every_second"

    def __init__(self, **kwargs):
        super(EverySecondLayer, self).__init__(**kwargs)
        source = self.sources[0].output.copy_as_batch_major()
        self.output.placeholder = source.placeholder[:, ::2]
        self.output.size_placeholder = {0: (source.get_sequence_lengths() + 1) // 2}

    @classmethod
    def get_out_data_from_opts(cls, name, sources, **kwargs):
        return sources[0].output.copy_as_batch_major().copy_template(name)


CHUNKS = Dim(kind=Dim.Types.Spatial, description="chunks")


class ChunksLayer(LayerBase):
    """Take every third frame; the axis is declared outside of the class."""

    layer_class = "chunks"

    def __init__(self, **kwargs):
        super(ChunksLayer, self).__init__(**kwargs)
        source = self.sources[0].output.copy_as_batch_major()
        time = source.get_time_dim_tag()
        assert Dim.get_tag_from_size_tensor(source.get_sequence_lengths()) is time
        size = (time.dyn_size + 2) // 3
        CHUNKS.set_tag_on_size_tensor(size)
        assert Dim.get_tag_from_size_tensor(size) is CHUNKS
        self.output.placeholder = source.placeholder[:, ::3]
        self.output.size_placeholder = {0: size}

    @classmethod
    def get_out_data_from_opts(cls, name, sources, **kwargs):
        return sources[0].output.copy_as_batch_major().copy_template(name)


class SamplingLayer(_ConcatInputLayer):
    """The largest of noisy scores: labels."""

    layer_class = "sampling"

    def __init__(self, scale=0.0, **kwargs):
        super(SamplingLayer, self).__init__(**kwargs)
        seed = self.network.random.randint(2**31)
        x = self.input_data.placeholder
        noise = tf.random_uniform(tf.shape(x), seed=seed)
        self.output.placeholder = tf.cast(tf.argmax(x + scale * noise, axis=self.input_data.feature_dim_axis), tf.int32)
        self.output.size_placeholder = self.input_data.size_placeholder.copy()

    @classmethod
    def get_out_data_from_opts(cls, name, sources, **kwargs):
        out = sources[0].output.copy_template(name=name, dtype="int32")
        return Data(
            name=name,
            shape=out.shape[:-1],
            dim=out.dim,
            sparse=True,
            dtype="int32",
            batch_dim_axis=out.batch_dim_axis,
            time_dim_axis=out.time_dim_axis,
            size_placeholder=out.size_placeholder,
        )


class FactorLayer(_ConcatInputLayer):
    """A weighted mixture over the encoder of distributions that depend on the state of a decoder."""

    layer_class = "factor"

    def __init__(self, attention_weights, encoder, prev_outputs, n_out, debug=False, **kwargs):
        super(FactorLayer, self).__init__(**kwargs)
        weights = attention_weights.output.copy_with_feature_last().get_placeholder_as_batch_major()  # [B, J, 1]
        enc = encoder.output.get_placeholder_as_batch_major()  # [B, J, D]
        prev = prev_outputs.output.get_placeholder_as_batch_major()  # [B, D]
        hidden = tf.tanh(enc + prev[:, None])
        w = self.linear("out_w", int(enc.shape[-1]), n_out)
        p = tf.nn.softmax(tf.tensordot(hidden, w, [[2], [0]]))
        self.output.placeholder = tf.reduce_sum(weights * p, axis=1)

    def linear(self, name, n_in, n_out):
        with self.var_creation_scope():
            init = get_initializer(
                "glorot_uniform", seed=self.network.random.randint(2**31), eval_local_ns={"layer": self}
            )
            with tf.variable_scope("factors"):
                return self.add_param(tf.get_variable(name, (n_in, n_out), initializer=init))

    @classmethod
    def transform_config_dict(cls, d, network, get_layer):
        d.setdefault("from", [])
        super(FactorLayer, cls).transform_config_dict(d, network=network, get_layer=get_layer)
        d["attention_weights"] = get_layer(d["attention_weights"])
        d["encoder"] = get_layer(d.pop("base_encoder"))
        d["prev_outputs"] = get_layer(d["prev_outputs"])

    @classmethod
    def get_out_data_from_opts(cls, name, n_out, **kwargs):
        return Data(name=name, shape=(n_out,), dim=n_out, batch_dim_axis=0)


class RunningSumLayer(LayerBase):
    """The sum of all frames so far, with a state in loops."""

    layer_class = "running_sum"

    def __init__(self, **kwargs):
        super(RunningSumLayer, self).__init__(**kwargs)
        x = self.sources[0].output.placeholder
        if self._rec_previous_layer is not None:
            x = x + self._rec_previous_layer.rec_vars_outputs["sum"]
        else:
            x = tf.cumsum(x, axis=self.sources[0].output.time_dim_axis)
        self.rec_vars_outputs["sum"] = x
        self.output.placeholder = x

    @classmethod
    def get_rec_initial_extra_outputs(cls, batch_dim, rec_layer, sources, **kwargs):
        return {"sum": tf.zeros([batch_dim, sources[0].output.dim])}


class HistoryAttentionLayer(_ConcatInputLayer):
    """Attention to all frames so far, whose keys are also the values; the history grows from step to step."""

    layer_class = "history_attention"

    def __init__(self, total_key_dim, **kwargs):
        super(HistoryAttentionLayer, self).__init__(**kwargs)
        x = self.input_data.placeholder
        with self.var_creation_scope():
            w = self.add_param(tf.get_variable("K", (self.input_data.dim, total_key_dim)))
        key = tf.matmul(x, w)[:, None]  # [B, 1, D]
        if self._rec_previous_layer is None:
            raise NotImplementedError
        keys = tf.concat([self._rec_previous_layer.rec_vars_outputs["keys"], key], axis=1)
        self.rec_vars_outputs["keys"] = keys
        keys.set_shape((None, None, total_key_dim))
        weights = tf.nn.softmax(tf.reduce_sum(keys * key, axis=2, keepdims=True), axis=1)
        self.output.placeholder = tf.reduce_sum(weights * keys, axis=1)

    @classmethod
    def get_out_data_from_opts(cls, name, total_key_dim, sources, **kwargs):
        data = sources[0].output.copy_template(name)
        data.dim = total_key_dim
        return data

    @classmethod
    def get_rec_initial_extra_outputs(cls, batch_dim, rec_layer, total_key_dim, **kwargs):
        return {"keys": tf.zeros([batch_dim, 0, total_key_dim])}

    @classmethod
    def get_rec_initial_extra_outputs_shape_invariants(cls, total_key_dim, **kwargs):
        return {"keys": tf.TensorShape((None, None, total_key_dim))}


class LikeTargetLayer(LayerBase):
    """Mark the frames with the label of the target."""

    layer_class = "like_target"

    def __init__(self, **kwargs):
        super(LikeTargetLayer, self).__init__(**kwargs)
        target = self._get_target_value()
        self.output.placeholder = tf.one_hot(target.get_placeholder_as_batch_major(), self.output.dim)


class TiedLayer(_ConcatInputLayer):
    """Scores by the weights of another layer, and a dense layer."""

    layer_class = "tied"

    def __init__(self, embedding, **kwargs):
        super(TiedLayer, self).__init__(**kwargs)
        name = embedding.get_base_absolute_name_scope_prefix() + "W/read:0"
        weights = tf.get_default_graph().get_tensor_by_name(name)
        hidden = tf.layers.dense(self.input_data.placeholder, 2, activation="tanh", name="hidden")
        self.output.placeholder = tf.tensordot(hidden, weights, [[2], [0]])

    @classmethod
    def transform_config_dict(cls, d, network, get_layer):
        super(TiedLayer, cls).transform_config_dict(d, network=network, get_layer=get_layer)
        d["embedding"] = get_layer(d["embedding"])


class NamedCopyLayer(CopyLayer):
    """A copy, doubled."""

    layer_class = "doubled"

    def __init__(self, **kwargs):
        super(NamedCopyLayer, self).__init__(**kwargs)
        self.output.placeholder *= 2


class AbsLoss(Loss):
    """Sum of absolute differences, weighted."""

    class_name = "abs_difference"

    def __init__(self, weight=1.0, **kwargs):
        super(AbsLoss, self).__init__(**kwargs)
        self.weight = weight

    def get_value(self):
        self._check_init()
        return self.weight * self.reduce_func(tf.abs(self.output_flat - self.target_flat))

    def get_error(self):
        return tf.constant(3.0)


auto_register_layer_classes(list(globals().values()))
