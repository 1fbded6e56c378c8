"""Layers over alignments: `transducer_loss`, and that all of them compute the same without native ops."""

import numpy as np
import pytest

from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import ConfigError
from returnn_tf.native.decoding import align
from tests.layers.nets import config_of, feed, net_of
from tests.native import align_reference as reference
from tests.tiers import usual

EXTERN = {"extern_data": {"data": {"dim": 3}, "labels": {"dim": 5, "sparse": True}}}
JOINT = {
    "encoder": {"class": "linear", "activation": None, "n_out": 6, "from": "data"},
    "embedding": {"class": "linear", "activation": None, "n_out": 6, "from": "data:labels"},
    "after": {"class": "pad", "axes": "T", "padding": (1, 0), "from": "embedding"},
    "joint": {
        "class": "combine", "kind": "add", "from": ["encoder", "after"], "allow_broadcast_all_sources": True,
        "is_output_layer": True,
    },
}  # fmt: skip


def transducer(**options):
    layer = {"class": "transducer_loss", "logits": "joint", "targets": "data:labels", "loss": "as_is", **options}
    return {**JOINT, "output": layer}


def run(network):
    arrays = feed()
    arrays["labels"], arrays["labels/size0"] = arrays["labels"][:, :2], np.array([2, 1, 2], "int32")
    arrays = {k: v for k, v in arrays.items() if k.partition("/")[0] in ("data", "labels")}
    net = net_of(network, **EXTERN)
    net.set_param_values({k: np.cos(np.arange(v.size)).reshape(v.shape) for k, v in net.get_param_values().items()})
    return net.run(arrays, with_grad=True), arrays


@pytest.mark.parametrize(
    "options", [{}, {"blank_index": 5}, {"blank_index": 0}, {"label_takes_frame": True}, {"logits_normalized": True}]
)
def test_transducer_loss(options):
    out, arrays = run(transducer(**options))
    joint = out.layers["joint"].value
    blank = options.get("blank_index", 5)
    for b, (frames, count) in enumerate(zip(arrays["data/size0"], arrays["labels/size0"])):
        expected = reference.transducer_loss(
            joint[b, :frames, : count + 1], arrays["labels"][b, :count], blank,
            options.get("label_takes_frame", False), options.get("logits_normalized", False),
        )  # fmt: skip
        expected = expected if np.isfinite(expected) else 0.0
        assert out.layers["output"].value[b] == pytest.approx(expected, rel=1e-5, abs=1e-5)


SOFTMAX = {"class": "softmax", "n_out": 6, "from": "data"}
VIA = {"loss": "via_layer", "loss_opts": {"align_layer": "bw", "loss_wrt_to_act_in": "softmax"}}
BW = {"class": "fast_bw", "align_target_key": "labels", "input_type": "prob", "from": "p"}
LOGITS = {"class": "linear", "activation": None, "n_out": 6, "from": "data"}
CTC = {"class": "ctc_loss", "logits": "z", "targets": "data:labels", "loss": "as_is"}


def edges(labels):
    return [(i, i + 1, label, 0.5) for i, label in enumerate(labels)] + [
        (i + 1, i + 1, c) for i, c in enumerate(labels)
    ]


NETWORKS = {
    "transducer": transducer(),
    "transducer, frames": transducer(label_takes_frame=True),
    "fast_bw": {
        "p": {**SOFTMAX, **VIA}, "bw": {**BW, "align_target": "ctc"}, "output": {"class": "copy", "from": "bw"},
    },
    "automaton": {
        "p": {**SOFTMAX, **VIA}, "bw": {**BW, "align_target": "automaton", "automaton": edges},
        "output": {"class": "copy", "from": "bw"},
    },
    "forced_align": {
        "p": {**SOFTMAX, "loss": "ctc", "target": "labels"},
        "output": {
            "class": "forced_align", "align_target": "data:labels", "topology": "rna", "input_type": "prob",
            "from": "p", "is_output_layer": True,
        },
    },
    "forced_align, automaton": {
        "p": {**SOFTMAX, "loss": "ctc", "target": "labels"},
        "output": {
            "class": "forced_align", "align_target": "data:labels", "topology": "automaton", "automaton": edges,
            "input_type": "prob", "from": "p", "is_output_layer": True,
        },
    },
    "ctc": {"output": {**SOFTMAX, "loss": "ctc", "target": "labels"}},
    "ctc, native": {"output": {**SOFTMAX, "loss": "ctc", "target": "labels", "loss_opts": {"use_native": True}}},
    "ctc_loss": {"z": LOGITS, "output": {**CTC, "blank_index": 2}},
    "ctc_loss, normalized": {"z": LOGITS, "output": {**CTC, "logits_normalized": True, "label_loop": False}},
    "ctc_loss, best": {"z": LOGITS, "output": {**CTC, "max_approx": True}},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    usual(NETWORKS, ["transducer, frames", "automaton", "forced_align", "ctc", "ctc, native", "ctc_loss, best"]),
)
def test_without_native_ops(name, monkeypatch):
    native, _ = run(NETWORKS[name])
    asked = []
    monkeypatch.setattr(align, "align_ops", lambda: asked.append(True))
    plain, _ = run(NETWORKS[name])
    assert asked, "the layer does not ask for native ops"
    np.testing.assert_allclose(native.total_loss, plain.total_loss, rtol=1e-5)
    np.testing.assert_allclose(native.layers["output"].value, plain.layers["output"].value, atol=1e-5)
    assert native.grads.keys() == plain.grads.keys() and native.grads
    for key, value in native.grads.items():
        np.testing.assert_allclose(value, plain.grads[key], atol=2e-5)


@pytest.mark.parametrize(
    "network, text",
    [
        (transducer(blank_index=6), "blank_index 6: there are only 6 classes"),
        (transducer(logits="encoder"), "logits must have batch, time, labels . 1 and classes"),
        (transducer(label_axis="B"), "label_axis 'B' is the batch or class axis"),
        (transducer(targets="encoder"), "targets must be sparse sequences"),
        ({**transducer(), "after": {"class": "copy", "from": "embedding"}}, "one axis that is one longer"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_transducer_loss(network, text):
    with pytest.raises(ConfigError, match=text):
        plan_from_config(config_of(network, **EXTERN))
