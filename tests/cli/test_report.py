"""returnn-tf report: one file, complete, without anything from elsewhere; what it refuses."""

from __future__ import annotations

import io
import os
import pathlib
import re
import sys
import types
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from returnn_tf.cli.main import main
from returnn_tf.cli.report.details import worst
from returnn_tf.cli.report.drawings import WordRow, draw_words
from returnn_tf.cli.report.losses import sees_reference, target_labels
from returnn_tf.cli.report.model import Model, SeqReport
from returnn_tf.cli.report.words import drawable
from returnn_tf.engine.learning_rate.file import EpochData
from returnn_tf.engine.monitoring.curves import draw_curves
from returnn_tf.engine.transcripts.transcript import Piece
from returnn_tf.logging.progress_bar import ProgressBar
from tests.layers.nets import net_of

pytest.importorskip("matplotlib")

CONFIG = """
_labels = [[1, 2, 3], [2, 2], [0, 3, 1], [3]]
_data = [
    {"data": [[float(i == x) for i in range(4)] for x in labels for _ in range(3)], "classes": labels}
    for labels in _labels
]
train = {"class": "StaticDataset", "data": _data, "output_dim": {"data": [4, 2], "classes": [4, 1]}}
dev = dict(train)
extern_data = {"data": {"dim": 4}, "classes": {"dim": 4, "sparse": True, "vocab": {"labels": ["<a>", "b", "c", "d"]}}}
network = {
    "enc": {"class": "linear", "activation": "tanh", "n_out": 6, "from": "data"},
    "ctc": {"class": "softmax", "from": "enc", "loss": "ctc", "target": "classes", "loss_opts": {"beam_width": 1}},
    "output": {"class": "rec", "from": [], "target": "classes", "unit": {
        "emb": {"class": "linear", "n_out": 3, "activation": None, "from": "output", "initial_output": 0},
        "output": {"class": "choice", "target": "classes", "beam_size": 2, "from": "prob", "initial_output": 0},
        "query": {"class": "linear", "n_out": 6, "activation": None, "from": "prev:emb"},
        "energy": {"class": "dot", "from": ["base:enc", "query"], "red1": "f", "red2": "f", "var1": "t", "var2": None},
        "weights": {"class": "softmax_over_spatial", "from": "energy"},
        "att": {"class": "generic_attention", "weights": "weights", "base": "base:enc"},
        "prob": {"class": "softmax", "from": ["att", "prev:emb"], "target": "classes", "loss": "ce"},
    }},
}
batch_size, max_seqs, num_epochs, learning_rate = 50, 4, 2, 0.01
optimizer = {"class": "adam"}
model, learning_rate_file, tf_log_dir, write_meta_graph = "net/toy", "rates", None, False
behavior_version = 21
"""

CE = {"loss": "ce", "target": "labels"}


class Page(HTMLParser):
    """Collects texts, references to other places, and elements which are not closed."""

    VOID = {"meta", "br", "img", "link", "hr", "input"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open += [] if tag in self.VOID else [tag]
        for name, value in attrs:
            if name in ("href", "src", "xlink:href", "action", "data"):
                self.references.append(value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "toy.config").write_text(CONFIG)
    before = os.getcwd()
    os.chdir(folder)
    try:
        assert main(["toy.config", "++learning_rate", "0.02"]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.mark.slow
def test_report_of_a_folder(
    trained: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From another folder: config, data and checkpoint are found by what the run has recorded."""
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(trained / "net"), "--examples", "2"]) == 0
    out = capsys.readouterr().out
    assert "evaluating 4 sequences of 'dev'" in out and "wrote report.html" in out and os.getcwd() == str(tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf8")
    page = Page(text)
    assert page.open == [] and not re.search(
        r"https?://(?!www\.w3\.org/)", re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    )
    assert all(reference.startswith(("#", "data:image/")) for reference in page.references)
    for words in (
        "Curves", "Worst sequences", "Of 4 sequences of 'dev'", "Words, alignments and attention", "output/weights",
        "best alignment of the reference", "Edits of ctc", "label errors", "Classes of output/prob",
        "sees the reference as its history", "output/query linear", "Speed and memory", "frames per second",
        "learning_rate 0.02", "Environment", "finished", "<a>", "best labels of output/prob after the reference",
    ):  # fmt: skip
        assert words in page.text, words
    assert text.count("<svg") >= 2 + 2 * 2 + 1 + 1
    drawings = re.findall(r"<figure>(<svg.*?>)", text, flags=re.S)
    assert len(drawings) >= 5 and all("viewBox" in tag for tag in drawings)  # so that they scale with the page
    assert main(["report", str(trained / "net")]) == 2
    assert "'report.html' exists already. --force replaces it" in capsys.readouterr().err


@pytest.mark.parametrize(
    "errors, listed, told",
    [
        ([{"e": 0.5}, {"e": 0.0}, {"e": 0.1}, {"e": 0.0}, {"e": 0.0}], ["s0", "s2"], "2 have errors"),
        ([{"e": 0.0}] * 5, ["s0", "s1", "s2"], "0 have errors"),
        ([{}] * 5, ["s0", "s1", "s2", "s3", "s4"], ""),
    ],
)
def test_worst_sequences(
    errors: list[dict[str, float]], listed: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those with errors; where there are errors of none, only a few are of interest."""
    monkeypatch.setattr("returnn_tf.cli.report.details._texts", lambda model: [])
    found = [SeqReport("s%d" % i, 3, {"l": 1.0 / (i + 1)}, each) for i, each in enumerate(errors)]
    body = worst(types.SimpleNamespace(data="dev"), found).body  # type: ignore[arg-type]
    assert re.findall(r">(s\d)<", body) == listed and told in body and ("have errors" in body) == bool(told)


def test_drawing_of_words() -> None:
    """Words without times and texts that do not fit are left out; long sequences are pooled."""
    words = (Piece("seven", 0.0, 0.5, 0.9), Piece("t" * 200, 0.5, 0.6), Piece("lost"), Piece("$a_b$", 0.6, 1.0, 0.2))
    rows = [WordRow("words", words), WordRow("labels", ())]
    text = draw_words(np.random.default_rng(1).normal(size=[3000, 8]), rows, 1.0, "s", "cost: $5")
    shown = Page(text).text
    assert all(part in shown for part in ("seven", "$a_b$", "confidence", "cost: $5", "labels"))
    assert "ttt" not in shown and "lost" not in shown


@pytest.mark.parametrize(
    "data, joined, shape",
    [
        (np.zeros([4, 6], "float32"), 3, (12, 2)),
        (np.zeros([4, 6], "float32"), None, (4, 6)),
        (np.zeros([4, 5], "float32"), 3, (4, 5)),
        (np.zeros([4, 1], "float32"), None, None),  # samples
        (np.zeros([4], "int32"), None, None),
        (np.zeros([0, 6], "float32"), None, None),
        (None, None, None),
    ],
)
def test_features_that_can_be_drawn(data: Any, joined: Any, shape: Any) -> None:
    dataset = types.SimpleNamespace(opts=types.SimpleNamespace(audio=joined and {"join_frames": joined}))
    found = drawable(data, dataset)
    assert (None if found is None else found.shape) == shape


@pytest.mark.slow
def test_report_of_a_config(trained: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another dataset and checkpoint, and only some sequences."""
    monkeypatch.chdir(trained)
    options = ["--data", "train", "--num_seqs", "2", "--epoch", "1", "--output", "x.html"]
    assert main(["report", "toy.config", *options]) == 0
    text = Page((trained / "x.html").read_text(encoding="utf8")).text
    assert "Of 2 sequences of 'train'" in text and "net/toy.001, 2 sequences of train" in text


@pytest.mark.slow
def test_weights_inside_of_layers(trained: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of self-attention: the mean of the heads, and each head folded, for the best and the worst sequence."""
    monkeypatch.chdir(trained)
    heads = "network = {'heads': {'class': 'self_attention', 'num_heads': 2, 'total_key_dim': 4, 'n_out': 4, "
    layers = heads + "'from': 'data'}, 'output': {**network['ctc'], 'from': 'heads'}}\n"
    (trained / "heads.config").write_text(CONFIG + layers + "model = 'heads/net'\nlearning_rate_file = 'heads_rates'\n")
    assert main(["heads.config", "++num_epochs", "1"]) == 0
    assert main(["report", "heads.config", "--output", "heads.html", "--examples", "2"]) == 0
    text = (trained / "heads.html").read_text(encoding="utf8")
    page = Page(text)
    assert page.open == [] and "not drawn" not in page.text
    assert page.text.count("search for best path of CTC; times from") == 2
    assert "confidence" in page.text and "reference" in page.text
    for words, count in (("heads, mean of 2 heads", 2), ("heads: 9 queries, 9 keys", 1), ("heads of heads", 2)):
        assert page.text.count(words) == count, words
    for head in (1, 2):
        assert len(re.findall("head %d: [0-9.]+ keys" % head, page.text)) == 2
    assert text.count("<img src='data:image/png;base64,") == 4


@pytest.mark.parametrize(
    "layers, seen",
    [
        ({"output": {"class": "softmax", **CE, "from": "data"}}, False),
        ({"sub": {"class": "subnetwork", "from": "data", "subnetwork": {
            "output": {"class": "softmax", "from": "data", **CE}}}}, False),
        ({"loop": {"class": "rec", "from": "data", "unit": {
            "output": {"class": "softmax", "from": "data:source", **CE}}}}, False),
        ({"loop": {"class": "rec", "from": [], "target": "labels", "unit": {
            "output": {"class": "choice", "target": "labels", "beam_size": 2, "from": "p", "initial_output": 0},
            "p": {"class": "softmax", **CE, "from": "prev:output"}}}}, True),
    ],
)  # fmt: skip
def test_history_of_a_loss(layers: dict[str, Any], seen: bool) -> None:
    """Only in a decoder a step sees the labels of the reference before it."""
    name = next(iter(layers))
    network = {**layers, "output": layers.get("output", {"class": "copy", "from": name})}
    net = net_of(network, train=True)
    (loss,) = net.plan.losses
    assert sees_reference(Model(net, "", None, "dev", [], {}), loss) == seen


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.slow
def test_progress_of_the_sequences(trained: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are evaluated one by one, which takes a while."""
    monkeypatch.chdir(trained)
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(ProgressBar, "INTERVAL", 0.0)
    assert main(["report", "toy.config", "--num_seqs", "2", "--examples", "1", "--output", "progress.html"]) == 0
    assert re.search("report on 'dev'   50% #+-+ .*report on 'dev'  100% #+  ETA ", out.getvalue(), re.S)


@pytest.mark.parametrize("shift, expected", [(False, "ac3"), (True, "0 2 3")])
def test_names_of_labels_with_an_end(shift: bool, expected: str) -> None:
    """A target to which layers add an end has the names of the data, unless its labels are computed."""
    labels = {"dim": 3, "sparse": True, "vocab": {"labels": ["a", "b", "c"]}}
    network = {
        "more": {"class": "postfix_in_time", "postfix": 2, "from": "data:classes"},
        "shifted": {"class": "eval", "eval": "source(0) * 1", "from": "more"},
        "named": {"class": "reinterpret_data", "set_sparse_dim": 4, "from": "shifted" if shift else "more"},
        "output": {"class": "softmax", "from": "data", "loss": "ce", "target": "named"},
    }
    net = net_of(network, train=True, extern_data={"data": {"dim": 3}, "classes": labels})
    model = Model(net, "", types.SimpleNamespace(label_names={}), "dev", [], {})
    assert target_labels(model, net.plan.losses[0]).text([0, 2, 3]) == expected


@pytest.mark.parametrize("vocab, expected", [({}, False), ({"vocab": {"labels": ["a", "b", "c"]}}, True)])
def test_texts_without_decoder(vocab: dict[str, Any], expected: bool) -> None:
    """Labels by frame are texts if they have names, as in a language model; numbers of states are none."""
    labels = {"dim": 3, "sparse": True, **vocab}
    network = {"output": {"class": "softmax", "from": "data", "loss": "ce", "target": "classes"}}
    net = net_of(network, train=True, extern_data={"data": {"dim": 3}, "classes": labels})
    seq = SeqReport("seq", 2, {"output": 1.0}, {}, {"output": (np.eye(3)[1:], ("T", "F"))})
    seq.feed["classes"] = np.array([0, 2])
    dataset = types.SimpleNamespace(label_names={})
    body = worst(Model(net, "", dataset, "dev", [], {}), [seq]).body
    cells = Page(body).text
    assert ("reference best labels of output" in cells, cells.endswith("ac bc")) == (expected, expected)


def test_records_only(trained: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Without loading anything, also of a learning-rate file alone."""
    path = tmp_path / "x.html"
    (tmp_path / "rates").write_text((trained / "rates").read_text())
    assert main(["report", str(tmp_path / "rates"), "--no-model", "--output", str(path)]) == 0
    text = Page(path.read_text(encoding="utf8")).text
    assert "Curves" in text and "Worst" not in text and "neither a config nor a record" in text


@pytest.mark.parametrize(
    "more, words",
    [
        ("network['enc']['n_out'] = 7", "enc"),
        ("network['enc']['class'] = 'lineare'", "Did you mean 'linear'"),
        ("dev = {'class': 'HDFDataset', 'files': ['gone.hdf']}", "gone.hdf"),
    ],
)
def test_network_that_cannot_be_loaded(
    more: str, words: str, trained: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error tells how to do without."""
    monkeypatch.chdir(trained)
    (trained / "broken.config").write_text(CONFIG + more + "\n")
    assert main(["report", "broken.config", "--output", "broken.html"]) in (1, 2)
    err = capsys.readouterr().err
    assert words in err and "without loading the network: --no-model\n" in err, err
    assert "\nMore: returnn-tf explain" in err


@pytest.mark.parametrize(
    "arguments, otherwise",
    [
        (["compare", "a", "b"], "--no-plot prints the tables only"),
        (["report", "a"], "compare --no-plot print"),
    ],
)
def test_without_matplotlib(
    arguments: list[str], otherwise: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(arguments) == 2
    assert "[plot]'. Without it: " in (err := capsys.readouterr().err) and "pip install " in err and otherwise in err


@pytest.mark.parametrize("last", [1, 2, 3, 40])
def test_ticks_of_epochs(last: int) -> None:
    """Whole numbers, also of a single epoch."""
    epochs = {epoch: EpochData(0.1, {"dev_score": 1.0 / epoch}) for epoch in range(1, last + 1)}
    figure = draw_curves({"": epochs}).figure
    figure.canvas.draw()
    labels = [label.get_text() for label in figure.axes[-1].get_xticklabels()]
    assert labels and all(re.fullmatch("\N{MINUS SIGN}?[0-9]+", label) for label in labels), labels


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (["gone"], 2, "there is no such folder"),
        (["rates.only"], 2, "its config is not known, so the network can't be loaded"),
        (["toy.config", "--data", "devv"], 2, "no dataset 'devv'; it has: dev, train"),
        (["toy.config", "--epoch", "7"], 2, "epoch 7"),
        (["toy.config", "--output", "no/x.html"], 2, "folder of 'no/x.html' does not exist"),
        (["toy.config", "--num_seqs", "0"], 2, "must be at least 1"),
        (["toy.config", "--epoch", "x"], 2, "expected a whole number, not 'x'"),
        (["toy.config", "--output", "x.pdf"], 2, "ends in .html"),
        (["new.config"], 1, "was it trained in another folder?"),
    ],
)
def test_refused(
    arguments: list[str],
    code: int,
    words: str,
    trained: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One message, and no file."""
    monkeypatch.chdir(trained)
    (trained / "only").mkdir(exist_ok=True)
    (trained / "new.config").write_text("model = 'other/toy'\nnetwork = {}\n")
    if arguments == ["rates.only"]:
        (trained / "only" / "rates.only").write_text((trained / "rates").read_text())
        arguments = ["only/rates.only"]
    output = [] if "--output" in arguments else ["--output", "y.html"]
    assert main(["report", *arguments, *output]) == code
    err = capsys.readouterr().err
    assert words in err and "Traceback" not in err and not (trained / "y.html").exists()
