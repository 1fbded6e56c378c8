"""The target ``sherpa-onnx``: models that its Python package loads, with features that it computes of audio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf.config import ConfigError, DataError
from returnn_tf.engine.decoding.greedy import GreedyDecoder
from returnn_tf.export.error_rates import ErrorCheck
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.sherpa_onnx.features import ServerFeatures
from returnn_tf.export.sherpa_onnx.process import Recognizer
from returnn_tf.export.sherpa_onnx.tokens import token_symbols
from tests.export.sherpa_models import AUDIO, LABELS, LSTM, dataset, error_rates

NETWORK: dict[str, Any] = {
    "fw": {**LSTM, "direction": 1},
    "bw": {**LSTM, "direction": -1},
    "half": {
        "class": "pool",
        "mode": "max",
        "pool_size": (2,),
        "padding": "same",
        "use_time_mask": True,
        "from": ["fw", "bw"],
    },
    "output": {"class": "softmax", "loss": "ctc", "target": "classes", "from": "half"},
}
LOGS = {"class": "activation", "activation": "safe_log", "from": "output", "is_output_layer": True}


def _config(network: Any = None, audio: Any = None, labels: Any = tuple(LABELS)) -> returnn_tf.Config:
    vocab = {} if labels is None else {"vocab": {"class": "Vocabulary", "labels": list(labels), "unknown_label": None}}
    return returnn_tf.Config({
        "extern_data": {"data": {"dim": 20}, "classes": {"dim": 4, "sparse": True, **vocab}},
        "network": NETWORK if network is None else network,
        "dev": dataset(4),
        "train": {"class": "OggZipDataset", "path": "none.zip", "audio": {**AUDIO, **(audio or {})}},
        "behavior_version": 21,
    })  # fmt: skip


def _network(*args: Any, **options: Any) -> returnn_tf.Network:
    net = returnn_tf.Network.from_config(_config(*args, **options))
    rng = np.random.RandomState(1)
    net.set_param_values({name: 1.5 * rng.normal(0, value.shape[0] ** -0.5, value.shape)
                          for name, value in net.get_param_values().items()})  # fmt: skip
    return net


@pytest.mark.slow
@pytest.mark.parametrize("audio, outputs", [
    ({}, []),
    ({"norm_mean": -5.0, "norm_std_dev": np.linspace(1, 3, 20)}, ["logs"]),
])  # fmt: skip
def test_recognises_what_the_network_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, audio: dict[str, Any], outputs: list[str]
) -> None:
    """Probabilities or logs; features as they are, or normalised in the file; other audio than that of the check."""
    pytest.importorskip("tf2onnx")
    sherpa_onnx = pytest.importorskip("sherpa_onnx")
    net = _network({**NETWORK, "logs": LOGS}, audio=audio)
    folder = tmp_path / "out"
    lines = error_rates(monkeypatch)
    check = None if outputs else ErrorCheck("dev")  # the logs of a layer have no target
    returnn_tf.export(net, str(folder), "sherpa-onnx", outputs=outputs or ["output"], check=check)
    assert outputs or _same_rates(lines)
    assert (folder / "tokens.txt").read_text() == "\u2581a 0\nb 1\n\u2581c 2\nd 3\n<blk> 4\n"
    facts = json.loads((folder / "model.json").read_text())
    assert (facts["sample_rate"], facts["feature_dim"], facts["metadata"]["subsampling_factor"]) == (8000, 20, 2)
    samples = [np.random.RandomState(seed).normal(0, 0.1, 6000 + 1000 * seed).astype("float32") for seed in range(3)]
    recognizer = sherpa_onnx.OfflineRecognizer.from_wenet_ctc(
        str(folder / "model.onnx"), str(folder / "tokens.txt"), sample_rate=8000, feature_dim=20
    )
    streams = [recognizer.create_stream() for _ in samples]
    for stream, audio_of_stream in zip(streams, samples):
        stream.accept_waveform(8000, audio_of_stream)
    recognizer.decode_streams(streams)
    features = ServerFeatures.of(net.config, integers=True).audio
    for stream, audio_of_stream in zip(streams, samples):
        data = features.extract(audio_of_stream, 8000, rng=np.random.RandomState(1), seq_name="a")
        feed = {"data": data[None], "data_size0": np.array([len(data)])}
        values = InferenceModel(net, ["output"]).expected(feed)["output"][0]
        (best,) = GreedyDecoder(5, blank=4).decode(np.log(values))
        text = "".join(LABELS[label] for label in best.labels).replace("\u2581", " ")
        assert best.labels and stream.result.text == text.strip()
        np.testing.assert_allclose(stream.result.timestamps, [0.02 * first for first, _ in best.frames], atol=1e-4)


def _same_rates(lines: list[str]) -> bool:
    """Return whether the log tells the same error rate of network and export."""
    (line,) = lines
    return line.split("%")[0].split()[-1] == line.split("; ")[-1].split("%")[0] and "in the network" in line


STREAMS: dict[str, Any] = {
    "lstm": {**NETWORK, "half": {**NETWORK["half"], "from": "fw"}},
    "loop": {
        "place": {"class": "positional_encoding", "add_to_input": True, "from": "data"},
        "loop": {
            "class": "rec",
            "from": "place",
            "unit": {
                "output": {"class": "linear", "activation": "tanh", "n_out": 9, "from": ["data:source", "prev:output"]},
            },
        },
        "output": {**NETWORK["output"], "from": "loop"},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind, ratio", [("lstm", 2), ("loop", 1)])
def test_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, ratio: int) -> None:
    """In blocks, the package finds what the network does in whole sequences."""
    pytest.importorskip("tf2onnx")
    sherpa_onnx = pytest.importorskip("sherpa_onnx")
    net, folder, lines = _network(STREAMS[kind]), tmp_path / "out", error_rates(monkeypatch)
    returnn_tf.export(net, str(folder), "sherpa-onnx", streaming=6, check=ErrorCheck("dev"))
    assert _same_rates(lines)
    assert json.loads((folder / "model.json").read_text())["block"] == 6
    recognizer = sherpa_onnx.OnlineRecognizer.from_wenet_ctc(
        str(folder / "tokens.txt"), str(folder / "model.onnx"), chunk_size=6, sample_rate=8000, feature_dim=20
    )
    features = ServerFeatures.of(net.config, integers=True).audio
    for seed in range(3):
        audio = np.random.RandomState(seed).normal(0, 0.1, 6000 + 1000 * seed).astype("float32")
        stream = recognizer.create_stream()
        for start in range(0, len(audio), 700):  # as it arrives
            stream.accept_waveform(8000, audio[start : start + 700])
            while recognizer.is_ready(stream):
                recognizer.decode_stream(stream)
        stream.input_finished()
        while recognizer.is_ready(stream):
            recognizer.decode_stream(stream)
        data = features.extract(audio, 8000, rng=np.random.RandomState(1), seq_name="a")
        data = data[: (len(data) - 1) // (6 * ratio) * 6 * ratio]
        feed = {"data": data[None], "data_size0": np.array([len(data)])}
        values = InferenceModel(net, ["output"]).expected(feed)["output"][0]
        (best,) = GreedyDecoder(5, blank=4).decode(np.log(values))
        assert best.labels
        assert recognizer.tokens(stream) == [LABELS[label].replace("\u2581", " ") for label in best.labels]


@pytest.mark.slow
def test_another_symbol_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check compares the symbols that the program finds; nothing is written."""
    pytest.importorskip("tf2onnx")
    monkeypatch.setattr(Recognizer, "recognise", lambda _self, _folder, audio: [["b"] for _ in audio])
    with pytest.raises(DataError, match="does not recognise what the network does"):
        returnn_tf.export(_network(), str(tmp_path / "out"), "sherpa-onnx")
    assert not list(tmp_path.iterdir())


def test_a_model_that_the_program_refuses(tmp_path: Path) -> None:
    """The library ends its process, or raises; the last line of its log is in the error."""
    pytest.importorskip("sherpa_onnx")
    (tmp_path / "model.onnx").write_bytes(b"nothing")
    (tmp_path / "tokens.txt").write_text("a 0\n<blk> 1\n")
    files = {"model": "model.onnx", "tokens": "tokens.txt"}
    recognizer = Recognizer("OfflineRecognizer", "from_wenet_ctc", files, {"sample_rate": 16000, "feature_dim": 80})
    with pytest.raises(DataError, match="sherpa-onnx does not take the model: .+"):
        recognizer.recognise(str(tmp_path), [np.zeros(1600, "float32")])


@pytest.mark.parametrize("names, expected", [
    (["ab", "c"], ["\u2581ab", "\u2581c", "<blk>"]),
    (["a", "b"], ["a", "b", "<blk>"]),
    (["a", " ", "b"], ["a", "\u2581", "b", "<blk>"]),
    (["a", "[space]", "<unk>"], ["a", "\u2581", "<unk>", "<blk>"]),
    (["\u2581a", "b", "\u2581"], ["\u2581a", "b", "\u2581", "<blk>"]),
    (["th@@", "e", "cat"], ["\u2581th@@", "\u2581e", "\u2581cat", "<blk>"]),
    (["un", "##known"], ["\u2581un", "known", "<blk>"]),
    (["\u0120the", "\u00c3\u00a9"], ["\u2581the", "\u00e9", "<blk>"]),
])  # fmt: skip
def test_symbols(names: list[str], expected: list[str]) -> None:
    """A symbol begins a word, or goes on with the one before."""
    assert token_symbols(names, len(names) + 1, len(names)) == expected


def test_symbols_of_labels_without_a_name_and_of_a_blank_with_one() -> None:
    assert token_symbols(["<b>", "\u2581x"], 4, 0) == ["<blk>", "\u2581x", "<label-2>", "<label-3>"]


@pytest.mark.parametrize("names, text", [
    ([], "the names of the labels are not known"),
    (["\u0120a", "\u00c3"], "the label 1, '\u00c3', is a part of a character"),
    (["\u2581a", ""], "the label 1, '', is empty"),
    (["a b", "c"], "the label 0, 'a b', is empty or has white space"),
    (["\u2581a", "<blk>"], "the label 1 is called '<blk>', but the blank of CTC is label 2"),
])  # fmt: skip
def test_labels_that_are_no_symbols(names: list[str], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        token_symbols(names, len(names) + 1, len(names))
    assert text in str(error.value)


@pytest.mark.parametrize("audio, texts", [
    ({"features": "mfcc"}, ["'features': 'kaldi_fbank' (not 'mfcc')"]),
    ({"feature_options": {"fmax": 0.0}}, ["no 'feature_options' (not {'fmax': 0.0})"]),
    ({"peak_normalization": True, "join_frames": 3}, ["'peak_normalization': False (not True)", "'join_frames': None"]),
    ({"window_len": 0.032}, ["'window_len': 0.025 (not 0.032)"]),
    ({"sample_rate": None, "norm_mean": "per_seq"}, ["'sample_rate': that of", "'norm_mean': a number or a file"]),
    ({"pre_process": lambda audio, **_: audio}, ["'pre_process': None"]),
    ({"random_permute": True, "join_frames": 1, "with_delta": 0, "preemphasis": 0.0}, []),
])  # fmt: skip
def test_features_that_the_server_does_not_compute(audio: dict[str, Any], texts: list[str]) -> None:
    """One error for all options; what changes audio at random is for training."""
    if not texts:
        assert ServerFeatures.of(_config(audio=audio), integers=True).audio.dim == 20
        return
    with pytest.raises(ConfigError) as error:
        ServerFeatures.of(_config(audio=audio), integers=True)
    assert all(text in str(error.value) for text in texts)


FRAMEWISE = {"output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}}
PLAIN = {"output": {**NETWORK["output"], "from": "data"}}
GROWING = {"output": {**NETWORK["output"], "from": "att"},
           "att": {"class": "self_attention", "num_heads": 1, "total_key_dim": 4, "n_out": 4, "from": "data",
                   "attention_left_only": True}}  # fmt: skip
TWO_INPUTS = {**NETWORK, "output": {**NETWORK["output"], "from": ["half", "more"]},
              "more": {"class": "reduce", "mode": "mean", "axis": "T", "from": "emb"},
              "emb": {"class": "linear", "activation": None, "n_out": 3, "from": "data:classes"}}  # fmt: skip


@pytest.mark.parametrize("network, options, text", [
    (FRAMEWISE, {}, "none of the layers 'output' has posteriors"),
    (NETWORK, {"outputs": ["half"]}, "none of the layers 'half' has posteriors"),
    ({**NETWORK, "logs": LOGS}, {"outputs": ["output", "logs"]}, "the layers 'output', 'logs' all have posteriors"),
    (TWO_INPUTS, {}, "as its only input, but the layer 'output' needs 'data', 'classes'"),
    (NETWORK, {"opset": 9}, "opset"),
    (NETWORK, {"streaming": 0}, "streaming"),
    (NETWORK, {"streaming": 4}, "Layer 'bw' (class 'rec') runs backwards"),
    (PLAIN, {"streaming": 4}, "none of the layers is recurrent"),
    (GROWING, {"streaming": 4}, "the state of layer 'att' has"),
])  # fmt: skip
def test_networks_that_do_not_fit(tmp_path: Path, network: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        returnn_tf.export(_network(network), str(tmp_path / "out"), "sherpa-onnx", **options)
    assert text in str(error.value) and not list(tmp_path.iterdir())


def test_unnamed_labels(tmp_path: Path) -> None:
    pytest.importorskip("tf2onnx")
    with pytest.raises(ConfigError, match="names of the labels are not known. Set 'vocab'"):
        returnn_tf.export(_network(labels=None), str(tmp_path / "out"), "sherpa-onnx")
