"""Which labels the inputs and outputs of an export have: names from the data, and the index of a blank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf.datasets import HDFWriter
from returnn_tf.export.data_facts import label_facts
from returnn_tf.export.inference import InferenceModel

LABELS = ["a", "b", "c"]
LINEAR = {"class": "linear", "activation": None}
DATA = {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True}}
CTC = {"output": {"class": "softmax", "from": "data", "loss": "ctc"}}
NAMED = {"vocabulary": "vocab.classes.txt"}


def facts(folder: Path, layers: dict[str, Any], outputs: list[str], **settings: Any) -> dict[str, Any]:
    """Return the facts of all outputs, with all that is planned for search."""
    given = {"network": layers, "extern_data": DATA, "target": "classes", "behavior_version": 21, **settings}
    search = any(layer.get("target") == "with_end" for layer in layers.values())
    net = returnn_tf.Network.from_config(returnn_tf.Config(given), search=search)
    return label_facts(InferenceModel(net, outputs), str(folder))["outputs"]


def hdf(folder: Path) -> dict[str, Any]:
    """Write an HDF file with named labels, and return its dataset."""
    path = str(folder / "data.hdf")
    extra: dict[str, Any] = {"classes": (3, 1, "int32")}
    with HDFWriter(path, dim=4, extra_type=extra, extra_labels={"classes": LABELS}) as writer:
        targets = {"classes": [np.array([1, 2], "int32")]}
        writer.insert_sequences([np.zeros([5, 4], "float32")], ["seq"], targets)
    return {"class": "HDFDataset", "files": [path]}


def test_datasets(tmp_path: Path) -> None:
    """An HDF file, alone and inside of other datasets, under another key, too; not the vocabulary of another key."""
    file = hdf(tmp_path)
    other = {"class": "LmDataset", "corpus_file": str(tmp_path / "no.txt"),
             "orth_vocab": {"class": "Vocabulary", "labels": ["x", "y", "z"], "unknown_label": None}}  # fmt: skip
    both = {"data": ("x", "data"), "classes": ("x", "classes")}
    meta = {"class": "MetaDataset", "datasets": {"x": file, "a": other}, "data_map": {**both, "words": ("a", "data")},
            "seq_order_control_dataset": "x"}  # fmt: skip
    mapped = {("x", "data"): "data", ("x", "classes"): "classes"}
    combined = {"class": "CombinedDataset", "datasets": {"x": file}, "data_map": mapped, "seq_ordering": "default"}
    (tmp_path / "no.txt").write_text("x\n")
    (tmp_path / "words").write_text("seq\n")
    concat = {"class": "ConcatSeqsDataset", "dataset": file, "seq_list_file": str(tmp_path / "words"),
              "seq_len_file": str(tmp_path / "lens")}  # fmt: skip
    (tmp_path / "lens").write_text("{'seq': 5}")
    for train in (file, meta, combined, concat, {"class": "ConcatDataset", "datasets": [file, file]}):
        (tmp_path / NAMED["vocabulary"]).unlink(missing_ok=True)
        assert facts(tmp_path, CTC, ["output"], train=train) == {"output": {**NAMED, "blank": 3}}, train["class"]
        assert (tmp_path / NAMED["vocabulary"]).read_text() == "a\nb\nc\n"


def test_language_model(tmp_path: Path) -> None:
    """The symbols of a text; the network may have room for more of them."""
    (tmp_path / "text").write_text("a b\n")
    (tmp_path / "words").write_text("</S>\na\nb\n")
    train = {"class": "LmDataset", "corpus_file": str(tmp_path / "text"), "word_based": True,
             "orth_symbols_file": str(tmp_path / "words"), "seq_end_symbol": "</S>"}  # fmt: skip
    for size in (3, 5):
        layers = {"output": {"class": "softmax", "from": "data:data", "loss": "ce", "target": "data"}}
        found = facts(tmp_path, layers, ["output"], train=train, extern_data={"data": {"dim": size, "sparse": True}})
        assert found == {"output": {"vocabulary": "vocab.data.txt"}}
        assert (tmp_path / "vocab.data.txt").read_text() == "</S>\na\nb\n"


def test_data_of_another_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The dataset can't be opened: then a vocabulary in its options counts, if its size fits."""
    file = {"class": "HDFDataset", "files": [str(tmp_path / "no.hdf")]}
    assert facts(tmp_path, CTC, ["output"], train=file) == {"output": {"blank": 3}}
    targets = {"class": "CharacterTargets", "labels": LABELS}
    for labels, found in ((LABELS, NAMED), (LABELS[:2], {})):
        train = {"class": "OggZipDataset", "path": "no.zip", "targets": {**targets, "labels": labels}, "audio": None}
        assert facts(tmp_path, CTC, ["output"], train=train) == {"output": {**found, "blank": 3}}


POSTERIORS = {
    **CTC,
    "log": {"class": "activation", "activation": "safe_log", "from": "output", "is_output_layer": True},
    "best": {"class": "reduce", "mode": "argmax", "axes": "F", "from": "output"},
    "labels": {"class": "remove", "symbol": 3, "from": "best"},
    "found": {"class": "reinterpret_data", "set_sparse_dim": 3, "from": "labels", "is_output_layer": True},
}
_BLANK_FIRST = {"output": {**CTC["output"], "loss_opts": {"ctc_opts": {"blank_index": 0}}}}
WITH_BLANK = {
    "output": {**LINEAR, "n_out": 4, "from": "data"},
    "loss": {"class": "ctc_loss", "logits": "output", "targets": "data:classes", "loss": "as_is", "blank_index": 1},
}
TRANSDUCER = {
    "encoder": {**LINEAR, "n_out": 4, "from": "data"},
    "embedding": {**LINEAR, "n_out": 4, "from": "data:classes"},
    "padded": {"class": "pad", "axes": "T", "padding": (1, 0), "from": "embedding"},
    "joint": {"class": "combine", "kind": "add", "from": ["encoder", "padded"], "allow_broadcast_all_sources": True},
    "logits": {**LINEAR, "n_out": 4, "from": "joint"},
    "output": {"class": "transducer_loss", "logits": "logits", "targets": "data:classes", "loss": "as_is"},
}
ALIGNED = {
    "output": {"class": "softmax", "n_out": 4, "from": "data"},
    "path": {"class": "forced_align", "align_target": "data:classes", "topology": "ctc", "input_type": "prob",
             "from": "output", "is_output_layer": True},
}  # fmt: skip
BAUM_WELCH = {
    "output": {"class": "softmax", "n_out": 4, "from": "data", "loss": "via_layer",
               "loss_opts": {"loss_wrt_to_act_in": "softmax", "align_layer": "soft"}, "target": None},
    "soft": {"class": "fast_bw", "align_target": "ctc", "align_target_key": "classes", "input_type": "prob",
             "from": "output"},
}  # fmt: skip
#: Labels with an end behind them, which the network adds; no loss of the search compares with the data.
ATTENTION = {
    "ended": {"class": "postfix_in_time", "postfix": 3, "from": "data:classes"},
    "ends": {"class": "reinterpret_data", "set_sparse_dim": 4, "from": "ended", "register_as_extern_data": "with_end"},
    "output": {"class": "rec", "from": [], "target": "with_end", "max_seq_len": 3, "unit": {
        "s": {"class": "rnn_cell", "unit": "lstm", "n_out": 5, "from": "prev:embedding"},
        "prob": {"class": "softmax", "from": "s", "target": "with_end", "loss": "ce"},
        "output": {"class": "choice", "target": "with_end", "beam_size": 2, "from": "prob", "initial_output": 3},
        "embedding": {**LINEAR, "n_out": 4, "from": "output", "initial_output": 0},
        "end": {"class": "compare", "from": "output", "value": 3}}},
}  # fmt: skip


@pytest.mark.parametrize(("layers", "expected"), [
    pytest.param(POSTERIORS, {
        "output": {**NAMED, "blank": 3}, "log": {**NAMED, "blank": 3}, "best": {**NAMED, "blank": 3}, "found": NAMED,
    }, id="posteriors"),
    pytest.param(_BLANK_FIRST, {"output": {**NAMED, "blank": 0}}, id="blank first"),
    pytest.param(WITH_BLANK, {"output": {**NAMED, "blank": 1}}, id="ctc_loss"),
    pytest.param(TRANSDUCER, {"logits": {**NAMED, "blank": 3}, "encoder": {}}, id="transducer"),
    pytest.param(ALIGNED, {"output": {**NAMED, "blank": 3}, "path": {**NAMED, "blank": 3}}, id="alignment"),
    pytest.param(BAUM_WELCH, {"output": {**NAMED, "blank": 3}}, id="Baum-Welch"),
    pytest.param(ATTENTION, {"output": NAMED}, id="attention"),
    pytest.param({"output": {**LINEAR, "n_out": 7, "from": "data"}}, {"output": {}}, id="no labels"),
])  # fmt: skip
def test_layers(tmp_path: Path, layers: dict[str, Any], expected: dict[str, Any]) -> None:
    """Layers whose labels are those of the data, with further ones at the end."""
    train = hdf(tmp_path)
    assert facts(tmp_path, layers, list(expected), train=train) == expected


@pytest.mark.slow
def test_steps_in_onnx(tmp_path: Path) -> None:
    """The labels of the scores of a single step."""
    pytest.importorskip("tf2onnx")
    given = {"network": ATTENTION, "extern_data": DATA, "behavior_version": 21, "train": hdf(tmp_path)}
    net = returnn_tf.Network.from_config(returnn_tf.Config(given), search=True)
    returnn_tf.export(net, str(tmp_path / "out"), "onnx", stateful="output")
    stateful = json.loads((tmp_path / "out" / "model.json").read_text())["stateful"]
    assert (stateful["labels"], stateful["vocabulary"]) == (4, "vocab.classes.txt") and "blank" not in stateful
    assert (tmp_path / "out" / "vocab.classes.txt").read_text() == "a\nb\nc\n"
