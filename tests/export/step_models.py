"""Networks with loops whose steps are exported, small but like those of users, and searches over their graphs."""

from __future__ import annotations

import contextlib
import os

import numpy as np

import returnn_tf
from returnn_tf.export.meta.graph_builder import GraphBuilder
from returnn_tf.export.steps.client import StepDecoder
from returnn_tf.export.steps.graph import add_steps, step_facts
from returnn_tf.export.steps.loops import StepLoop, plan_for_steps
from returnn_tf.export.steps.search import SearchOptions, StepSearch

LABELS = 6
EXTERN = {"data": {"dim": 3}, "classes": {"dim": LABELS, "sparse": True}}
ENCODER = {
    "fw": {"class": "rec", "unit": "lstm", "n_out": 4, "direction": 1, "from": "data"},
    "bw": {"class": "rec", "unit": "lstm", "n_out": 4, "direction": -1, "from": "data"},
    "encoder": {"class": "copy", "from": ["fw", "bw"]},
}


def linear(sources, n_out, **options):
    return {"class": "linear", "activation": None, "n_out": n_out, "from": sources, **options}


def choice(source="prob", **options):
    given = {"class": "choice", "target": "classes", "beam_size": 3, "initial_output": 0, "from": source}
    return {**given, **options}


PROB = {"class": "softmax", "n_out": LABELS}
END = {"class": "compare", "from": "output", "value": 0}


def attention(**options):
    """Return the decoder of many: embedding, LSTM, attention with accumulated weights, readout."""
    unit = {
        "embed": linear("output", 5, with_bias=False, initial_output=0),
        "s_transformed": linear("s", 6, with_bias=False),
        "feedback": linear("prev:accum", 6, with_bias=False),
        "energy_in": {"class": "combine", "kind": "add", "from": ["base:enc_ctx", "feedback", "s_transformed"]},
        "energy": linear("energy_tanh", 1, with_bias=False),
        "energy_tanh": {"class": "activation", "activation": "tanh", "from": "energy_in"},
        "weights": {"class": "softmax_over_spatial", "from": "energy"},
        "accum": {
            "class": "eval", "from": ["prev:accum", "weights", "base:inv_fertility"],
            "eval": "source(0) + source(1) * source(2) * 0.5", "out_type": {"dim": 1, "shape": (None, 1)},
        },
        "att": {"class": "generic_attention", "weights": "weights", "base": "base:encoder"},
        "s": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": 7, "from": ["prev:embed", "prev:att"]},
        "readout_in": linear(["s", "prev:embed", "att"], 8),
        "readout": {"class": "reduce_out", "mode": "max", "num_pieces": 2, "from": "readout_in"},
        "prob": {**PROB, "from": "readout"},
        "output": choice(**options),
        "end": END,
    }  # fmt: skip
    return {
        **ENCODER,
        "enc_ctx": linear("encoder", 6),
        "inv_fertility": linear("encoder", 1, activation="sigmoid", with_bias=False),
        "output": {"class": "rec", "from": [], "unit": unit, "target": "classes", "max_seq_len": 7},
    }


def transducer(**options):
    """RNA: a label per frame; an LSTM over the labels that are no blank, and with the frame a joint network."""
    masked = {
        "class": "masked_computation", "mask": "prev:emit", "from": "prev:embed",
        "unit": {"class": "rec", "unit": "lstm", "n_out": 5},
    }  # fmt: skip
    unit = {
        "am": {"class": "copy", "from": "data:source"},
        "emit": {"class": "compare", "kind": "not_equal", "value": 5, "from": "output", "initial_output": True},
        "embed": linear("output", 4, initial_output=0),
        "lm_masked": masked,
        "lm": {"class": "unmask", "mask": "prev:emit", "from": "lm_masked"},
        "readout": linear(["am", "lm"], 6, activation="tanh"),
        "prob": {**PROB, "from": "readout"},
        "output": choice(**{"length_normalization": False, **options}),
    }
    loop = {"class": "rec", "from": "encoder", "unit": unit, "target": "classes", "include_eos": True}
    return {**ENCODER, "output": loop}


def language_model(**options):
    """Labels alone: an LSTM that reads the label of its own step, and a layer that mixes what depends on it or not."""
    unit = {
        "embed": linear("output", 4),
        "context": linear("prev:mixed", 4, activation="tanh"),
        "lstm": {"class": "rec", "unit": "lstm", "n_out": 5, "from": ["embed", "context", "prev:context"]},
        "sum": linear(["lstm", "prev:mixed", "prev:context", "context"], 4, activation="tanh"),
        "mixed": {"class": "eval", "from": ["sum", ":i"], "eval": "source(0) + 0.1 * tf.cast(source(1), tf.float32)"},
        "prob": {**PROB, "from": ["prev:lstm", "context"]},
        "output": choice(**options),
        "end": END,
    }
    return {"output": {"class": "rec", "from": [], "unit": unit, "target": "classes", "max_seq_len": 6}}


def two_choices(**options):
    """Return two labels per step: the second one is chosen given the first one, and ends the sequence."""
    unit = {
        "embed0": linear("first", 4),
        "embed1": linear("output", 4, initial_output="var"),
        "s": {
            "class": "rnn_cell",
            "unit": "standardlstm",
            "n_out": 5,
            "from": ["prev:embed0", "prev:embed1", "base:mean"],
        },
        "prob0": {**PROB, "from": "s"},
        "first": choice("prob0", **{"beam_size": 2, **options}),
        "prob": {**PROB, "from": ["s", "embed0"]},
        "output": choice(**options),
        "end": END,
    }
    loop = {"class": "rec", "from": [], "unit": unit, "target": "classes", "max_seq_len": 6, "include_eos": True}
    return {**ENCODER, "mean": {"class": "reduce", "mode": "mean", "axes": "T", "from": "encoder"}, "output": loop}


def transformer(**options):
    """Return self-attention over the labels so far, whose history grows, and attention on the frames."""
    unit = {
        "embed": linear("prev:output", 4),
        "position": {"class": "positional_encoding", "add_to_input": True, "from": "embed"},
        "self": {"class": "self_attention", "num_heads": 2, "total_key_dim": 4, "n_out": 4, "from": "position"},
        "query": linear("self", 8),
        "energy": {"class": "dot", "from": ["base:encoder", "query"], "red1": "F", "red2": "F", "var2": None},
        "weights": {"class": "softmax_over_spatial", "from": "energy"},
        "att": {"class": "generic_attention", "weights": "weights", "base": "base:encoder"},
        "prob": {**PROB, "from": ["att", "self"]},
        "output": choice(**options),
        "end": END,
    }
    loop = {
        "class": "rec",
        "from": [],
        "unit": unit,
        "target": "classes",
        "max_seq_len": "max_len_from('base:encoder')",
    }
    return {**ENCODER, "output": loop}


def nested(**options):
    """Return layers in subnetworks, states of several sizes, a window over earlier labels and frames by their index."""
    unit = {
        "embed": linear("output", 4, initial_output="apply(0)"),
        "before": {"class": "window", "window_size": 3, "window_right": 0, "from": "prev:embed"},
        "flat": {"class": "merge_dims", "axes": ["F", "dim:3"], "from": "before"},
        "sub": {
            "class": "subnetwork", "from": ["flat", "frame"], "subnetwork": {
                "cell": {
                    "class": "rnn_cell", "unit": "mamba2", "unit_opts": {"headdim": 4, "d_state": 3}, "n_out": 4,
                    "from": ["data", "prev:cell"],
                },
                "output": {"class": "copy", "from": "cell"},
            },
        },
        "frame": {"class": "rec_unstack", "from": "base:encoder"},
        "sum": {"class": "cumsum", "from": "sub"},
        "prob": {**PROB, "from": "sum"},
        "output": choice(**options),
    }  # fmt: skip
    return {**ENCODER, "output": {"class": "rec", "from": [], "unit": unit}}


def in_subnetwork(**options):
    """Return a decoder in a subnetwork, with a choice in one of its own, and a loop over the frames in each step."""
    inner = {
        "energy": linear("data:source", 3, activation="tanh"),
        "output": {"class": "rnn_cell", "unit": "gru", "n_out": 3, "from": "energy"},
    }
    unit = {
        "embed": linear("prev:output", 3),
        "frames": {"class": "combine", "kind": "add", "from": ["base:data", "embed"]},
        "read": {"class": "rec", "from": "frames", "unit": inner},
        "context": {"class": "reduce", "mode": "mean", "axes": "T", "from": "read"},
        "prob": {**PROB, "from": ["context", "embed"]},
        "output": choice(**options),
        "end": END,
    }
    loop = {"class": "rec", "from": [], "unit": unit, "target": "classes", "max_seq_len": 4}
    network = {"loop": loop, "output": {"class": "copy", "from": "loop"}}
    return {"decoder": {"class": "subnetwork", "from": "data", "subnetwork": network}}


def fixed_frames(**options):
    """As many labels as a fixed axis has entries, without any state but the labels."""
    unit = {
        "frame": {"class": "copy", "from": "data:source"},
        "prob": {**PROB, "from": ["frame", "embed"]},
        "embed": linear("prev:output", 3),
        "output": choice(**options),
    }
    frames = {"class": "split_dims", "axis": "F", "dims": (2, 4), "from": "last"}
    loop = {"class": "rec", "from": "frames", "axis": "dim:2", "unit": unit}
    last = {"class": "reduce", "mode": "mean", "axes": "T", "from": "encoder"}
    return {**ENCODER, "last": last, "frames": frames, "output": loop}


MODELS = {
    f.__name__: f for f in (fixed_frames, attention, transducer, language_model, two_choices, transformer, nested)
}


def config_of(network, **settings):
    given = {"extern_data": EXTERN, "network": network, "behavior_version": 21, "target": "classes"}
    return returnn_tf.Config({**given, **settings})


def feed_of(lens=(6, 4), seed=1):
    rng, lens = np.random.RandomState(seed), np.array(lens, "int32")
    return {"data": rng.normal(0, 1, [len(lens), max(lens), 3]).astype("float32"), "data/size0": lens}


def searching(config, seed=1, scale=1.0):
    """Return the network that searches, with parameters large enough that hypotheses differ."""
    net = returnn_tf.Network.from_config(config, search=True)
    rng = np.random.RandomState(seed)
    net.set_param_values({n: rng.normal(0, scale, v.shape) for n, v in sorted(net.get_param_values().items())})
    return net


def graph_for_steps(config, layer="output", **options):
    """Return the meta graph, its `StepGraph`, and the facts for searches."""
    builder = GraphBuilder(plan_for_steps(config, layer), config)
    graph = add_steps(builder, layer, **options)
    return builder.meta_graph(), graph, step_facts(StepLoop(builder.plan, layer), graph)


@contextlib.contextmanager
def decoder_of(net, config, folder, layer="output", **options):
    """Export single steps with the parameters of a network, and load them as a decoder does."""
    meta, _, facts = graph_for_steps(config, layer, **options)
    path = os.path.join(str(folder), "graph.meta")
    with open(path, "wb") as file:
        file.write(meta.SerializeToString())
    checkpoint = os.path.join(str(folder), "params")
    returnn_tf.save_checkpoint(net, checkpoint)
    with StepDecoder(path, checkpoint, facts=facts) as decoder:
        yield decoder, facts


def search(decoder, facts, feed, **changes):
    seqs = len(feed["data"])
    return StepSearch(decoder, SearchOptions.from_facts(facts, **changes)).run(decoder.encode(feed), seqs)
