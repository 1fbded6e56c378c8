"""Transformers: as an encoder-decoder with several targets, as a language model, with a sampled softmax."""

from __future__ import annotations

from typing import Any

from .case import Case, Layers, layer, linear

LABELS, MODEL, HEADS = 6, 4, 2
INIT = "variance_scaling_initializer(mode='fan_in', distribution='uniform', scale=1.0)"


def residual(name: str, part: str, source: str) -> Layers:
    return {
        name + "_drop": layer("dropout", name + "_" + part, dropout=0.1),
        name: layer("combine", [source, name + "_drop"], kind="add", n_out=MODEL),
    }


def self_attention(name: str, source: str, left_only: bool) -> Layers:
    return {
        name + "_ln": layer("layer_norm", source),
        name + "_self": layer(
            "self_attention", name + "_ln", num_heads=HEADS, total_key_dim=MODEL, n_out=MODEL,
            attention_left_only=left_only, attention_dropout=0.1, forward_weights_init=INIT,
        ),
        name + "_lin": linear(name + "_self", MODEL, with_bias=False, forward_weights_init=INIT),
        **residual(name, "lin", source),
    }  # fmt: skip


def feed_forward(name: str, source: str) -> Layers:
    return {
        name + "_ln": layer("layer_norm", source),
        name + "_1": linear(name + "_ln", 8, "relu", forward_weights_init=INIT),
        name + "_2": linear(name + "_1", MODEL, dropout=0.1, forward_weights_init=INIT),
        **residual(name, "2", source),
    }


def embedded(name: str, source: Any, **options: Any) -> Layers:
    return {
        name + "_raw": linear(source, MODEL, with_bias=False, forward_weights_init=INIT, **options),
        name + "_scaled": layer("eval", name + "_raw", eval="source(0) * %f" % MODEL**0.5),
        name: layer("positional_encoding", name + "_scaled", add_to_input=True),
        name + "_drop": layer("dropout", name, dropout=0.1),
    }


def cross_attention(name: str, source: str) -> Layers:
    return {
        name + "_ln": layer("layer_norm", source),
        name + "_query0": linear(name + "_ln", MODEL, with_bias=False, forward_weights_init=INIT),
        name + "_query": layer("split_dims", name + "_query0", axis="F", dims=(HEADS, MODEL // HEADS)),
        name + "_energy": layer(
            "dot", ["base:" + name + "_key", name + "_query"], red1=-1, red2=-1, var1="T", var2="T?"
        ),
        name + "_weights": layer("softmax_over_spatial", name + "_energy", energy_factor=(MODEL // HEADS) ** -0.5),
        name + "_weights_drop": layer("dropout", name + "_weights", dropout=0.1, dropout_noise_shape={"*": None}),
        name + "_att0": layer("generic_attention", weights=name + "_weights_drop", base="base:" + name + "_value"),
        name + "_att": layer("merge_dims", name + "_att0", axes="static"),
        name + "_lin": linear(name + "_att", MODEL, with_bias=False, forward_weights_init=INIT),
        **residual(name, "lin", source),
    }  # fmt: skip


def keys_and_values(name: str) -> Layers:
    result: Layers = {}
    for part in ("key", "value"):
        result[name + "_" + part + "0"] = linear("encoder", MODEL, with_bias=False, forward_weights_init=INIT)
        result[name + "_" + part] = layer("split_dims", name + "_" + part + "0", axis="F", dims=(HEADS, MODEL // HEADS))
    return result


def encoder_decoder(tied: bool) -> Layers:
    unit: Layers = {
        **embedded("target_embed", "prev:output"),
        **self_attention("dec1_att", "target_embed_drop", True),
        **cross_attention("dec1_cross", "dec1_att"),
        **feed_forward("dec1", "dec1_cross"),
        "decoder": layer("layer_norm", "dec1"),
        "output_prob": layer(
            "softmax",
            "decoder",
            target="classes",
            loss="ce",
            loss_opts={"label_smoothing": 0.1, "use_normalized_loss": True},
            forward_weights_init=INIT,
        ),
        "output": layer(
            "choice", "output_prob", target="classes", beam_size=3, initial_output=0, length_normalization=True
        ),
        "end": layer("compare", "output", value=0),
    }
    if tied:
        unit["output_prob"]["reuse_params"] = {
            "map": {"W": {"custom": transposed, "reuse_layer": "target_embed_raw"}, "b": None}
        }
    return {
        **embedded("source_embed", "data"),
        **self_attention("enc1_att", "source_embed_drop", False),
        **feed_forward("enc1", "enc1_att"),
        "encoder": layer("layer_norm", "enc1"),
        **keys_and_values("dec1_cross"),
        "output": layer("rec", [], unit=unit, target="classes", max_seq_len="max_len_from('base:encoder') * 3"),
        "decision": layer("decide", "output", loss="edit_distance", target="classes"),
    }


def transposed(reuse_layer: Any, **kwargs: Any) -> Any:
    """Return the weights of another layer, transposed."""
    import tensorflow as tf

    return tf.transpose(reuse_layer.params["W"])


def language_model(sampled: bool) -> Layers:
    unit: Layers = {
        **embedded("target_embed", "data:source"),
        **self_attention("dec1_att", "target_embed_drop", True),
        **feed_forward("dec1", "dec1_att"),
        "decoder": layer("layer_norm", "dec1"),
        "output": layer(
            "softmax",
            "decoder",
            target="classes",
            loss="ce",
            dropout=0.0,
            use_transposed_weights=True,
            forward_weights_init=INIT,
        ),
    }
    if sampled:
        unit["output"].update(
            loss="sampling_loss", loss_opts={"num_sampled": 3, "use_full_softmax": True, "nce_loss": False}
        )
        unit["target_embed_raw"]["param_variational_noise"] = 0.05
    return {"output": layer("rec", "data", unit=unit, target="classes")}


def sampled_outside() -> Layers:
    sampling = {"num_sampled": 3, "num_splits": 1, "sampler": "log_uniform", "nce_loss": False}
    return {
        "input": linear(
            "data", 4, with_bias=False, forward_weights_init="random_normal_initializer(mean=0.0, stddev=0.1)"
        ),
        "lstm": layer("rec", "input", unit="lstm", n_out=4, dropout=0.2, L2=0.0),
        "output": layer(
            "softmax",
            "lstm",
            loss="sampling_loss",
            loss_opts=sampling,
            target="classes",
            use_transposed_weights=True,
            dropout=0.2,
        ),
    }


def multilingual() -> Layers:
    """Return one encoder with two decoders, and a CTC on the transcription, as for speech translation."""

    def decoder(target: str, scale: float) -> Layers:
        unit = {
            "output": layer("choice", "output_prob", target=target, beam_size=2, initial_output=0),
            "end": layer("compare", "output", value=0),
            "embed": linear("output", 3, with_bias=False, initial_output="apply(0)"),
            "s": layer("rnn_cell", ["prev:embed", "prev:att"], unit="standardlstm", n_out=4),
            "query": linear("s", 4, with_bias=False),
            "energy_in": layer("combine", ["base:context", "query"], kind="add"),
            "energy_tanh": layer("activation", "energy_in", activation="tanh"),
            "energy": linear("energy_tanh", 1, with_bias=False),
            "weights": layer("softmax_over_spatial", "energy"),
            "att": layer("generic_attention", weights="weights", base="base:encoder"),
            "output_prob": layer("softmax", ["s", "att"], target=target, loss="ce", loss_scale=scale),
        }
        return layer("rec", [], unit=unit, target=target, max_seq_len="max_len_from('base:encoder')")

    return {
        "embed": linear("data", 4),
        "fw": layer("rec", "embed", unit="nativelstm2", n_out=2, direction=1),
        "bw": layer("rec", "embed", unit="nativelstm2", n_out=2, direction=-1),
        "encoder": layer("copy", ["fw", "bw"]),
        "context": linear("encoder", 4),
        "output": decoder("classes", 0.7),
        "output_transcript": decoder("transcript", 0.3),
        "decision": layer("decide", "output", loss="edit_distance", target="classes"),
        "decision_transcript": layer("decide", "output_transcript", loss="edit_distance", target="transcript"),
    }


TEXT = {
    "data": {"dim": 7, "sparse": True, "available_for_inference": True},
    "classes": {"dim": LABELS, "sparse": True, "available_for_inference": False},
}
LM = {
    "data": {"dim": LABELS, "sparse": True},
    "delayed": {"dim": LABELS, "sparse": True, "available_for_inference": True},
    "classes": {"dim": LABELS, "sparse": True},
}
CASES = {
    "transformer": Case(encoder_decoder(False), TEXT, "decision"),
    "transformer-tied": Case(encoder_decoder(True), TEXT, "decision"),
    "transformer-lm": Case(language_model(False), LM),
    "transformer-lm-sampled": Case(language_model(True), LM),
    "lstm-lm-sampled": Case(sampled_outside(), LM),
    "translation": Case(
        multilingual(),
        {"data": {"dim": 5}, "classes": {"dim": LABELS, "sparse": True}, "transcript": {"dim": 4, "sparse": True}},
        "decision",
    ),
}
