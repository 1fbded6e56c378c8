"""Outputs that have a label or a blank for each frame: `ctc`, `transducer`."""

from __future__ import annotations

from returnn_tf.blocks.block import Layers, Rate, Size, Source, Weight, block, expect_labels, linear, per_sequence


@block
def ctc(
    name: str,
    *,
    source: Source,
    target: str = "classes",
    scale: Weight = 1.0,
    dropout: Rate = 0.0,
    search: bool = True,
) -> Layers:
    """Return a softmax with CTC (Graves et al. 2006), and its best path.

    Sequences with more labels than frames have no alignment and are left out. Layers: ``<name>``, the probabilities of
    the labels and the blank, which is the last one; ``<name>_decision``, the labels of the best path in a search.

    :param source: layer with a vector for each frame
    :param target: data key of the labels
    :param scale: weight of the loss
    :param dropout: on the source; a sequence drops the same features in all frames
    :param search: add the best path; False: for a loss beside another output, which searches
    """
    net: Layers = {
        name: {
            "class": "softmax", "from": source, **per_sequence(dropout), "target": target,
            "loss": "ctc", "loss_scale": scale,
            "loss_opts": {"beam_width": 1, "ctc_opts": {"ignore_longer_outputs_than_inputs": True}},
        },
    }  # fmt: skip
    if search:
        net[name + "_decision"] = {
            "class": "ctc_greedy", "from": name, "target": target, "loss": "edit_distance", "only_on_search": True,
        }  # fmt: skip
    return net


@block
def transducer(
    name: str,
    *,
    encoder: str,
    num_labels: Size,
    target: str = "classes",
    embedding_dim: Size = 256,
    history_dim: Size = 640,
    joint_dim: Size = 640,
    scale: Weight = 1.0,
    dropout: Rate = 0.2,
    beam_size: Size = 12,
    unit: str = "nativelstm2",
) -> Layers:
    """Return a transducer whose labels take a frame each (Graves 2012, arXiv:1211.3711; Sak et al. 2017).

    ``tanh(encoder of the frame + history)`` gives the probabilities of the labels and the blank, label ``num_labels``;
    the history is an LSTM over the labels so far. In training, the loss sums over all alignments. A search goes frame
    by frame, where the history stands still after a blank; hypotheses with the same labels are recombined. Layers:
    ``<name>``, the loss; ``<name>_frames``, the loop of the search; ``<name>_decision``, the labels of its best
    hypothesis.

    :param encoder: layer with a vector for each frame
    :param num_labels: labels of the target, without the blank
    :param target: data key of the labels
    :param embedding_dim: features of a label
    :param history_dim: cells of the LSTM over the labels
    :param joint_dim: features of the sum
    :param scale: weight of the loss
    :param dropout: on the input of the LSTM
    :param beam_size: hypotheses of a search
    :param unit: of the LSTM
    """
    blank = num_labels
    joint = {"class": "combine", "kind": "add", "activation": "tanh"}

    def history(source: str, prefix: str) -> Layers:
        # training and search share these parameters, by their scopes
        return {
            prefix + "embedding": linear(source, embedding_dim, name_scope="/%s_embedding" % name),
            prefix + "history": {
                "class": "rec", "unit": unit, "n_out": history_dim, "from": prefix + "embedding", "dropout": dropout,
                "name_scope": "/%s_history" % name,
            },
        }  # fmt: skip

    def of_history(source: str) -> Layers:
        return linear(source, joint_dim, with_bias=False, name_scope="/%s_joint_history" % name)

    def logits(source: str) -> Layers:
        return linear(source, num_labels + 1, name_scope="/%s_logits" % name)

    p = name + "_"
    is_label = {"class": "compare", "kind": "not_equal", "value": blank}
    subnetwork = {**history("data", ""), "output": {"class": "copy", "from": "history"}}
    step = {
        "is_label": {**is_label, "from": "output", "initial_output": True},
        "history_masked": {
            "class": "masked_computation", "mask": "prev:is_label", "from": "prev:output",
            "unit": {"class": "subnetwork", "from": "data", "subnetwork": subnetwork},
        },
        "history": {"class": "unmask", "mask": "prev:is_label", "from": "history_masked"},
        "joint_history": of_history("history"),
        "joint": {**joint, "from": ["data:source", "joint_history"]},
        "log_prob": {**logits("joint"), "activation": "log_softmax"},
        "output": {
            "class": "choice", "target": None, "beam_size": beam_size, "from": "log_prob", "input_type": "log_prob",
            "initial_output": blank, "length_normalization": False,  # all hypotheses have as many entries as frames
            "recombine": "sum", "recombine_blank": blank,
        },
    }  # fmt: skip
    return {
        p + "joint_encoder": linear(encoder, joint_dim),
        p + "with_blank": {
            "class": "reinterpret_data", "set_sparse_dim": num_labels + 1, "from": "data:" + target,
            **expect_labels(num_labels, "transducer", name, target),
        },
        p + "with_start": {"class": "prefix_in_time", "prefix": blank, "from": p + "with_blank"},
        **history(p + "with_start", p),
        p + "joint_history": of_history(p + "history"),
        # [batch, frames, labels + 1, joint_dim]
        p + "joint": {
            **joint, "from": [p + "joint_encoder", p + "joint_history"], "allow_broadcast_all_sources": True,
        },
        p + "logits": logits(p + "joint"),
        name: {
            "class": "transducer_loss", "logits": p + "logits", "targets": "data:" + target, "label_takes_frame": True,
            "loss": "as_is", "loss_scale": scale,
        },
        p + "frames": {
            "class": "rec", "from": p + "joint_encoder", "include_eos": True, "only_on_search": True, "unit": step,
        },
        p + "is_label": {**is_label, "from": p + "frames"},
        p + "picked": {
            "class": "masked_computation", "mask": p + "is_label", "from": p + "frames", "unit": {"class": "copy"},
        },
        p + "labels": {"class": "reinterpret_data", "set_sparse_dim": num_labels, "from": p + "picked"},
        p + "decision": {
            "class": "decide", "from": p + "labels", "target": target, "loss": "edit_distance", "only_on_search": True,
        },
    }  # fmt: skip
