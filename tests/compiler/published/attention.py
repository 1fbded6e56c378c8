"""Attention encoder-decoders: location-aware with CTC, minimum risk, fusion with an LM, local attention."""

from __future__ import annotations

from typing import Any

from .case import Case, Layers, layer, linear

LABELS = 6
EXTERN = {"data": {"dim": 6}, "classes": {"dim": LABELS, "sparse": True}}
INIT = "glorot_uniform"


def encoder(source: str = "data", layers: int = 1, both: bool = True) -> Layers:
    net: Layers = {
        "source0": layer("split_dims", source, axis="F", dims=(-1, 1)),
        "conv0": layer("conv", "source0", filter_size=(3, 3), padding="same", n_out=2, activation=None, with_bias=True),
        "conv0p": layer("pool", "conv0", mode="max", padding="same", pool_size=(1, 2)),
        "conv_merged": layer("merge_dims", "conv0p", axes="static"),
    }
    below: Any = "conv_merged"
    sides = [("fw", 1), ("bw", -1)][: 2 if both else 1]
    for i in range(layers):
        for side, direction in sides:
            net["lstm%d_%s" % (i, side)] = layer(
                "rec", below, unit="nativelstm2", n_out=3, direction=direction, dropout=0.1, L2=1e-4
            )
        below = ["lstm%d_fw" % i, "lstm%d_bw" % i][: len(sides)]
        if i == 0:
            net["lstm0_pool"] = layer("pool", below, mode="max", padding="same", pool_size=(2,), trainable=False)
            below = "lstm0_pool"
    net["encoder"] = layer("copy", below)
    net["enc_ctx"] = linear("encoder", 4, with_bias=True)
    net["inv_fertility"] = linear("encoder", 1, "sigmoid", with_bias=False)
    return net


def decoder(**extra: Layers) -> Layers:
    """Return the step of a decoder with weight feedback."""
    return {
        "output": layer("choice", "output_prob", target="classes", beam_size=3, initial_output=0),
        "end": layer("compare", "output", value=0),
        "target_embed": linear("output", 3, with_bias=False, initial_output=0),
        "weight_feedback": linear("prev:accum_att_weights", 4, with_bias=False),
        "s_transformed": linear("s", 4, with_bias=False),
        "energy_in": layer("combine", ["base:enc_ctx", "weight_feedback", "s_transformed"], kind="add", n_out=4),
        "energy_tanh": layer("activation", "energy_in", activation="tanh"),
        "energy": linear("energy_tanh", 1, with_bias=False),
        "att_weights": layer("softmax_over_spatial", "energy"),
        "accum_att_weights": layer(
            "eval", ["prev:accum_att_weights", "att_weights", "base:inv_fertility"],
            eval="source(0) + source(1) * source(2) * 0.5", out_type={"dim": 1, "shape": (None, 1)},
        ),
        "att0": layer("generic_attention", weights="att_weights", base="base:encoder"),
        "att": layer("merge_dims", "att0", axes="except_batch"),
        "s": layer("rnn_cell", ["prev:target_embed", "prev:att"], unit="LSTMBlock", n_out=4, dropout=0.1),
        "readout_in": linear(["s", "prev:target_embed", "att"], 4),
        "readout": layer("reduce_out", "readout_in", mode="max", num_pieces=2),
        "output_prob": layer(
            "softmax", "readout", dropout=0.1, target="classes", loss="ce", loss_opts={"label_smoothing": 0.1}
        ),
        **extra,
    }  # fmt: skip


def rec(unit: Layers, **options: Any) -> Layers:
    return layer("rec", [], unit=unit, target="classes", max_seq_len="max_len_from('base:encoder')", **options)


DECISION = layer("decide", "output", loss="edit_distance", target="classes", loss_opts={})


def with_ctc(layers: int = 1) -> Layers:
    return {
        **encoder(layers=layers),
        "output": rec(decoder()),
        "decision": DECISION,
        "ctc": layer(
            "softmax", "encoder", loss="ctc", target="classes", loss_scale=0.5,
            loss_opts={"beam_width": 1, "use_native": True},
        ),
    }  # fmt: skip


def ctc_scaled() -> Layers:
    """Return the network with the CTC loss on scaled log probabilities; the gradient passes through the scale."""
    return {
        **with_ctc(),
        "ctc": linear("encoder", LABELS + 1, "log_softmax", dropout=0.1),
        "ctc_scaled": layer("eval", "ctc", eval="0.3 * source(0)"),
        "ctc_loss": layer(
            "copy", "ctc_scaled", loss="ctc", target="classes",
            loss_opts={
                "beam_width": 1, "use_native": True, "output_in_log_space": True,
                "ctc_opts": {"logits_normalize": False, "grad_wrt_softmax_in": False},
            },
        ),
    }  # fmt: skip


def pretrained() -> Layers:
    """Return the settings of a net that grows in depth and width."""

    def construct(idx: int, net_dict: Layers) -> Any:
        layers = idx + 1
        if layers > 2:
            return None
        net = encoder(layers=layers)
        net.update({"#config": {"batch_size": 100 * (idx + 1)}, "#repetition": 2, "#copy_param_mode": "subset"})
        net.update({name: net_dict[name] for name in ("output", "decision", "ctc")})
        if idx == 0:
            net["lstm0_fw"]["dropout"] = net["lstm0_bw"]["dropout"] = 0
        return net

    return {"pretrain": {"copy_param_mode": "subset", "construction_algo": construct}}


def min_wer() -> Layers:
    return {
        **encoder(both=False),
        "output": rec(decoder()),
        "min_wer": layer(
            "copy", "extra.search:output", loss="expected_loss", target="classes", loss_scale=0.5,
            loss_opts={"loss": {"class": "edit_distance"}, "loss_kind": "error"},
        ),
        "decision": DECISION,
    }  # fmt: skip


def fusion(filename: str) -> Layers:
    lm = {
        "input": linear("data", 3, with_bias=False),
        "lstm0": layer("rnn_cell", "input", unit="LSTMBlock", n_out=3),
        "output": layer("softmax", "lstm0", n_out=LABELS),
    }
    lm["output"] = linear("lstm0", LABELS, use_transposed_weights=True)
    return {
        **encoder(both=False),
        "output": rec(
            decoder(
                lm_output=layer("subnetwork", "prev:output", load_on_init=filename, n_out=LABELS, subnetwork=lm),
                lm_output_prob=layer("activation", "lm_output", activation="softmax", target="classes"),
                combo=layer(
                    "eval", ["output_prob", "lm_output_prob"],
                    eval="safe_log(source(0)) + 0.3 * safe_log(source(1))",
                ),
                output=layer(
                    "choice", "combo", target="classes", beam_size=4, input_type="log_prob", initial_output=0
                ),
                nobody=linear("prev:missing_layer", 3, strange_option=1),
            )
        ),
        "decision": DECISION,
    }  # fmt: skip


def local() -> Layers:
    """Return a decoder that attends to three frames from where the last step had its largest weight."""
    unit = decoder()
    for name in ("weight_feedback", "accum_att_weights"):
        del unit[name]
    unit.update({
        "t_start": layer("eval", "prev:p_t", eval="tf.maximum(source(0) - 1, 0)"),
        "h_window": layer("slice_nd", "base:encoder", start="t_start", size=3),
        "ctx_window": layer("slice_nd", "base:enc_ctx", start="t_start", size=3),
        "energy_in": layer("combine", ["ctx_window", "s_transformed"], kind="add", n_out=4),
        "att_weights0": layer("softmax_over_spatial", "energy"),
        "att_weights": layer(
            "switch", condition="inside", true_from="att_weights0", false_from=0.0
        ),
        "inside": layer("compare", "indices", value=3, kind="less"),
        "indices": layer("range_in_axis", "att_weights0", axis="stag:sliced", unbroadcast=False),
        "best": layer("reduce", "att_weights", mode="argmax", axis="stag:sliced"),
        "best_": layer("squeeze", "best", axis="dim:1"),
        "p_t": layer("eval", ["t_start", "best_"], eval="source(0) + tf.cast(source(1), tf.int32)", initial_output=0),
        "att0": layer("generic_attention", weights="att_weights", base="h_window"),
        "picked": layer("gather", "base:encoder", position="clipped", axis="T"),
        "limit": layer("length", "base:encoder", axis="T"),
        "clipped": layer("eval", ["p_t", "limit"], eval="tf.minimum(source(0), source(1) - 1)"),
        "readout_in": linear(["s", "prev:target_embed", "att", "picked"], 4),
    })  # fmt: skip
    return {**encoder(both=False), "output": rec(unit), "decision": DECISION}


CASES = {
    "attention-ctc": Case(with_ctc(layers=2), EXTERN, "decision", pretrained(), labels=2),
    "attention-ctc-scaled": Case(ctc_scaled(), EXTERN, "decision", labels=2),
    "min-wer": Case(min_wer(), EXTERN, "decision", labels=2),
    "fusion": Case(fusion("lm"), EXTERN, "decision", only_search="output/rec/lm_output/", labels=2),
    "local-attention": Case(local(), EXTERN, "decision", labels=2),
}
