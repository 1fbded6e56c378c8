"""What a user can get wrong about a loss, found before any op exists, and what the message says."""

from __future__ import annotations

from typing import Any

import pytest

from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError

EXTERN = {
    "data": {"dim": 4},
    "classes": {"dim": 12, "sparse": True},
    "target": {"dim": 3},
    "one": {"shape": (), "dim": 12, "sparse": True, "time_dim_axis": None},
}


def _softmax(**options: Any) -> dict[str, Any]:
    return {"class": "softmax", "from": "data", "loss": "ce", "target": "classes", **options}


RASR: dict[str, Any] = {"class": "softmax", "n_out": 4, "from": "data", "loss": "sprint"}
RASR["loss_opts"] = {"sprint_opts": {}}

CASES = [
    (_softmax(n_out=10), "the softmax has 10 outputs but the target 'classes' has 12 labels"),
    (_softmax(n_out=10, target="target"), "the softmax has 10 outputs but the target 'target' has 3 features"),
    (_softmax(n_out=12, loss="ctc"), "12 outputs but the target 'classes' has 12 labels.*for the blank: 13"),
    (_softmax(loss="ctc", target="target"), "needs a sparse target .batch, time., but 'target' is"),
    (
        {"class": "reduce", "mode": "mean", "axis": "T", "from": "h", "loss": "ctc", "target": "classes"},
        "needs an output .batch, time, classes.",
    ),
    (_softmax(target="one"), "do not have the same axes.*only the output has time"),
    (
        {"class": "softmax", "from": "g", "loss": "ce", "target": "classes"},
        "do not have the same axes.*only the target has time:classes",
    ),
    (
        _softmax(target="target", loss_opts={"label_smoothing": 0.1}),
        "label_smoothing needs labels, but the target 'target'",
    ),
    (_softmax(loss_opts={"label_smoothing": 1.5}), "label_smoothing must be in .0, 1."),
    (_softmax(loss_opts={"label_smothing": 0.1}), "unknown option 'label_smothing'. Did you mean 'label_smoothing'"),
    (_softmax(loss_opts={"input_type": "logit"}), "'input_type' is 'logit'. Did you mean 'logits'"),
    (_softmax(loss_opts={"safe_log_opts": {"epsilon": 1}}), "safe_log_opts: unknown option 'epsilon'"),
    (_softmax(loss="crossentropy"), "unknown loss 'crossentropy'"),
    ({"class": "copy", "from": "data:classes", "loss": "ce", "target": "classes"}, "needs dense float output"),
    (RASR, "sprint_opts: the option 'sprintExecPath' is missing"),
    ({**RASR, "loss_opts": {}}, "option 'sprint_opts' is missing|option 'sprintExecPath' is missing"),
    ({**RASR, "loss_opts": {"sprint_opts": {"numInstance": 2}}}, "Did you mean 'numInstances'"),
    (
        {"class": "copy", "from": "g", "loss": "sprint", "loss_opts": {"sprint_opts": {"sprintExecPath": "x"}}},
        "needs an output .batch, time, classes., but it is",
    ),
    (
        {"class": "constant", "value": "text", "from": [], "loss": "as_is"},
        "'as_is' sums up the output, so it must be numbers",
    ),
    (_softmax(loss="edit_distance"), "compares sequences of labels .* Put the loss on the layer that decodes"),
    (_softmax(loss="bin_ce"), "'bin_ce' needs a dense target"),
    (_softmax(loss="generic_ce"), "for elementwise activations .* Use the loss 'ce'"),
    (_softmax(loss="ctc", loss_opts={"ctc_opts": {"ignore_longer": True}}), "ctc_opts: unknown option 'ignore_longer'"),
    (
        _softmax(loss="sampling_loss", use_transposed_weights=True, loss_opts={"sampler": "loguniform"}),
        "'sampler' is 'loguniform'. Did you mean 'log_uniform'",
    ),
    (_softmax(loss="via_layer"), "needs one of the loss_opts align_layer and error_signal_layer"),
    (
        _softmax(loss="via_layer", loss_opts={"align_layer": "h"}),
        "layer 'h' must have the axes of the output",
    ),
    (
        {"class": "fast_bw", "align_target": "sprint", "from": "h"},
        "sprint_opts: the option 'sprintExecPath' is missing",
    ),
    ({"class": "fast_bw", "align_target": "ctcc", "from": "h"}, "'align_target' is 'ctcc'. Did you mean 'ctc'"),
    (
        {"class": "fast_bw", "align_target": "ctc", "align_target_key": "classes", "from": "h"},
        "the source has 5 classes, but 'classes' has 12 labels",
    ),
    (
        {"class": "forced_align", "align_target": "data:target", "topology": "ctc", "input_type": "prob", "from": "h"},
        "must be sparse sequences",
    ),
    (
        {"class": "forced_align", "align_target": "data:classes", "topology": "hmm", "input_type": "prob", "from": "h"},
        "'topology' is 'hmm'",
    ),
    ({"class": "ctc_loss", "logits": "h", "targets": "data:target"}, "targets must be sparse sequences"),
    ({"class": "ctc_loss", "logits": "h", "targets": "data:classes", "blank_index": 9}, "blank_index 9"),
    (
        {"class": "loss", "loss_": "ce", "from": "h", "target_": "classes"},
        "has 5 outputs but the target 'classes' has 12",
    ),
    ({"class": "loss", "loss_": "via_layers", "from": "h"}, "unknown loss 'via_layers'. Did you mean 'via_layer'"),
    (
        {"class": "sparse_softmax_cross_entropy_with_logits", "logits": "h12", "targets": "data:classes"},
        "have the axis time:classes, which logits",
    ),
]


@pytest.mark.parametrize("layer, message", CASES, ids=[c[1][:40] for c in CASES])
def test_message(layer: dict[str, Any], message: str) -> None:
    network = {
        "h": {"class": "linear", "activation": "tanh", "n_out": 5, "from": "data"},
        "h12": {"class": "linear", "activation": "tanh", "n_out": 12, "from": "data"},
        "g": {"class": "reduce", "mode": "mean", "axis": "T", "from": "h"},
        "output": layer,
    }
    with pytest.raises(ConfigError, match="(?s)(output|loss_).*" + message):
        plan_from_config(Config({"behavior_version": 21, "extern_data": EXTERN, "network": network}))
