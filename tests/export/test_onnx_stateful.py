"""Single steps of a loop as ONNX models: stepping through them gives the scores of the search of the network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf.config import ConfigError
from tests.export.step_models import MODELS, config_of, feed_of, searching

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")


class Decoder:
    """What RASR does with the models, by the names that their metadata give."""

    def __init__(self, folder: Path) -> None:
        files = {path.stem: path for path in folder.glob("*.onnx")}
        self.sessions = {name: onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
                         for name, path in files.items()}  # fmt: skip
        self.facts = json.loads((folder / "model.json").read_text())

    def _run(self, name: str, feed: dict[str, Any], states: dict[str, Any]) -> dict[str, Any]:
        session = self.sessions[name]
        of_tensor = session.get_modelmeta().custom_metadata_map
        inputs = [x.name for x in session.get_inputs()]
        given = {tensor: states[of_tensor[tensor]] if tensor in of_tensor else feed[tensor] for tensor in inputs}
        outputs = [x.name for x in session.get_outputs()]
        return {of_tensor.get(tensor, tensor): x for tensor, x in zip(outputs, session.run(None, given))}

    def encode(self, features: Any, size: int) -> dict[str, Any]:
        """Return the inputs that the encoder gives to the other models, for one sequence."""
        if "encoder" not in self.sessions:
            return {}
        tensors = {name: entry["tensor"] for name, entry in self.facts["inputs"].items()}
        feed = {tensors["data"]: features[None, :size], tensors["data_size0"]: np.array([size], "int32")}
        found = self._run("encoder", feed, {})
        return {name: found[tensor] for name, tensor in self.facts["stateful"]["encoder"].items()}

    def scores(self, labels: Any, steps: int, encoder: dict[str, Any]) -> list[Any]:
        """Return the scores [hypotheses, labels] of each step.

        :param labels: [hypotheses, steps or more]
        """
        states = self._run("state_initializer", encoder, {})
        states = {name: np.repeat(x, len(labels), axis=0) for name, x in states.items()}
        found = []
        for step in range(steps):
            if step:
                tokens = labels[:, step - 1].astype("int32")
                states = self._run("state_updater", {**encoder, "token": tokens}, states)
            found.append(self._run("scorer", {}, states)["scores"])
        return found


def check_names(decoder: Decoder, folder: Path) -> None:
    """Check names and metadata of the models; the scorer does what only scores need."""
    inputs = {name: [x.name for x in session.get_inputs()] for name, session in decoder.sessions.items()}
    outputs = {name: [x.name for x in session.get_outputs()] for name, session in decoder.sessions.items()}
    states = list(decoder.facts["stateful"]["states"])
    assert inputs["encoder"] == ["features", "features-size"] and sorted(outputs["encoder"]) == [
        "output",
        "output-size",
    ]
    assert inputs["state_initializer"] == ["encoder-states", "encoder-states-size"]
    assert sorted(outputs["state_initializer"]) == sorted(outputs["state_updater"]) == sorted(states)
    assert inputs["state_updater"][0] == "token" and outputs["scorer"] == ["scores"]
    assert set(inputs["scorer"]) < set(states) and "encoder-states" in inputs["state_updater"]
    metadata = decoder.sessions["state_updater"].get_modelmeta().custom_metadata_map
    assert set(metadata) <= {*inputs["state_updater"], *states} and set(metadata.values()) == set(states)
    types = {node.op_type for node in onnx.load(str(folder / "scorer.onnx")).graph.node}
    assert "MatMul" in types or "Gemm" in types  # the output layer
    assert decoder.facts["stateful"]["labels"] == 6


#: The number of steps after which a hypothesis of the search stops without the label 0; None: nothing else stops it.
LIMITS = {"attention": 7, "transformer": 6, "language_model": 6, "nested": None}


@pytest.mark.slow
@pytest.mark.parametrize("name, rasr", [
    ("attention", True),
    pytest.param("transformer", False, marks=pytest.mark.long),
    pytest.param("nested", False, marks=pytest.mark.long),
    pytest.param("language_model", True, marks=pytest.mark.long),
])  # fmt: skip
def test_scores_of_hypotheses(tmp_path: Path, name: str, rasr: bool) -> None:
    """The log scores along each hypothesis of the search add up to its score; RASR gets costs."""
    net = searching(config_of(MODELS[name](length_normalization=False)))
    returnn_tf.export(net, str(tmp_path / "out"), "onnx", stateful="output", rasr=rasr)
    # the search runs on past the shorter sequences of a batch if nothing but the number of frames ends it
    decoder, feed = Decoder(tmp_path / "out"), feed_of((6, 6) if LIMITS[name] is None else (6, 4))
    assert decoder.facts["stateful"]["scores"]["sign"] == (-1 if rasr else 1)
    found = net.run(feed, fetch=["output"]).layers["output"]
    seqs, beam = found.beam_scores.shape
    lens = found.sizes[1] if found.sizes[1].size == seqs * beam else np.repeat(found.sizes[1], beam)
    labels, limit = found.value.reshape([seqs, beam, -1]), LIMITS[name]
    for seq in range(seqs):
        encoder = decoder.encode(feed["data"][seq], int(feed["data/size0"][seq]))
        ends = [[0] if limit is not None and length < limit else [] for length in lens]
        paths = [[*labels[seq, row, : lens[seq * beam + row]], *ends[seq * beam + row]] for row in range(beam)]
        scores = decoder.scores(labels[seq], max(map(len, paths)), encoder)
        for row, path in enumerate(paths):
            total = sum(scores[t][row, label] for t, label in enumerate(path)) * (-1 if rasr else 1)
            np.testing.assert_allclose(total, found.beam_scores[seq, row], rtol=1e-5, atol=1e-5)
    if name == "attention":
        check_names(decoder, tmp_path / "out")


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "two labels per step": ("two_choices", {"stateful": "output"}, "2 choices, 'output/first', 'output/output'"),
    "no loop": ("attention", {"stateful": "encoder"}, "'encoder' (class 'copy')"),
    "outputs": ("attention", {"stateful": "output", "outputs": ["encoder"]}, "outputs has no meaning with stateful"),
    "batch": ("attention", {"stateful": "output", "batch": 2}, "batch has no meaning with stateful"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options(tmp_path: Path, case: str) -> None:
    name, options, text = WRONG[case]
    net = searching(config_of(MODELS[name]()))
    with pytest.raises(ConfigError) as error:
        returnn_tf.export(net, str(tmp_path / "out"), "onnx", **options)
    assert text in str(error.value) and not list(tmp_path.iterdir())


def test_several_time_axes(tmp_path: Path) -> None:
    """RASR passes one tensor with one time axis."""
    layers = MODELS["attention"]()
    layers["pooled"] = {"class": "pool", "mode": "max", "pool_size": (2,), "padding": "same", "from": "encoder"}
    query = {"class": "dot_attention", "base": "base:pooled", "base_ctx": "base:pooled", "from": "query"}
    layers["output"]["unit"].update(
        query={"class": "linear", "activation": None, "n_out": 8, "from": "s"}, more=query,
        readout_in={"class": "linear", "activation": None, "n_out": 8, "from": ["s", "more", "att"]},
    )  # fmt: skip
    with pytest.raises(ConfigError, match="another time axis than the other values"):
        returnn_tf.export(searching(config_of(layers)), str(tmp_path / "out"), "onnx", stateful="output")
