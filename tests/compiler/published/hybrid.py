"""Frame-wise models for hybrid recognisers: a Conformer, and a factored model of triphones."""

from __future__ import annotations

from typing import Any

from returnn_tf.tensor import SpatialDim

from .case import Case, Layers, layer, linear

INIT = {"class": "VarianceScaling", "scale": 0.78, "mode": "fan_in", "distribution": "uniform"}
DECAY = {"L2": 1e-4, "forward_weights_init": INIT}


def front_end() -> Layers:
    return {
        "image": layer("split_dims", "data", axis="F", dims=(-1, 1)),
        "conv1": layer(
            "conv", "image", filter_size=(3, 3), padding="same", n_out=3, activation="relu", with_bias=True, **DECAY
        ),
        "pool1": layer("pool", "conv1", mode="max", pool_size=(1, 2), strides=(1, 2), padding="same", trainable=False),
        "conv2": layer(
            "conv", "pool1", filter_size=(3, 3), padding="same", n_out=4, activation="relu", with_bias=True,
            strides=(3, 1), **DECAY,
        ),
        "features": layer("merge_dims", "conv2", axes="static"),
        "block0": linear("features", 4, with_bias=False, **DECAY),
    }  # fmt: skip


def feed_forward(name: str, source: str) -> Layers:
    return {
        name + "_ln": layer("layer_norm", source),
        name + "_ff1": linear(name + "_ln", 8, "swish", with_bias=True, **DECAY),
        name + "_ff2": linear(name + "_ff1", 4, with_bias=True, dropout=0.1, **DECAY),
        name + "_drop": layer("dropout", name + "_ff2", dropout=0.1),
        name: layer("eval", [name + "_drop", source], eval="0.5 * source(0) + source(1)"),
    }


def conformer_block(name: str, source: str) -> Layers:
    attention = {
        "att_ln": layer("layer_norm", name + "_in"),
        "rel_pos": layer(
            "relative_positional_encoding", name + "_att_ln", n_out=2, clipping=2, forward_weights_init=INIT
        ),
        "att_self": layer(
            "self_attention", name + "_att_ln", n_out=4, num_heads=2, total_key_dim=4, key_shift=name + "_rel_pos",
            attention_left_only=False, attention_dropout=0.1, forward_weights_init=INIT,
        ),
        "att_linear": linear(name + "_att_self", 4, with_bias=False, **DECAY),
        "att": layer("combine", [name + "_att_linear", name + "_in"], kind="add"),
        "conv_ln": layer("layer_norm", name + "_att"),
        "conv_in": linear(name + "_conv_ln", 8, **DECAY),
        "conv_glu": layer("gating", name + "_conv_in", activation="identity"),
        "conv_depth": layer(
            "conv", name + "_conv_glu", n_out=4, groups=4, filter_size=(3,), padding="same", with_bias=True,
            activation=None, **DECAY,
        ),
        "conv_bn": layer(
            "batch_norm", name + "_conv_depth", momentum=0.1, epsilon=1e-3, update_sample_only_in_training=True,
            delay_sample_update=True,
        ),
        "conv_act": layer("activation", name + "_conv_bn", activation="swish"),
        "conv_out": linear(name + "_conv_act", 4, **DECAY),
        "conv_drop": layer("dropout", name + "_conv_out", dropout=0.1),
        "conv": layer("combine", [name + "_conv_drop", name + "_att"], kind="add"),
    }  # fmt: skip
    return {
        **feed_forward(name + "_in", source),
        **{name + "_" + key: value for key, value in attention.items()},
        **feed_forward(name + "_end", name + "_conv"),
        name: layer("layer_norm", name + "_end"),
    }


def conformer() -> Case:
    network = {
        **front_end(),
        **conformer_block("block1", "block0"),
        "up": layer(
            "transposed_conv", "block1", n_out=4, filter_size=(3,), strides=(3,), activation="swish", with_bias=True,
            **DECAY,
        ),
        "same_time": layer("reinterpret_data", "up", size_base="data:classes"),
        "aux_up": layer("transposed_conv", "block0", n_out=4, filter_size=(3,), strides=(3,), activation=None),
        "aux_time": layer("reinterpret_data", "aux_up", size_base="data:classes"),
        "aux_mlp": linear("aux_time", 5, "relu"),
        "aux_out": layer(
            "softmax", "aux_mlp", loss="ce", target="classes", loss_scale=0.3, loss_opts={"focal_loss_factor": 2.0}
        ),
        "output": layer(
            "softmax", "same_time", loss="ce", target="classes", loss_opts={"focal_loss_factor": 2.0}, dropout=0.0
        ),
    }  # fmt: skip
    extern = {
        "data": {"dim": 6, "same_dim_tags_as": {"t": FRAMES}},
        "classes": {"dim": 7, "sparse": True, "same_dim_tags_as": {"t": FRAMES}},
    }
    return Case(network, extern)


FRAMES = SpatialDim("frames")
PHONES, CLASSES = 4, 6


def factored() -> Case:
    """Plan left context, centre state and right context as three softmaxes, taken apart from one dense label."""

    def embedding(source: str, dim: int) -> Layers:
        return linear(source, dim, with_bias=False, **DECAY)

    network: dict[str, Any] = {
        "data_centre": layer(
            "eval",
            "data:classes",
            eval="tf.math.floordiv(source(0), %d)" % (PHONES * PHONES),
            out_type={"dim": CLASSES, "dtype": "int32", "sparse": True},
            register_as_extern_data="centre",
        ),
        "future": layer(
            "eval",
            "data:classes",
            eval="tf.math.floormod(source(0), %d)" % PHONES,
            out_type={"dim": PHONES, "dtype": "int32", "sparse": True},
            register_as_extern_data="futureLabel",
        ),
        "rest": layer(
            "eval",
            "data:classes",
            eval="tf.math.floordiv(source(0), %d)" % PHONES,
            out_type={"dim": CLASSES * PHONES, "dtype": "int32", "sparse": True},
        ),
        "past": layer(
            "eval",
            "rest",
            eval="tf.math.floormod(source(0), %d)" % PHONES,
            out_type={"dim": PHONES, "dtype": "int32", "sparse": True},
            register_as_extern_data="pastLabel",
        ),
        "fwd": layer("rec", "data", unit="nativelstm2", n_out=4, direction=1, dropout=0.1, L2=1e-4),
        "bwd": layer("rec", "data", unit="nativelstm2", n_out=4, direction=-1, dropout=0.1, L2=1e-4),
        "encoder-output": layer("copy", ["fwd", "bwd"]),
        "pastEmbed": embedding("past", 3),
        "currentState": embedding("data_centre", 3),
        "linear1-triphone": linear(["encoder-output", "currentState", "pastEmbed"], 6, "relu", **DECAY),
        "linear2-triphone": linear("linear1-triphone", 6, "relu", **DECAY),
        "linear1-diphone": linear(["encoder-output", "pastEmbed"], 6, "relu", **DECAY),
        "left-output": layer(
            "softmax",
            "encoder-output",
            target="pastLabel",
            loss="ce",
            loss_scale=1.0,
            loss_opts={"focal_loss_factor": 2.0, "label_smoothing": 0.2},
        ),
        "center-output": layer(
            "softmax",
            "linear1-diphone",
            target="centre",
            loss="ce",
            loss_opts={"focal_loss_factor": 2.0, "label_smoothing": 0.2},
        ),
        "right-output": layer("softmax", "linear2-triphone", target="futureLabel", loss="ce"),
        "output": layer("copy", "center-output"),
    }
    extern = {
        "data": {"dim": 5, "same_dim_tags_as": {"t": ALIGNED}},
        "classes": {
            "dim": CLASSES * PHONES * PHONES,
            "sparse": True,
            "dtype": "int32",
            "same_dim_tags_as": {"t": ALIGNED},
        },
    }
    return Case(network, extern)


ALIGNED = SpatialDim("aligned")
CASES = {"conformer": conformer(), "factored": factored()}
