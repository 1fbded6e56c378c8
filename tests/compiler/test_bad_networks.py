"""What a user gets wrong in a network is found in the plan, with the place and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError

LIN: dict[str, Any] = {"class": "linear", "activation": "tanh", "n_out": 3, "from": "data"}


def _plan(network: Any, **settings: Any) -> Any:
    extern_data = {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True}}
    return plan_from_config(
        Config({"behavior_version": 21, "extern_data": extern_data, "network": network, **settings})
    )


CASES = {
    "unknown class": (
        {"output": {**LIN, "class": "liner"}},
        r"Layer 'output': unknown layer class 'liner'\. Did you mean 'linear'\?",
    ),
    "no class": ({"output": {"from": "data"}}, r"Layer 'output': the option 'class' is missing"),
    "unknown option": (
        {"output": {**LIN, "nout": 4}},
        r"Layer 'output' \(class 'linear'\): unknown option 'nout'\. Did you mean 'n_out'\?",
    ),
    "option of wrong type": (
        {"output": {**LIN, "n_out": "3"}},
        r"option 'n_out' must be a whole number or None, got '3' \(a string\)",
    ),
    "unknown source": ({"h": LIN, "output": {**LIN, "from": "hh"}}, r"there is no layer 'hh'\. Did you mean 'h'\?"),
    "data key without prefix": (
        {"output": {**LIN, "from": "classes"}},
        r"there is no layer 'classes'\. Write 'data:classes'",
    ),
    "unknown data key": ({"output": {**LIN, "from": "data:clases"}}, r"no data key 'clases'.*Did you mean 'classes'\?"),
    "unknown activation": (
        {"output": {**LIN, "activation": "rellu"}},
        r"unknown activation 'rellu'\. Did you mean 'relu'\?",
    ),
    "function that needs arguments": (
        {"output": {"class": "switch", "condition": len, "true_from": "data", "false_from": "data"}},
        r"condition: .*can't be called with no arguments",
    ),
    "unknown initialiser": (
        {"output": {**LIN, "forward_weights_init": "glorot_unifrm"}},
        r"Unknown initialiser 'glorot_unifrm'\. Did you mean 'glorot_uniform'\?",
    ),
    "unknown loss": ({"output": {**LIN, "loss": "cee"}}, r"unknown loss 'cee'\. "),
    "unknown loss option": (
        {
            "output": {
                **LIN,
                "class": "softmax",
                "activation": "softmax",
                "loss": "ce",
                "loss_opts": {"lable_smoothing": 0.1},
            }
        },
        r"loss 'ce': unknown option 'lable_smoothing'\. Did you mean 'label_smoothing'\?",
    ),
    "option of another loss": (
        {"output": {**LIN, "activation": "softmax", "loss": "ce", "loss_opts": {"ctc_opts": {}}}},
        r"loss 'ce': unknown option 'ctc_opts'\. Known: .* 'ctc_opts' is an option of: .*ctc",
    ),
    "cycle": (
        {"a": {**LIN, "from": "b"}, "b": {**LIN, "from": "a"}, "output": {**LIN, "from": "a"}},
        r"in a cycle: a <- b <- a\. Only inside a 'rec' layer",
    ),
    "self loop": ({"output": {**LIN, "from": "output"}}, r"in a cycle: output <- output"),
    "dims do not fit": (
        {"a": LIN, "output": {"class": "combine", "kind": "add", "from": ["data", "a"]}},
        r"(?s)Layer 'output' \(class 'combine'\): The dims don't fit.*sources: data \[B, T\|time, F\|feature:data=4\] "
        r"float32; a \[B, T\|time, F\|a:feature=3\]",
    ),
    "sparse where dense is needed": (
        {"output": {"class": "copy", "from": ["data", "data:classes"]}},
        r"source 'data:classes' is sparse .* Embed it by a linear layer",
    ),
    "function of labels": (
        {"output": {"class": "activation", "activation": "tanh", "from": "data:classes"}},
        r"Layer 'output' \(class 'activation'\): the source is sparse \(label indices of labels:classes=3\), but dense "
        r"features are needed\. Embed it by a linear layer first",
    ),
    "dropout above 1": ({"output": {**LIN, "dropout": 2.0}}, r"option 'dropout' must be from 0 to below 1, got 2\.0"),
    "dropout of 1": ({"output": {**LIN, "dropout": 1.0}}, r"option 'dropout' must be from 0 to below 1, got 1\.0"),
    "n_out of 0": ({"output": {**LIN, "n_out": 0}}, r"option 'n_out' must be from 1 to 2147483647, got 0"),
    "huge parameter": (
        {"output": {**LIN, "n_out": 2 * 10**9}},
        r"Layer 'output' .*the parameter 'W' would have the shape \(4, 2000000000\), i\.e\. 8e\+09 numbers",
    ),
    "reuse_params by parts": (
        {"a": LIN, "output": {**LIN, "reuse_params": {"map": {"W": {"reuse_leyer": "a"}}}}},
        r"reuse_params: option 'map' has a wrong entry, 'W': unknown option 'reuse_leyer'\. Did you mean 'reuse_layer'",
    ),
    "no target": (
        {"output": {**LIN, "class": "softmax", "loss": "ce", "target": ""}},
        r"the loss 'ce' needs the option 'target': a data key or a layer",
    ),
    "loss on a layer with the option targets": (
        {
            "z": {**LIN, "activation": None, "n_out": 4},
            "output": {"class": "ctc_loss", "logits": "z", "targets": "data:classes", "loss": "ce"},
        },
        r"Layer 'output' \(class 'ctc_loss'\): the loss 'ce' compares feature vectors",
    ),
    "source of an output_loss": (
        {"output": {**LIN, "copy_output_loss_from_source_idx": 1}},
        r"copy_output_loss_from_source_idx is 1, but there are 1 sources",
    ),
    "batch_norm of bools": (
        {"output": {"class": "compare", "value": 0.5, "from": "data", "batch_norm": True}},
        r"batch_norm needs a float output, but it is .* bool",
    ),
    "long value": (
        {"output": {**LIN, "n_out": ["x" * 5000]}},
        r"must be a whole number or None, got \['x{1,300} \.\.\. x+'\]",
    ),
    "no device": (
        {"output": {**LIN, "param_device": "gpu0x"}},
        r"option 'param_device' must be 'CPU', 'GPU' or 'GPU:<number>', got 'gpu0x'",
    ),
    "dropout of labels": (
        {"output": {**LIN, "dropout": 0.1, "from": "data:classes"}},
        r"the source of the dropout is sparse .*Embed it by a linear layer first",
    ),
    "missing n_out": (
        {"output": {"class": "linear", "activation": None, "from": "data"}},
        r"the option 'n_out' is missing",
    ),
    "source is a number": (
        {"output": {**LIN, "from": 3}},
        r"'from' must be the name of a layer or a list of names, got 3",
    ),
    "source of a layer within a layer is a number": (
        {
            "s": {"class": "reduce", "mode": "sum", "axes": "F", "from": "data"},
            "m": {"class": "compare", "kind": "greater", "value": 0.0, "from": "s"},
            "output": {"class": "masked_computation", "mask": "m", "from": "data", "unit": {**LIN, "from": 3}},
        },
        r"'from' must be the name of a layer or a list of names, got 3",
    ),
    "deep value": ({"output": {"class": "constant", "value": eval("[" * 50 + "]" * 50)}}, r"is no array: .*dimension"),
    "infinite factor": ({"output": {"class": "resize", "axis": "T", "factor": 1e999, "from": "data"}}, r"and finite"),
    "source is None in a list": ({"output": {**LIN, "from": [None]}}, r"'from' must hold names of layers, got None"),
    "loss options are no dict": (
        {"output": {**LIN, "loss": "mse", "target": "data", "loss_opts": 3}},
        r"'loss_opts' must be a dict|loss_opts.* must be a dict",
    ),
    "missing from of a cell": ({"output": {"class": "rec", "unit": "lstm", "n_out": 2}}, r"option 'from' is missing"),
    "missing from": ({"output": {"class": "linear", "n_out": 2}}, r"the option 'from' is missing"),
    "empty layer name": ({"": LIN, "output": LIN}, r"a layer has the name ''"),
    "no output": ({"h": LIN}, r"network has no output"),
    "layer is no dict": ({"output": "linear"}, r"Layer 'output' must be a dict"),
    "network is no dict": ([LIN], r"network must be a dict"),
    "prev outside of a loop": ({"output": {**LIN, "from": "prev:output"}}, r"needs the previous step of a loop"),
    "base at the top": ({"output": {**LIN, "from": "base:x"}}, r"this network is not nested in a layer"),
    "inner error has the full path": (
        {"output": {"class": "subnetwork", "from": "data", "subnetwork": {"output": {**LIN, "from": "xx"}}}},
        r"Layer 'output/output' \(class 'linear'\): there is no layer 'xx'",
    ),
    "subnetwork without output": (
        {"output": {"class": "subnetwork", "from": "data", "subnetwork": {"out": {**LIN, "is_output_layer": True}}}},
        r"Layer 'output': the nested network has no layer 'output'\. Did you mean 'out'\?",
    ),
    "same parameter twice": (
        {"a": {**LIN, "name_scope": "x"}, "output": {**LIN, "name_scope": "x", "from": ["a", "data"]}},
        r"Layers 'a' and 'output' both have a parameter named 'x/W'",
    ),
    "wrong out_shape": ({"output": {**LIN, "out_shape": set()}}, r"which out_shape lacks"),
    "eval that does not parse": (
        {"output": {"class": "eval", "eval": "source(0) +* 2", "from": "data"}},
        r"the eval code does not parse",
    ),
    "loss options without loss": ({"output": {**LIN, "loss_opts": {"scale": 2.0}}}, r"loss_opts, but no loss"),
    "unknown target": (
        {"output": {"class": "softmax", "from": "data", "n_out": 3, "loss": "ce", "target": "clases"}},
        r"the target 'clases' is neither a layer nor a data key\. Did you mean 'classes'\?",
    ),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_error(name: str) -> None:
    network, message = CASES[name]
    with pytest.raises(ConfigError, match=message):
        _plan(network)


def test_extern_data_is_no_dict() -> None:
    with pytest.raises(ConfigError, match=r"extern_data must be a dict .*, not \[1\]"):
        plan_from_config(Config({"network": {"output": LIN}, "extern_data": [1]}))


def test_missing_from_is_data_in_behavior_version_0() -> None:
    plan = _plan({"output": {"class": "linear", "activation": None, "n_out": 2}}, behavior_version=0)
    assert [s.path for s in plan.outputs["output"].sources] == ["data"]
    plan = _plan({"output": {"class": "rec", "unit": "lstm", "n_out": 2}}, behavior_version=0)
    assert [node.path for node in plan.outputs["output"].sources] == ["data"]


@pytest.mark.slow
def test_deep_networks_need_no_deep_stack() -> None:
    network: dict[str, Any] = {"l0": LIN}
    for i in range(1, 3000):
        network["l%d" % i] = {**LIN, "from": "l%d" % (i - 1)}
    network["output"] = {**LIN, "from": "l2999"}
    assert len(_plan(network).nodes) == 3002


def test_networks_in_networks() -> None:
    layer = LIN
    for _ in range(40):
        layer = {"class": "subnetwork", "from": "data", "subnetwork": {"output": layer}}
    assert _plan({"output": layer}).outputs["output"].output.dim == 3
    layer = {"class": "subnetwork", "from": "data", "subnetwork": {"output": layer}}
    with pytest.raises(ConfigError, match="networks are nested more than 40 levels deep"):
        _plan({"output": layer})
