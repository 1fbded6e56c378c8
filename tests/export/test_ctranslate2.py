"""The target ``ctranslate2``: Transformers found by their structure, whose scores the package computes, too."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf import blocks
from returnn_tf.config import ConfigError, DataError
from returnn_tf.export.error_rates import ErrorCheck
from returnn_tf.export.inference import InferenceModel
from returnn_tf.logging.log import log

DIM, HEADS = 8, 2
SOURCE = ["</s>", "<unk>", "a", "b", "c", "d"]
TARGET = ["<s>", "x", "y", "</s>", "z"]
#: Of what is found while the specification of the package is filled.
WITH_PACKAGE = pytest.mark.skipif(find_spec("ctranslate2") is None, reason="needs the extra 'ctranslate2'")


class Builder:
    """Writes the dict of a small Transformer.

    :param pre_norm: normalise before each branch, else behind each addition
    :param activation: of the feed-forward sublayers; "(gelu)": by a layer of its own
    :param last_norm: with ``pre_norm``: normalise the output of each stack
    :param changes: path of a layer -> options to replace
    :param distances: options of the encoding of distances in self-attention, in place of positions
    """

    def __init__(
        self, *, pre_norm: bool = True, activation: str = "relu", last_norm: bool = True, bias: bool = False,
        layers: tuple[int, int] = (1, 2), changes: Any = None, distances: Any = None,
    ) -> None:  # fmt: skip
        self._distances = distances
        self._pre_norm, self._activation, self._bias = pre_norm, activation, bias
        net: dict[str, Any] = {}
        unit: dict[str, Any] = {"end": {"class": "compare", "from": "output", "value": 3}}
        last = self._embedding(net, "source", "data:data")
        for i in range(layers[0]):
            last = self._self_attention(net, "enc%d_att" % i, last, False)
            last = self._feed_forward(net, "enc%d_ff" % i, last)
        net["encoder"] = {"class": "layer_norm" if pre_norm and last_norm else "copy", "from": last}
        last = self._embedding(unit, "target", "prev:output")
        for i in range(layers[1]):
            last = self._self_attention(unit, "dec%d_att" % i, last, True)
            last = self._cross_attention(net, unit, "dec%d_cross" % i, last)
            last = self._feed_forward(unit, "dec%d_ff" % i, last)
        unit["decoder"] = {"class": "layer_norm" if pre_norm and last_norm else "copy", "from": last}
        unit["prob"] = {"class": "softmax", "from": "decoder", "target": "classes", "loss": "ce", "dropout": 0.1}
        unit["output"] = {"class": "choice", "target": "classes", "beam_size": 4, "from": "prob", "initial_output": 0}
        net["output"] = {"class": "rec", "from": [], "target": "classes", "max_seq_len": 12, "unit": unit}
        net["decision"] = {"class": "decide", "from": "output", "is_output_layer": True}
        for path, options in (changes or {}).items():
            place, name = (unit, path[len("output/") :]) if path.startswith("output/") else (net, path)
            place[name] = {**place.get(name, {}), **options}
        self.net = net

    def _linear(self, source: str, size: int = DIM, **options: Any) -> dict[str, Any]:
        return {
            "class": "linear",
            "activation": None,
            "with_bias": self._bias,
            "n_out": size,
            "from": source,
            **options,
        }

    def _embedding(self, net: dict[str, Any], name: str, source: str) -> str:
        net[name + "_words"] = self._linear(source)
        net[name + "_scaled"] = {"class": "eval", "eval": "source(0) * 2.5", "from": name + "_words"}
        if self._distances is not None:
            net[name] = {"class": "copy", "from": name + "_scaled"}
            return name
        net[name + "_sum"] = {"class": "positional_encoding", "add_to_input": True, "from": name + "_scaled"}
        net[name] = {"class": "dropout", "dropout": 0.1, "from": name + "_sum"}
        return name

    def _input(self, net: dict[str, Any], name: str, source: str) -> str:
        if not self._pre_norm:
            return source
        net[name + "_norm"] = {"class": "layer_norm", "from": source}
        return name + "_norm"

    def _residual(self, net: dict[str, Any], name: str, source: str) -> str:
        net[name + "_out"] = self._linear(name + "_body")
        net[name + "_drop"] = {"class": "dropout", "dropout": 0.1, "from": name + "_out"}
        net[name] = {"class": "combine", "kind": "add", "from": [name + "_drop", source]}
        if self._pre_norm:
            return name
        net[name + "_norm"] = {"class": "layer_norm", "from": name}
        return name + "_norm"

    def _self_attention(self, net: dict[str, Any], name: str, source: str, left_only: bool) -> str:
        net[name + "_body"] = {
            "class": "self_attention", "num_heads": HEADS, "total_key_dim": DIM, "n_out": DIM,
            "attention_left_only": left_only, "from": self._input(net, name, source),
        }  # fmt: skip
        if self._distances is not None:
            net[name + "_shift"] = {
                "class": "relative_positional_encoding", "n_out": DIM // HEADS, "from": source, **self._distances,
            }  # fmt: skip
            net[name + "_body"]["key_shift"] = name + "_shift"
        return self._residual(net, name, source)

    def _feed_forward(self, net: dict[str, Any], name: str, source: str) -> str:
        inside = self._activation.startswith("(")
        wide = self._linear(self._input(net, name, source), 3 * DIM, activation=None if inside else self._activation)
        net[name + ("_wide" if inside else "_body")] = wide
        if inside:
            net[name + "_body"] = {"class": "activation", "activation": self._activation[1:-1], "from": name + "_wide"}
        return self._residual(net, name, source)

    def _cross_attention(self, net: dict[str, Any], unit: dict[str, Any], name: str, source: str) -> str:
        split = {"class": "split_dims", "axis": "F", "dims": (HEADS, DIM // HEADS)}
        for what in ("key", "value"):
            net["%s_%s0" % (name, what)] = self._linear("encoder")
            net["%s_%s" % (name, what)] = {**split, "from": "%s_%s0" % (name, what)}
        unit[name + "_query0"] = self._linear(self._input(unit, name, source))
        unit[name + "_query"] = {**split, "from": name + "_query0"}
        unit[name + "_energy"] = {
            "class": "dot", "red1": "F", "red2": "F", "var1": "T", "var2": "T?",
            "from": ["base:%s_key" % name, name + "_query"],
        }  # fmt: skip
        unit[name + "_weights"] = {"class": "softmax_over_spatial", "energy_factor": 0.5, "from": name + "_energy"}
        unit[name + "_heads"] = {
            "class": "generic_attention", "weights": name + "_weights", "base": "base:%s_value" % name,
        }  # fmt: skip
        axes = ["dim:%d" % HEADS, "dim:%d" % (DIM // HEADS)]
        unit[name + "_body"] = {"class": "merge_dims", "axes": axes, "from": name + "_heads"}
        return self._residual(unit, name, source)

    def language_model(self, *, in_loop: bool = False) -> dict[str, Any]:
        """Return a decoder without encoder, which is given the words before."""
        net: dict[str, Any] = {}
        last = self._embedding(net, "words", "data:source" if in_loop else "data:data")
        for i in range(2):
            last = self._self_attention(net, "att%d" % i, last, not in_loop)
            last = self._feed_forward(net, "ff%d" % i, last)
        net["decoder"] = {"class": "layer_norm" if self._pre_norm else "copy", "from": last}
        prob = {"class": "softmax", "from": "decoder", "target": "classes", "loss": "ce"}
        if in_loop:
            return {"output": {"class": "rec", "from": "data", "target": "classes", "unit": {**net, "output": prob}}}
        return {**net, "output": prob}


def _of_blocks() -> dict[str, Any]:
    """Return a Transformer of `returnn_tf.blocks`."""
    sizes: dict[str, Any] = {"layers": 1, "dim": DIM, "heads": HEADS}
    labels: dict[str, Any] = {"num_labels": len(TARGET), "start": 0, "end": 3, "append_end": False}
    net = blocks.transformer_encoder("encoder", **sizes)
    net.update(blocks.transformer_decoder("output", encoder="encoder", beam_size=4, max_len=(0, 12), **labels, **sizes))
    return {**net, "decision": {"class": "decide", "from": "output", "is_output_layer": True}}


def _network(vocab: bool = True, network: Any = None, **options: Any) -> returnn_tf.Network:
    return _with_values(network or Builder(**options).net, SOURCE, search=True, vocab=vocab)


def _with_values(
    network: dict[str, Any], source: list[str], *, search: bool = False, vocab: bool = True
) -> returnn_tf.Network:
    def data(labels: list[str]) -> dict[str, Any]:
        given = {"vocab": {"class": "Vocabulary", "labels": labels, "unknown_label": None}} if vocab else {}
        return {"dim": len(labels), "sparse": True, **given}

    rng = np.random.RandomState(5)
    dev = [{"data": rng.randint(0, len(source), 6), "classes": rng.randint(0, 5, 6)} for _ in range(3)]
    config = returnn_tf.Config({
        "extern_data": {"data": data(source), "classes": data(TARGET)},
        "network": network, "target": "classes", "behavior_version": 21, "dev": {"class": "StaticDataset", "data": dev},
    })  # fmt: skip
    net = returnn_tf.Network.from_config(config, search=search)
    rng = np.random.RandomState(3)
    net.set_param_values({k: v + rng.normal(0, 0.3, v.shape) for k, v in net.get_param_values().items()})
    return net


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    {},
    {"pre_norm": False, "activation": "swish", "bias": True},
    {"activation": "(gelu)", "last_norm": False, "layers": (2, 1)},
    {"changes": {"source_scaled": {"eval": "0.5 * source(0)"}, "output/dec1_cross_weights": {"energy_factor": 1.25},
                 "output/target_words": {"use_transposed_weights": True}, "output/prob": {"with_bias": False}}},
    {"network": _of_blocks()},
    {"distances": {"clipping": 2}},
], ids=["pre-norm", "post-norm", "no last norm", "options", "blocks", "distances"])  # fmt: skip
def test_scores_are_those_of_the_network(tmp_path: Path, options: dict[str, Any]) -> None:
    """The check of `export` compares the log probabilities of words of given translations."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    net = _network(**options)
    returnn_tf.export(net, str(tmp_path / "out"), "ctranslate2", positions=50)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["decoder_start_token"], config["eos_token"], config["layer_norm_epsilon"]) == ("<s>", "</s>", 1e-6)
    facts = json.loads((tmp_path / "out" / "model.json").read_text())
    search = {name: facts[name] for name in ("beam_size", "length_penalty", "min_decoding_length", "patience")}
    assert search == {"beam_size": 4, "length_penalty": 1.0, "min_decoding_length": 0, "patience": 4.0}
    translator = ctranslate2.Translator(str(tmp_path / "out"))
    result = translator.translate_batch([["a", "d", "</s>"]], max_decoding_length=12, **search)[0]
    feed = {"data": np.array([[2, 5, 0]], "int32"), "data_size0": np.array([3], "int32")}
    own = InferenceModel(net, ["decision"]).expected(feed)
    assert [TARGET[label] for label in own["decision"][0]] == result.hypotheses[0]


def test_another_parameter_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores of words differ, so that nothing is written."""
    pytest.importorskip("ctranslate2")
    net, other = _network(), _network(changes={"output/prob": {"bias_init": 1.0}})
    other.set_param_values({k: v * (1.5 if k.endswith("QKV") else 1.0) for k, v in net.get_param_values().items()})
    module = "returnn_tf.export.ctranslate2.exporter.CTranslate2Exporter._scores"
    from returnn_tf.export.ctranslate2.exporter import CTranslate2Exporter

    scores = CTranslate2Exporter._scores
    monkeypatch.setattr(module, lambda self, _net, *seqs: scores(self, other, *seqs))
    with pytest.raises(DataError, match="log probabilities of the words of translation 0 are"):
        returnn_tf.export(net, str(tmp_path / "out"), "ctranslate2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("layer, options, text", [
    ("enc0_att_body", {"key_shift": "shift"}, "has a key_shift, beside positions that the layer 'source_sum' adds"),
    pytest.param(
        "enc0_att_body", {"num_heads": 4}, "has 2 heads, another number than the layer 'enc0_att_body'",
        marks=WITH_PACKAGE,
    ),
    ("enc0_att", {"kind": "mul"}, "is no plain addition of two layers"),
    ("enc0_att", {"from": ["enc0_att_drop", "source_scaled"]}, "is neither the other source of the addition"),
    pytest.param(
        "enc0_ff_body", {"activation": "selu"}, "has the activation 'selu'; all must have the same",
        marks=WITH_PACKAGE,
    ),
    ("enc0_ff_out", {"activation": "tanh"}, "has the activation 'tanh'"),
    pytest.param(
        "enc0_ff_norm", {"epsilon": 1e-3}, "another one than the layer",
        marks=WITH_PACKAGE,
    ),
    ("source_scaled", {"eval": "tf.nn.relu(source(0))"}, "does not multiply by a number"),
    ("source_sum", {"offset": 1}, "has other positions than 0, 1, 2"),
    ("source", {"class": "batch_norm", "masked_time": False}, "is no sublayer, and no positional_encoding"),
    ("output/dec0_cross_weights", {"window_start": 0, "window_size": 2}, "has the option window_start"),
    ("dec0_cross_key", {"dims": (4, 2)}, ""),
    ("output/dec1_cross_heads", {"weights": "dec1_cross_energy"}, "is no softmax_over_spatial"),
    ("output/output", {"prob_scale": 0.5}, "has the option prob_scale"),
    ("output/prob", {"class": "linear", "activation": "sigmoid"}, "is no softmax over labels"),
    ("output/end", {"class": "compare", "value": -1}, "has no label of its own for the end"),
    ("output/target_words", {"from": "data:classes"}, ""),
])  # fmt: skip
def test_networks_that_are_no_transformer_of_this_kind(
    tmp_path: Path, layer: str, options: dict[str, Any], text: str
) -> None:
    """The error names the layer that differs, and how."""
    shift = {"class": "relative_positional_encoding", "from": "source", "n_out": DIM // HEADS}
    changes = {layer: options, **({"shift": shift} if "key_shift" in options else {})}
    with pytest.raises(ConfigError) as error:
        returnn_tf.export(_network(changes=changes), str(tmp_path / "out"), "ctranslate2")
    assert text in str(error.value) and not list(tmp_path.iterdir())
    if text:
        assert str(error.value).startswith("export to ctranslate2: the layer ")


def test_more_errors(tmp_path: Path) -> None:
    """Labels without names, and a network without the layers that a search has."""
    for net, options, text in (
        (_network(vocab=False), {}, "the names of the labels of 'data' are not known. Set its 'vocab'"),
        (_network(), {"outputs": ["encoder"]}, "no output has the labels of a search"),
        (_network(), {"positions": 0}, "positions"),
    ):
        with pytest.raises(ConfigError) as error:
            returnn_tf.export(net, str(tmp_path / "out"), "ctranslate2", **options)
        assert text in str(error.value) and not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    "in_loop, options",
    [
        (False, {}),
        (True, {"pre_norm": False, "activation": "gelu"}),
        (False, {"distances": {"clipping": 3, "fixed": True}}),
    ],
)
def test_language_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_loop: bool, options: dict[str, Any]
) -> None:
    """The check compares posteriors; the package goes on with a text as the network does, and errs as often."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    net = _with_values(Builder(**options).language_model(in_loop=in_loop), TARGET)
    lines: list[str] = []
    monkeypatch.setattr(log, "write", lambda _level, text: lines.append(text) if " errors in " in text else None)
    returnn_tf.export(net, str(tmp_path / "out"), "ctranslate2", end="</s>", positions=50, check=ErrorCheck("dev"))
    (line,) = lines
    assert line.startswith("output, frame errors") and len(set(re.findall(r"([0-9.]+)%", line))) == 1
    found = ctranslate2.Generator(str(tmp_path / "out")).generate_batch(
        [["<s>", "y"]], max_length=10, include_prompt_in_result=False
    )
    model, text = InferenceModel(net, ["output"]), [0, 2]
    while len(text) < 12 and text[-1] != 3:
        feed = {"data": np.array([text], "int32"), "data_size0": np.array([len(text)], "int32")}
        text.append(int(model.expected(feed)["output"][0, -1].argmax()))
    assert found[0].sequences[0] == [TARGET[label] for label in text[2:] if label != 3]


@pytest.mark.parametrize("changes, source, options, text", [
    ({"att1_body": {"attention_left_only": False}}, TARGET, {}, "'att1_body' (class 'self_attention') looks at later"),
    ({"output": {"class": "linear", "activation": "sigmoid"}}, TARGET, {}, "is no softmax over labels"),
    ({"words": {"class": "copy"}, "words_sum": {"offset": 1}}, TARGET, {}, "has other positions than 0, 1, 2"),
    ({"words_words": {"from": "shifted"}, "shifted": {"class": "shift_axis", "axis": "T", "amount": 1, "from": "data"}},
     TARGET, {}, "the layer 'shifted' (class 'shift_axis') is no input of the network"),
    ({"words": {"class": "copy", "from": "words_scaled"}}, TARGET, {},
     "'att0_body' (class 'self_attention') has no key_shift, and there is no positional_encoding"),
    ({"att0_body": {"key_shift": "far"}, "far": {"class": "relative_positional_encoding", "from": "words", "n_out": 4,
      "query_offset": 2}}, TARGET, {}, "the layer 'far' (class 'relative_positional_encoding') is no relative_posit"),
    ({}, SOURCE, {}, "the layer 'output' (class 'softmax') gives other labels than those of the input 'data'"),
    ({}, TARGET, {"end": "</S>"}, "end: there is no label '</S>'. Did you mean '</s>'"),
    ({}, TARGET, {"outputs": ["output", "decoder"]}, "a language model has one output, not 'output', 'decoder'"),
])  # fmt: skip
def test_networks_that_are_no_language_model(
    tmp_path: Path, changes: dict[str, Any], source: list[str], options: dict[str, Any], text: str
) -> None:
    network = Builder().language_model()
    for name, given in changes.items():
        network[name] = {**network.get(name, {}), **given}
    with pytest.raises(ConfigError) as error:
        returnn_tf.export(
            _with_values(network, source), str(tmp_path / "out"), "ctranslate2", **{"end": "</s>", **options}
        )
    assert text in str(error.value) and not list(tmp_path.iterdir())
