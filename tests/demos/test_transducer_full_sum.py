"""A transducer trained over all alignments, as recipes write it: its loss is the score which a search that recombines
gives to the same labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf.util.lazy_tf import tf

LABELS, BLANK = 3, 3
NEVER = -1e30
DATA = {"data": {"dim": 2}, "classes": {"dim": LABELS, "sparse": True}, "frames": {"dim": LABELS + 1, "sparse": True}}


def full_sum(source: Any, **_: Any) -> Any:
    """Return minus the log of the sum over all alignments with one label or blank in each frame, [batch]."""
    log_probs = source(0, as_data=True, auto_convert=False).get_placeholder_as_batch_major()  # [B, T, U + 1, labels]
    targets, encoder = source(1, as_data=True, auto_convert=False), source(2, as_data=True, auto_convert=False)
    labels = tf.one_hot(targets.get_placeholder_as_batch_major(), LABELS + 1)
    label = tf.einsum("btul,bul->btu", log_probs[:, :, :-1], labels)
    blank = log_probs[..., BLANK]
    batch = tf.shape(blank)[0]
    never = tf.fill([batch, 1], NEVER)
    start = tf.concat([tf.zeros([batch, 1]), tf.fill(tf.shape(label[:, 0]), NEVER)], axis=1)

    def step(alpha: Any, frame: Any) -> Any:
        come = tf.concat([never, alpha[:, :-1] + frame[1]], axis=1)
        return tf.reduce_logsumexp(tf.stack([alpha + frame[0], come]), axis=0)

    alphas = tf.scan(step, (tf.transpose(blank, [1, 0, 2]), tf.transpose(label, [1, 0, 2])), initializer=start)
    ends = [encoder.get_sequence_lengths() - 1, tf.range(batch), targets.get_sequence_lengths()]
    return -tf.gather_nd(alphas, tf.stack(ends, axis=1))


def network(search: bool) -> dict[str, Any]:
    """The loop with the label history for each frame (search), or for each number of labels so far (training)."""
    unit: dict[str, Any] = {
        "emit": {"class": "compare", "kind": "not_equal", "from": "output", "value": BLANK, "initial_output": True},
        "label": {"class": "reinterpret_data", "from": "prev:output", "set_sparse_dim": LABELS},
        "history": {
            "class": "masked_computation",
            "mask": "prev:emit",
            "from": "label",
            "masked_from": None if search else "base:with_start",
            "unit": {
                "class": "subnetwork",
                "from": "data",
                "subnetwork": {
                    "emb": {"class": "linear", "activation": None, "n_out": 3, "from": "data"},
                    "output": {"class": "rec", "unit": "nativelstm2", "n_out": 4, "from": "emb"},
                },
            },
        },
        "am": {"class": "linear", "activation": None, "n_out": 5, "from": "data:source"},
        "lm": {"class": "linear", "activation": None, "with_bias": False, "n_out": 5, "from": "history"},
        "joint": {"class": "combine", "kind": "add", "from": ["am", "lm"], "allow_broadcast_all_sources": not search},
        "tanh": {"class": "activation", "activation": "tanh", "from": "joint"},
        "log_prob": {"class": "linear", "activation": "log_softmax", "n_out": LABELS + 1, "from": "tanh"},
        "output": {
            "class": "choice",
            "target": "frames",
            "beam_size": 400,
            "from": "log_prob",
            "input_type": "log_prob",
            "initial_output": 0,
            "length_normalization": False,
            "recombine": "sum",
            "recombine_blank": BLANK,
        },
    }
    if not search:
        unit["nll"] = {
            "class": "eval",
            "from": ["log_prob", "base:data:classes", "base:encoder"],
            "eval": full_sum,
            "out_type": {"shape": ()},
            "loss": "as_is",
        }
    return {
        "encoder": {"class": "linear", "activation": "tanh", "n_out": 4, "from": "data"},
        "with_start": {"class": "prefix_in_time", "prefix": 0, "from": "data:classes"},
        "output": {"class": "rec", "from": "encoder", "target": "frames", "include_eos": True, "unit": unit},
    }


def net_of(search: bool) -> Any:
    config = returnn_tf.Config({"extern_data": DATA, "network": network(search), "behavior_version": 21})
    net = returnn_tf.Network.from_config(config, train=not search, search=search)
    rng = np.random.default_rng(2)
    net.set_param_values({name: rng.normal(size=net.params[name].shape) for name in sorted(net.params)})
    return net


@pytest.mark.slow
def test_loss_of_training_is_score_of_search():
    lens, rng = np.array([4, 3], "int32"), np.random.default_rng(1)
    data = {"data": rng.normal(size=(2, 4, 2)).astype("float32"), "data/size0": lens}
    found = net_of(search=True).run(data).layers["output"]
    rows, scores = found.value.reshape(2, 400, -1), found.beam_scores
    train = net_of(search=False)
    for labels in ([[0, 2], [1]], [[1, 1, 2, 0], [2, 2]], [[2], [0, 1, 0]]):
        for b, reference in enumerate(labels):
            frames = {"frames": np.zeros([1, lens[b]], "int32"), "frames/size0": lens[b : b + 1]}
            one = {"data": data["data"][b : b + 1, : lens[b]], "data/size0": lens[b : b + 1], **frames}
            one.update({"classes": np.array([reference], "int32"), "classes/size0": np.array([len(reference)])})
            (loss,) = train.run(one).losses.values()
            same = [k for k, row in enumerate(rows[b]) if [x for x in row[: lens[b]] if x != BLANK] == reference]
            finite = [scores[b, k] for k in same if np.isfinite(scores[b, k])]
            assert finite == [pytest.approx(-loss, rel=1e-5)]
