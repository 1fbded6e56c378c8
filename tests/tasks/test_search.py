"""Task ``search``: the same output as another program wrote for its model, the options, and what can go wrong."""

from __future__ import annotations

import ast
import gzip
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest

from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.search import searcher as searching
from returnn_tf.engine.search.labels import labels_of
from returnn_tf.tasks.registry import run_task
from returnn_tf.tensor import extern_data_options, parse_extern_data

REFERENCE = pathlib.Path(__file__).parent.parent / "data/outputs/search"
NAMES = ["</s>", "one", "two", "three"]
PAIRS = [([1, 2, 3], [1, 2, 0]), ([4, 4], [3, 0]), ([0, 1, 2, 3, 4], [2, 2, 1, 0]), ([2], [0])]
SEQS = [{"data": np.array(a, "int32"), "classes": np.array(b, "int32")} for a, b in PAIRS]
DATASET: dict[str, Any] = {
    "class": "StaticDataset",
    "data": SEQS,
    "output_dim": {"data": (5, 1), "classes": (4, 1)},
}
WITHOUT_TARGETS: dict[str, Any] = {
    "class": "StaticDataset",
    "data": [{"data": seq["data"]} for seq in SEQS],
    "input_dim": 5,
}
CLASSES: dict[str, Any] = {"dim": 4, "sparse": True}


def vocab(**options: Any) -> dict[str, Any]:
    return {"data": {"dim": 5, "sparse": True}, "classes": {**CLASSES, "vocab": options}}


SETTINGS: dict[str, Any] = {
    "task": "search",
    "eval": DATASET,
    "extern_data": vocab(**{"class": "Vocabulary"}, vocab_file=None, labels=NAMES, unknown_label=None),
    "target": "classes",
    "network": {
        "emb": {"class": "linear", "activation": None, "n_out": 5, "from": "data"},
        "enc": {"class": "reduce", "mode": "mean", "axes": "T", "from": "emb"},
        "output": {
            "class": "rec",
            "from": [],
            "max_seq_len": 6,
            "target": "classes",
            "unit": {
                "output": {
                    "class": "choice", "from": "prob", "target": "classes", "beam_size": 3, "initial_output": 0,
                },
                "end": {"class": "compare", "from": "output", "value": 0},
                "prev_emb": {"class": "linear", "activation": None, "n_out": 4, "from": "prev:output"},
                "s": {
                    "class": "linear", "activation": "tanh", "n_out": 6, "from": ["prev_emb", "prev:s", "base:enc"],
                },
                "prob": {"class": "softmax", "from": "s", "target": "classes", "loss": "ce"},
            },
        },
        "decision": {"class": "decide", "from": "output", "loss": "edit_distance", "target": "classes"},
    },
    "batch_size": 100,
    "max_seqs": 2,
    "load": "net/network.080",
    "behavior_version": 21,
    "search_output_file": "out",
}  # fmt: skip


@pytest.fixture(autouse=True)
def with_the_trained_model(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net").mkdir()
    for path in REFERENCE.glob("network.080.*"):
        shutil.copy(path, tmp_path / "net")
    return tmp_path


def run(**changes: Any) -> str:
    config = Config({**SETTINGS, **changes})
    assert run_task(config) == 0
    path = config.str("search_output_file", "")
    return pathlib.Path(path).read_text() if path and not path.endswith(".gz") else ""


def assert_same_beams(got: list[Any], expected: list[Any]) -> None:
    assert [text for _, text in got] == [text for _, text in expected]
    np.testing.assert_allclose([score for score, _ in got], [score for score, _ in expected], rtol=1e-6)


@pytest.mark.parametrize("file_format", ["txt", "py"])
def test_best_hypotheses_are_those_of_the_reference(file_format: str) -> None:
    text = run(search_output_layer="decision", search_output_file_format=file_format)
    assert text == (REFERENCE / ("search_decision_%s.txt" % file_format)).read_text()


def test_beams_are_those_of_the_reference() -> None:
    expected = (REFERENCE / "search_beam_txt.txt").read_text().splitlines()
    got = run().splitlines()
    assert len(got) == len(expected)
    for line, reference in zip(got, expected):
        assert_same_beams(ast.literal_eval(line), ast.literal_eval(reference))


def test_beams_as_a_dict_are_those_of_the_reference() -> None:
    got, expected = run(search_output_file_format="py"), (REFERENCE / "search_beam_py.txt").read_text()
    beams = ast.literal_eval(expected)
    assert list(ast.literal_eval(got)) == list(beams)
    for tag, found in ast.literal_eval(got).items():
        assert_same_beams(found, beams[tag])
    assert [line.split(",")[0][:4] for line in got.splitlines()] == [
        line.split(",")[0][:4] for line in expected.splitlines()
    ]


def test_compressed_output_without_targets() -> None:
    run(
        eval=WITHOUT_TARGETS, search_output_file="out.gz", search_output_file_format="py", search_do_eval=False,
        search_output_layer="decision",
    )  # fmt: skip
    with gzip.open("out.gz", "rt") as got, gzip.open(REFERENCE / "search_noeval_py_gz.txt.gz", "rt") as expected:
        assert got.read() == expected.read()
    assert sorted(path.name for path in pathlib.Path().iterdir()) == ["net", "out.gz"]


def test_several_layers() -> None:
    found = ast.literal_eval(run(search_output_layer=["decision", "output"], search_output_file_format="py"))
    assert list(found) == ["seq-0", "seq-1", "seq-2", "seq-3"]
    for entry in found.values():
        assert list(entry) == ["decision", "output"]
        assert entry["decision"] == entry["output"][0][1]


@pytest.mark.parametrize(
    "extern_data, lines",
    [
        (vocab(labels=list("_abc")), ["ab", "c", "bba", ""]),
        (vocab(**{"class": "CharacterTargets"}, labels=["</s>", "x", "yy", "z"]), ["xyy", "z", "yyyyx", ""]),
        ({"data": {"dim": 5, "sparse": True}, "classes": CLASSES}, ["1 2", "3", "2 2 1", ""]),
        (vocab(vocab_file="lines.txt"), ["d c", "b", "c c d", ""]),
        (vocab(vocab_file="table.txt"), ["a b", "c", "b b a", ""]),
    ],
)
def test_labels(extern_data: dict[str, Any], lines: list[str]) -> None:
    pathlib.Path("lines.txt").write_text("</s>\nd\nc\nb\n")
    pathlib.Path("table.txt").write_text("{'a': 1, 'b': 2, 'c': 3, '</s>': 0}")
    assert run(extern_data=extern_data, search_output_layer="decision").splitlines() == lines


def test_names_of_the_dataset_come_before_those_of_the_vocabulary() -> None:
    class Named:
        labels = {"classes": ["0", "a", "b", "c"]}

    extern_data = parse_extern_data(extern_data_options({"extern_data": SETTINGS["extern_data"]}))
    classes = extern_data["classes"]
    assert labels_of(classes, Named, extern_data, None).text([1, 3, 7]) == "ac7"
    other = classes.replace(sparse_dim=extern_data["data"].sparse_dim)
    assert labels_of(other, Named, extern_data, "classes").text([1, 3]) == "1 3"


def test_bytes_and_pieces_of_words() -> None:
    """256 labels without names, or of a vocabulary of bytes, are UTF-8; what is none does not end the search."""

    class Dataset:
        labels: dict[str, list[str]] = {}

    def labels(dim: int, **options: Any) -> Any:
        given = {"extern_data": {"data": {"dim": 5}, "classes": {"dim": dim, "sparse": True, **options}}}
        extern_data = parse_extern_data(extern_data_options(given))
        return labels_of(extern_data["classes"], Dataset, extern_data, None)

    for of_bytes in (labels(256), labels(256, vocab={"class": "Utf8ByteTargets"})):
        assert of_bytes.text([97, 195, 169]) == "aé" and of_bytes.text([97, 195]) == "a\ufffd"
    assert labels(255).text([97]) == "97"
    pieces = labels(4, vocab={"labels": ["\u2581", "\u2581a", "b", "c"], "unknown_label": None})
    assert pieces.text([1, 2, 0, 3]) == "\u2581a b \u2581 c" and pieces.words([1, 2, 0, 3]) == ["ab", "c"]
    merged = labels(3, vocab={"labels": ["a@@", "b", "c"], "unknown_label": None})
    assert merged.words([0, 1, 2]) == ["ab", "c"]


def test_long_sequences_come_first_and_the_function_is_traced_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    traces, sizes = [], []
    emit, search = searching.Searcher._emit, searching.Searcher.run
    monkeypatch.setattr(searching.Searcher, "_emit", lambda self, feed: (traces.append(1), emit(self, feed))[1])
    monkeypatch.setattr(
        searching.Searcher,
        "run",
        lambda self, feed: (sizes.append(feed["data/size0"].numpy().tolist()), search(self, feed))[1],
    )
    text = run(max_seqs=1, search_output_layer="decision")
    assert sizes == [[5], [3], [2], [1]] and len(traces) == 1
    assert text == (REFERENCE / "search_decision_txt.txt").read_text()
    assert "'eval' search epoch 80, finished after 4 steps" in capsys.readouterr().out


def test_error_report(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [([1, 2, 3], [1, 2]), ([4, 4], [3, 1]), ([0, 1, 2, 3, 4], [1, 2]), ([2], [3])]
    seqs = [{"data": np.array(a, "int32"), "classes": np.array(b, "int32")} for a, b in pairs]
    run(dev={**DATASET, "data": seqs}, search_data="dev", search_output_file="", log_verbosity=5)
    text = capsys.readouterr().out
    # one two / three one -> three / one two -> two two one / three -> nothing
    assert "decision: label errors 57.14% (4 of 7: 1 substitutions, 2 deletions, 1 insertions)" in text
    assert "dev: error 0.571" in text
    assert "word errors" not in text  # the labels are the words


def test_pieces_of_words_are_put_together_for_word_errors(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [([1, 2, 3], [1, 2]), ([4, 4], [3]), ([0, 1, 2, 3, 4], [2, 1, 2]), ([2], [3])]
    seqs = [{"data": np.array(a, "int32"), "classes": np.array(b, "int32")} for a, b in pairs]
    text = run(
        eval={**DATASET, "data": seqs},
        extern_data=vocab(labels=["</s>", "a@@", "b", "c"]),
        search_output_layer="decision",
    )
    assert text.splitlines()[0] == "a@@ b"  # the file has the labels as they are
    out = capsys.readouterr().out
    assert "decision: word errors" in out and " of 5:" in out


@pytest.mark.parametrize("file_format", ["txt", "py"])
@pytest.mark.parametrize("layer", ["emb", "enc"])
def test_arrays(layer: str, file_format: str) -> None:
    """An output that is no labels, such as the spectrogram of a synthesis, is written as nested lists."""
    text = run(search_output_layer=layer, search_output_file_format=file_format)
    if file_format == "py":
        found = list(ast.literal_eval(text).values())
    else:
        found = [ast.literal_eval(line) for line in text.splitlines()]
    values = checkpoint.read("net/network.080")
    for (data, _), value in zip(PAIRS, found):
        embedded = values["emb/W"][data] + values["emb/b"]
        expected = embedded if layer == "emb" else embedded.mean(axis=0)
        np.testing.assert_allclose(np.array(value), expected, rtol=1e-5, atol=1e-6)


def test_search_data_may_be_a_dataset() -> None:
    text = run(search_data=SETTINGS["eval"], eval=None, search_output_layer="decision")
    assert text == (REFERENCE / "search_decision_txt.txt").read_text()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"search_output_layer": "decisoin"}, "layer 'decisoin' is not part of the network.*'decision'"),
        (
            {
                "search_output_layer": "all",
                "network": {
                    **SETTINGS["network"],
                    "all": {"class": "reduce", "mode": "sum", "axis": "B", "from": "enc", "is_output_layer": True},
                },
            },
            "layer 'all' gives .* neither a sequence of labels nor an array for each sequence",
        ),
        ({"search_output_layer": 3}, "'search_output_layer' must be a string"),
        ({"search_output_file": "there.txt"}, "'there.txt' exists already"),
        ({"search_output_file": "no/folder/out"}, "folder .* can't be written"),
        ({"search_output_file_format": "json"}, "'search_output_file_format' is 'json'"),
        ({"search_output_layer": ["output", "decision"]}, "search_output_file_format = 'py'"),
        ({"eval": WITHOUT_TARGETS}, "no data key 'classes'.* search_do_eval = False"),
        ({"eval": None}, "no dataset 'eval' to search"),
        ({"search_data": 3}, "search_data must be the name of a dataset such as 'dev', or a dataset, not 3"),
        ({"search_output_file": "", "search_do_eval": False}, "would keep nothing: set search_output_file"),
        (
            {"search_output_file": "", "network": {k: v for k, v in SETTINGS["network"].items() if k != "decision"}},
            "would keep nothing: set search_output_file, .* or give the network a 'decide' layer",
        ),
        ({"search_data": "evl"}, "no dataset 'evl' to search.*'eval'"),
        ({"load": "", "model": "nothing/network"}, "no checkpoint"),
        ({"extern_data": vocab(**{"class": "SentencePieces"}, model_file="x")}, "SentencePieces: .*'x' does not exist"),
    ],
)
def test_bad_input(changes: dict[str, Any], message: str) -> None:
    pathlib.Path("there.txt").write_text("mine")
    with pytest.raises((ConfigError, DataError), match=message):
        run(**changes)
    assert pathlib.Path("there.txt").read_text() == "mine" and not pathlib.Path("out").exists()
