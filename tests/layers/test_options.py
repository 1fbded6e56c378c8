"""The options of all layers and losses: typed, refused where they are wrong, and never accepted and ignored."""

import ast
import functools
import logging
import os
import sys
from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf import ConfigError
from returnn_tf.config.options import declared_options
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.loss import Loss
from returnn_tf.graph.registry import LAYERS, LOSSES
from tests.layers.nets import LENS, feed, net_of, template

PACKAGE = os.path.dirname(returnn_tf.__file__)
CLASSES = [(name, cls) for registry in (LAYERS, LOSSES) for name, cls in registry.items()]


@functools.cache
def attributes_read() -> "dict[str, set]":
    """Return module -> names of all attributes that it reads, and of strings which may name one."""
    found = {}
    for folder, _, files in os.walk(PACKAGE):
        for file in files:
            if not file.endswith(".py"):
                continue
            path = os.path.join(folder, file)
            with open(path, encoding="utf8") as f:
                tree = ast.parse(f.read())
            found[path] = {
                n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)
            }
            found[path] |= {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return found


FRAMEWORK = tuple(os.path.join(PACKAGE, part) for part in ("graph", "compiler", "loops", "engine"))


def readers(cls: Any) -> "set[str]":
    """Return what is read in the modules of a class and its bases, in those beside them, and in the framework."""
    beside = {os.path.dirname(sys.modules[base.__module__].__file__ or "") for base in cls.__mro__[:-1]}
    return set().union(
        *(
            names
            for path, names in attributes_read().items()
            if os.path.dirname(path) in beside or path.startswith(FRAMEWORK)
        )
    )


@pytest.mark.parametrize("cls", [cls for _, cls in CLASSES], ids=[name for name, _ in CLASSES])
def test_nothing_is_ignored(cls: Any) -> None:
    """Whatever is declared is read by somebody near, or says that it has no effect."""
    read = readers(cls)
    ignored = [
        name
        for name, info in declared_options(cls).items()
        if not (info.attribute in read or name in read or info.refs or info.unsupported or info.inert)
    ]
    assert not ignored


@pytest.mark.parametrize("cls", [cls for _, cls in CLASSES], ids=[name for name, _ in CLASSES])
def test_all_are_typed(cls: Any) -> None:
    """`Any` would let every mistake through."""
    assert not [name for name, info in declared_options(cls).items() if info.type is Any]


LAYER = {"class": "linear", "activation": None, "n_out": 3, "from": "data"}
UNIT = {"class": "rec", "n_out": 3, "from": "data"}
WRONG = [
    ({**LAYER, "target": 1}, "option 'target' must be a string, a list of strings or None, got 1."),
    ({**LAYER, "reuse_params": 7}, "option 'reuse_params' must be a layer, a dict or None, got 7."),
    ({**LAYER, "activation": 3}, "option 'activation' must be a string, a function or None, got 3."),
    (
        {**LAYER, "bias_init": []},
        "'bias_init' must be a number, a string, an array, a dict or a function, got []",
    ),
    ({**LAYER, "out_type": {"dmi": 3}}, "out_type: unknown option 'dmi'. Did you mean 'dim'?"),
    (
        {**LAYER, "rec_previous_layer": "x"},
        "option 'rec_previous_layer' is not supported: write 'prev:<layer>' in 'from'",
    ),
    ({**LAYER, "shape": 3}, "unknown option 'shape'. Known: activation, with_bias, forward_weights_init,"),
    ({"class": "generic_attention", "weights": "data", "base": 3}, "option 'base' must be a layer, got 3."),
    (
        {"class": "split_dims", "axis": "F", "dims": 2, "from": "data"},
        "must be a list of Dims or whole numbers, got 2",
    ),
    (
        {"class": "transpose", "perm": 1, "from": "data"},
        "must be a list of axes or a dict {axis: an axis}, got 1.",
    ),
    (
        {"class": "constant", "shape": 10, "from": []},
        "must be a list of Dims or whole numbers or None, got 10.",
    ),
    (
        {"class": "fast_bw", "align_target": "sprint", "sprint_opts": {"a": 1}, "from": "data"},
        "sprint_opts: unknown option 'a'",
    ),
    ({"class": "range_in_axis", "keepdims": True, "from": "data"}, "not supported: the output has the one axis only"),
    ({**LAYER, "custom_param_importer": "subset"}, "not supported: '#copy_param_mode' in the network"),
    ({**UNIT, "unit": "standardlstm", "unit_opts": {"num_proj": 3}}, "not supported: put a linear layer behind"),
    ({**UNIT, "unit": "gru", "unit_opts": {"kernel_initializer": "zeros"}}, "not supported: give forward_weights_init"),
    ({**UNIT, "unit": "layernormvariantslstm", "unit_opts": {"with_concat": True}}, "not supported: they have W_ff"),
    ({**UNIT, "unit": "gru", "unit_opts": {"activation": "tahn"}}, "'gru': unknown activation 'tahn'. Did you mean"),
    (
        {"class": "reduce", "mode": "sum", "axis": {}, "from": "data"},
        "must be an axis, a list of axes or None, got {}",
    ),
    ({"class": "batch_norm", "momentum": 1.5, "from": "data"}, "option 'momentum' must be from 0 to 1, got 1.5."),
    ({"class": "batch_norm", "use_sample": -1, "from": "data"}, "option 'use_sample' must be from 0 to 1, got -1."),
    ({**LAYER, "batch_norm": {"epsilon": -1e-3}}, "option 'epsilon' must be at least 0, got -0.001."),
    ({"class": "layer_norm", "epsilon": -1, "from": "data"}, "option 'epsilon' must be at least 0, got -1."),
    ({"class": "norm", "axis": "F", "epsilon": -1, "from": "data"}, "option 'epsilon' must be at least 0, got -1."),
    ({"class": "range", "limit": float("inf"), "from": []}, "option 'limit' must be finite, got inf."),
    ({"class": "range", "limit": 3, "delta": float("nan"), "from": []}, "option 'delta' must be finite, got nan."),
]


@pytest.mark.parametrize("layer, message", WRONG, ids=[message[:30] for _, message in WRONG])
def test_wrong_value(layer: Any, message: str) -> None:
    """Each is an error that names the option and what it accepts."""
    with pytest.raises(ConfigError) as info:
        net_of({"output": layer})
    assert str(info.value).startswith("Layer 'output' (class %r): " % layer["class"]) and message in str(info.value)


INERT = [
    ({**LAYER, "only_on_eval": True}, "only_on_eval"),
    ({**LAYER, "collocate_with": "data"}, "collocate_with"),
    ({**LAYER, "encapsulate": True}, "encapsulate"),
    ({"class": "generic_attention", "weights": "data", "base": "data", "dropout": 0.1}, "dropout"),
    ({"class": "batch_norm", "masked_time": True, "fused": True, "from": "data"}, "fused"),
    ({"class": "rec", "unit": "lstm", "n_out": 2, "unroll": True, "from": "data"}, "unroll"),
    ({**LAYER, "initial_output": "zzz"}, "initial_output"),
    ({"class": "rec", "unit": {"output": {**LAYER, "from": "data:source"}}, "n_out": 77, "from": "data"}, "n_out"),
    ({"class": "slice_nd", "size": 2, "min_size": 3, "from": "data"}, "min_size"),
    ({"class": "combine", "kind": "add", "eval": "foo((", "from": ["data", "data"]}, "eval"),
    ({"class": "combine", "kind": "add", "eval_locals": {"a": 1}, "from": ["data", "data"]}, "eval_locals"),
]


@pytest.mark.parametrize("layer, name", INERT, ids=[name for _, name in INERT])
def test_without_effect(layer: Any, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """One line names the layer, the option and the reason."""
    layer_name = "test_without_effect_of_" + name
    with caplog.at_level(logging.WARNING, logger="returnn_tf"):
        net_of({layer_name: layer, "output": {"class": "copy", "from": layer_name}})
    (line,) = [record.getMessage() for record in caplog.records]
    start = "Layer %r (class %r): option %r has no effect: " % (layer_name, layer["class"], name)
    assert line.startswith(start) and len(line) > len(start)


def test_with_effect(caplog: pytest.LogCaptureFixture) -> None:
    """The same options are not reported where they count, or where they agree with the result."""
    unit = {
        "a": {**LAYER, "from": "prev:a", "initial_output": 1},
        "output": {"class": "combine", "kind": "add", "from": ["a", "data:source"]},
    }
    network = {
        "s": {"class": "slice_nd", "size": None, "min_size": 3, "from": "data", "is_output_layer": True},
        "output": {"class": "rec", "unit": unit, "n_out": 3, "from": "data"},
    }
    with caplog.at_level(logging.WARNING, logger="returnn_tf"):
        template(network)
    assert not caplog.records


OFF = {
    "attention_dropout": {"class": "self_attention", "num_heads": 1, "total_key_dim": 3, "n_out": 3, "from": "data"},
    "keep_dims": {"class": "reduce", "mode": "sum", "axis": "T", "from": "data"},
    "use_time_mask": {
        "class": "conv",
        "filter_size": 3,
        "padding": "same",
        "n_out": 2,
        "with_bias": True,
        "from": "data",
    },
    "use_sample": {"class": "batch_norm", "masked_time": True, "from": "data"},
    "spatial_smoothing": LAYER,
    "only_on_search": LAYER,
}


@pytest.mark.parametrize("name", sorted(OFF))
def test_none_is_off(name: str) -> None:
    """None means that a switch or a rate is off, where that is the default."""
    nets = [net_of({"output": {**OFF[name], **more}}, train=True) for more in ({}, {name: None})]
    values = [net.run(feed()).layers["output"].value for net in nets]
    np.testing.assert_array_equal(values[0], values[1])


@pytest.mark.parametrize("form", ["loss of a layer", "layer loss"])
def test_none_is_off_in_a_loss(form: str) -> None:
    opts = {"label_smoothing": None, "focal_loss_factor": None, "use_normalized_loss": None}
    layers = [
        {"class": "softmax", "n_out": 5, "from": "data", "target": "labels", "loss": "ce", "loss_opts": given}
        if form == "loss of a layer"
        else {"class": "loss", "loss_": "ce", "target_": "labels", "loss_opts_": given, "from": "p", "loss": "as_is"}
        for given in ({}, opts)
    ]
    p = {"class": "softmax", "n_out": 5, "from": "data"}
    losses = [net_of({"p": p, "output": layer}, train=True).run(feed()).total_loss for layer in layers]
    assert losses[0] == losses[1] > 0


@pytest.mark.parametrize("layer", [
    {"class": "self_attention", "num_heads": 1, "total_key_dim": 3, "n_out": 3, "from": "data"},
    {"class": "rec", "unit": "lstm", "n_out": 3, "from": "data"},
], ids=["self_attention", "rec"])  # fmt: skip
def test_state_of_a_placeholder(layer: Any) -> None:
    """Only another program can feed it: here it is refused with the reason and what to write."""
    net = net_of({"output": {**layer, "initial_state": "placeholder"}})
    with pytest.raises(ConfigError, match=r"(?s)Layer 'output'.* graphs that another program runs.* Here write"):
        net.run(feed())


@pytest.mark.parametrize("limit, kept", [(36.0, 0), (37.0, 1), (3600.0, 1), (4000.0, 2), (1e6, 3), (0, 3), (0.0, 3)])
def test_grad_filter(limit: float, kept: int) -> None:
    """The gradient of a sequence is zero if a square in it reaches the limit; those of the others stay; 0 is off."""
    scale = np.array([1.0, 10.0, 100.0])
    network = {
        "x": {**LAYER, "grad_filter": limit, "with_bias": False, "forward_weights_init": 1.0},
        "output": {"class": "eval", "eval": "source(0) ** 2", "from": "x", "loss": "as_is"},
    }
    arrays = feed(data=np.ones([3, 4, 3]) * scale[:, None, None])
    result = net_of(network, train=True).run(arrays, with_grad=True)
    # per sequence: d/dy sum y^2 = 2 y = 6 scale in 3 len entries, with the squares 36, 3600, 360000
    expected = (6.0 * scale**2 * LENS)[:kept].sum()
    np.testing.assert_allclose(result.grads["x/W"], np.full([3, 3], expected), rtol=1e-5)


def test_options_of_every_layer_and_loss_are_described() -> None:
    """Each has a help text, as a fragment without a full stop."""
    for cls in (Layer, Loss, *(cls for _, cls in CLASSES)):
        for info in declared_options(cls).values():
            assert info.help and not info.help.endswith("."), (cls, info.name)


NUMPY_NUMBERS: "list[dict[str, Any]]" = [
    {"class": "window", "window_size": 3, "stride": 2},
    {"class": "slice", "axis": "T", "slice_start": 1, "slice_end": -1, "slice_step": 2},
    {"class": "pad", "axes": "T", "padding": (1, 2)},
    {"class": "postfix_in_time", "postfix": 0.5, "repeat": 2},
    {"class": "reinterpret_data", "from": "data:labels", "set_sparse_dim": 7},
    {"class": "split_dims", "axis": "F", "dims": (3, -1)},
    {
        "class": "rec",
        "unit": {
            "a": {"class": "copy", "from": "data:source", "initial_output": 1},
            "output": {"class": "copy", "from": "prev:a"},
        },
    },
]


def with_numpy(value: Any) -> Any:
    """Return the value with scalars of numpy in place of all numbers."""
    if isinstance(value, dict):
        return {key: with_numpy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(with_numpy, value))
    return np.array(value)[()] if isinstance(value, (int, float)) else value


@pytest.mark.parametrize("layer", NUMPY_NUMBERS, ids=[layer["class"] for layer in NUMPY_NUMBERS])
def test_numbers_of_numpy(layer: Any) -> None:
    """Scalars of numpy, e.g. computed by a function of the config, give the same layer as numbers of Python."""
    forms = [{"from": "data", **form} for form in (layer, with_numpy(layer))]
    assert len({str(template({"output": form}, behavior_version=12)) for form in forms}) == 1
