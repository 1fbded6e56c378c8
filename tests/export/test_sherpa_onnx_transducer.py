"""Transducers for sherpa-onnx: three models, whose search its package runs on audio; and what has no place in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf.cli.export import run
from returnn_tf.config import ConfigError
from returnn_tf.export.error_rates import ErrorCheck
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.sherpa_onnx.features import ServerFeatures
from returnn_tf.export.sherpa_onnx.transducer import ServedTransducer
from tests.export.sherpa_models import AUDIO, LABELS, LSTM, dataset, error_rates

Layers = dict[str, Any]
#: With one that the program would leave out; and as it has to show them.
LABELS_AND_BLANK = [*LABELS[:3], "<unk>", "<b>"]
SYMBOLS = [label.replace("\u2581", " ").replace("<unk>", "<UNK>") for label in LABELS_AND_BLANK]
EMBEDDING: Layers = {"class": "linear", "activation": None, "n_out": 5, "from": "data"}
#: What is computed of labels, by how many of the last ones count.
PREDICTORS: dict[str, Layers] = {
    "1": {"output": {**EMBEDDING, "activation": "tanh"}},
    "2": {
        "emb": EMBEDDING,
        "output": {"class": "linear", "activation": "tanh", "n_out": 6, "from": ["emb", "prev:emb"]},
    },
    "all": {"emb": EMBEDDING, "output": {**LSTM, "n_out": 6, "from": "emb"}},
}  # fmt: skip
DECISION: Layers = {"class": "decide", "target": "classes", "is_output_layer": True, "only_on_search": True}


def _layers(predictor: str = "1", blank: int = 4, directions: tuple[int, ...] = (1, -1), **changed: Any) -> Layers:
    """Return a transducer.

    :param changed: layers of the loop
    """
    masked = {"class": "subnetwork", "from": "data", "subnetwork": PREDICTORS[predictor]}
    encoder = {"lstm%d" % (direction % 3): {**LSTM, "direction": direction} for direction in directions}
    unit = {
        "is_label": {"class": "compare", "kind": "not_equal", "value": blank, "from": "output", "initial_output": True},
        "masked": {"class": "masked_computation", "mask": "prev:is_label", "from": "prev:output", "unit": masked},
        "history": {"class": "unmask", "mask": "prev:is_label", "from": "masked"},
        "joint": {"class": "linear", "activation": "tanh", "n_out": 11, "from": ["data:source", "history"]},
        "prob": {"class": "softmax", "target": "frames", "from": "joint"},
        "output": {
            "class": "choice", "target": "frames", "beam_size": 4, "from": "prob", "initial_output": blank,
            "length_normalization": False, "recombine": "sum", "recombine_blank": blank,
        },
        **changed,
    }  # fmt: skip
    return {
        **encoder,
        "half": {
            "class": "pool", "mode": "max", "pool_size": (2,), "padding": "same", "use_time_mask": True,
            "from": list(encoder),
        },
        "output": {"class": "rec", "from": "half", "target": "frames", "include_eos": True, "unit": unit},
        "is_label": {"class": "compare", "kind": "not_equal", "value": blank, "from": "output"},
        "picked": {"class": "masked_computation", "mask": "is_label", "from": "output", "unit": {"class": "copy"}},
        "decision": {**DECISION, "from": "picked"},
    }  # fmt: skip


def _network(layers: Layers) -> returnn_tf.Network:
    vocab = {"class": "Vocabulary", "labels": LABELS_AND_BLANK, "unknown_label": None}
    config = returnn_tf.Config({
        "extern_data": {
            "data": {"dim": 20}, "classes": {"dim": 5, "sparse": True, "vocab": vocab},
            "frames": {"dim": 5, "sparse": True, "vocab": vocab, "available_for_inference": False},
        },
        "network": layers, "behavior_version": 21, "dev": dataset(5),
        "train": {
            "class": "OggZipDataset", "path": "none.zip",
            "audio": {**AUDIO, "norm_mean": -1.2, "norm_std_dev": 0.7}, "targets": None,
        },
    })  # fmt: skip
    net = returnn_tf.Network.from_config(config, search=True)
    rng = np.random.RandomState(1)
    net.set_param_values({name: 4.0 * rng.normal(0, value.shape[0] ** -0.5, value.shape)
                          for name, value in net.get_param_values().items()})  # fmt: skip
    return net


def _audio(seed: int) -> Any:
    rng = np.random.RandomState(seed)
    return (rng.normal(0, 0.1, 6000 + 1000 * seed) * np.sin(np.arange(6000 + 1000 * seed) / 900)).astype("float32")


def _recognised(folder: Path, kind: str, samples: list[Any], **options: Any) -> list[list[str]]:
    sherpa_onnx = pytest.importorskip("sherpa_onnx")
    files = {name: str(folder / (name + ".onnx")) for name in ("encoder", "decoder", "joiner")}
    recognizer = getattr(sherpa_onnx, kind).from_transducer(
        **files, tokens=str(folder / "tokens.txt"), sample_rate=8000, feature_dim=20, **options
    )
    streams = [recognizer.create_stream() for _ in samples]
    for stream, audio in zip(streams, samples):
        stream.accept_waveform(8000, audio)
    if kind == "OfflineRecognizer":
        recognizer.decode_streams(streams)
        return [stream.result.tokens for stream in streams]
    for stream in streams:
        stream.input_finished()
    while any(map(recognizer.is_ready, streams)):  # all streams in one batch
        recognizer.decode_streams([stream for stream in streams if recognizer.is_ready(stream)])
    return [recognizer.tokens(stream) for stream in streams]


def _greedy(net: returnn_tf.Network, features: Any) -> list[str]:
    """Return the symbols of the network's own search with a beam of 1."""
    layers = json.loads(json.dumps(dict(net.config["network"])))
    layers["output"]["unit"]["output"]["beam_size"] = 1
    alone = _network(layers)
    feed = {"data": features[None], "data_size0": np.array([len(features)])}
    labels = InferenceModel(alone, ["decision"]).expected(feed)["decision"][0]
    return [SYMBOLS[label] for label in labels]


def _features(net: returnn_tf.Network, samples: list[Any]) -> list[Any]:
    audio = ServerFeatures.of(net.config, integers=False).audio
    return [audio.extract(x, 8000, rng=np.random.RandomState(1), seq_name="a") for x in samples]


def _batch(rows: list[Any]) -> dict[str, Any]:
    sizes = np.array(list(map(len, rows)))
    return {"data": np.stack([np.pad(x, ((0, max(sizes) - len(x)), (0, 0))) for x in rows]), "data_size0": sizes}


@pytest.mark.slow
@pytest.mark.parametrize("predictor, blank", [("1", 4), ("2", 0)])
def test_recognises_what_the_network_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, predictor: str, blank: int
) -> None:
    """With a beam of 1, the package finds what the network does; with more, what error rates are computed of."""
    pytest.importorskip("tf2onnx")
    pytest.importorskip("sherpa_onnx")
    net = _network(_layers(predictor, blank))
    folder = tmp_path / "out"
    lines = error_rates(monkeypatch)
    returnn_tf.export(net, str(folder), "sherpa-onnx", transducer="output", check=ErrorCheck("dev", most=0.5))
    assert len(lines) == 1 and lines[0].startswith("decision, label errors in 'dev'")
    facts = json.loads((folder / "model.json").read_text())
    assert (facts["metadata"]["context_size"], facts["metadata"]["vocab_size"]) == (int(predictor), 5)
    assert (folder / "tokens.txt").read_text().startswith("<blk> 0\n")
    samples = list(map(_audio, range(3)))
    features = _features(net, samples)
    greedy = _recognised(folder, "OfflineRecognizer", samples)
    assert greedy == [_greedy(net, x) for x in features] and all(len(set(tokens)) > 1 for tokens in greedy)
    served = ServedTransducer(net, [], "output")
    served.write(str(tmp_path), 17)
    got = served.run(str(folder), _batch(features))
    wide = [[SYMBOLS[label] for label in row[:size]] for row, size in zip(got["decision"], got["decision_size0"])]
    options = {"decoding_method": "modified_beam_search", "max_active_paths": 4}
    assert _recognised(folder, "OfflineRecognizer", samples, **options) == wide


@pytest.mark.slow
def test_streams(tmp_path: Path) -> None:
    """Of several streams in one batch, each gives what the network finds in as many whole blocks."""
    pytest.importorskip("tf2onnx")
    pytest.importorskip("sherpa_onnx")
    net = _network(_layers(directions=(1,)))
    returnn_tf.export(net, str(tmp_path / "out"), "sherpa-onnx", transducer="output", streaming=4)
    samples = list(map(_audio, range(3)))
    found = _recognised(tmp_path / "out", "OnlineRecognizer", samples)
    wanted = [_greedy(net, x[: (len(x) - 1) // 8 * 8]) for x in _features(net, samples)]
    assert found == wanted and all(len(set(tokens)) > 1 for tokens in found)


CELL: Layers = {"class": "rec", "unit": "nativelstm2", "n_out": 6, "from": ["data:source", "history"]}
UNMASKED: Layers = {**EMBEDDING, "from": "prev:output"}
WHOLE: Layers = {"class": "dot_attention", "base": "base:half", "base_ctx": "base:half", "from": "query"}
QUERY: Layers = {"class": "linear", "activation": None, "n_out": 18, "from": "history"}
MEAN: Layers = {"class": "reduce", "mode": "mean", "axis": "T", "from": "half"}
INDEX: Layers = {
    "class": "eval",
    "eval": "tf.cast(source(0), 'float32')[:, None]",
    "from": ":i",
    "out_type": {"shape": (1,), "dim": 1, "dtype": "float32", "batch_dim_axis": None, "time_dim_axis": None},
}
PROB: Layers = {"class": "softmax", "target": "frames"}


@pytest.mark.parametrize("layers, options, text", [
    (_layers("all"), {}, "layer 'output/history' (class 'unmask') depends on more than the last 8 labels"),
    (_layers(history=UNMASKED), {}, "layer 'output/history' (class 'linear') changes after a blank"),
    (_layers(cell=CELL, prob={**PROB, "from": "cell"}), {}, "layer 'output/cell' (class 'rec') has a state"),
    (_layers(prob={**PROB, "from": "history"}), {}, "the steps take no frames"),
    (_layers(prob={**PROB, "from": "data:source"}), {}, "the scores do not depend on labels before"),
    (_layers(query=QUERY, att=WHOLE, prob={**PROB, "from": ["joint", "att"]}), {}, "the step reads layer 'half'"),
    ({**_layers(prob={**PROB, "from": ["joint", "base:mean"]}), "mean": MEAN}, {}, "layer 'mean' (class 'reduce')"),
    (_layers(prob={**PROB, "from": ["joint", "index"]}, index=INDEX), {}, "a layer reads ':i'"),
    (_layers(), {"streaming": 4}, "Layer 'lstm2' (class 'rec') runs backwards"),
    (_layers(), {"outputs": ["output"]}, "0 outputs are of class 'decide'"),
    (_layers(), {"transducer": "outputs"}, "there is no such layer. Did you mean 'output'"),
    (_layers(output={**_layers()["output"]["unit"]["output"], "prob_scale": 0.5}), {}, "has the option prob_scale"),
    (_layers(output={**_layers()["output"]["unit"]["output"], "recombine_blank": None}), {}, "Set its recombine_blank"),
])  # fmt: skip
def test_networks_that_do_not_fit(tmp_path: Path, layers: Layers, options: dict[str, Any], text: str) -> None:
    """The error names the layer."""
    with pytest.raises(ConfigError) as error:
        returnn_tf.export(_network(layers), str(tmp_path / "out"), "sherpa-onnx", **{"transducer": "output", **options})
    assert text in str(error.value) and not list(tmp_path.iterdir())


class _Loaded(Exception):
    """Ends a command where it has the network."""


@pytest.mark.parametrize("options, outputs", [
    (["--to", "sherpa-onnx", "--transducer", "output"], ["decision"]),
    (["--to", "sherpa-onnx", "--transducer", "output", "--outputs", "other"], ["other"]),
    (["--to", "sherpa-onnx"], []),
    (["--to", "ctranslate2"], ["decision"]),
    (["--search"], ["decision"]),
])  # fmt: skip
def test_outputs_of_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], outputs: list[str]
) -> None:
    """What finds labels exports by default the layer of `search_output_layer`, whose errors are known."""
    (tmp_path / "a.config").write_text("search_output_layer = 'decision'\nmodel = 'net'\n")
    found: list[list[str]] = []

    def load(_config: Any, *, outputs: list[str], **_: Any) -> Any:
        found.append(outputs)
        raise _Loaded

    monkeypatch.setattr("returnn_tf.cli.export.load_network", load)
    with pytest.raises(_Loaded):
        run([str(tmp_path / "a.config"), "--output", str(tmp_path / "out"), *options])
    assert found == [outputs]
