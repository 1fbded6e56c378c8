"""Task ``search``: the same output as another program wrote for its model, the options, and what can go wrong."""

from __future__ import annotations

import ast
import gzip
import pathlib
import shutil
from typing import Any, Optional

import numpy as np
import pytest

import returnn_tf
from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.datasets import Dataset, HDFWriter
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.search import searcher as searching
from returnn_tf.engine.search.end_labels import end_labels
from returnn_tf.engine.search.from_python import search
from returnn_tf.engine.search.labels import labels_of
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.tensor import extern_data_options, parse_extern_data
from tests.run_tasks import run_task

REFERENCE = pathlib.Path(__file__).parent.parent / "data/outputs/search"
BEAMS: dict[str, list[Any]] = ast.literal_eval((REFERENCE / "search_beam_py.txt").read_text())
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


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["txt", "py"])
def test_best_hypotheses_are_those_of_the_reference(file_format: str) -> None:
    text = run(search_output_layer="decision", search_output_file_format=file_format)
    assert text == (REFERENCE / ("search_decision_%s.txt" % file_format)).read_text()


@pytest.mark.slow
def test_beams_are_those_of_the_reference() -> None:
    expected = (REFERENCE / "search_beam_txt.txt").read_text().splitlines()
    got = run().splitlines()
    assert len(got) == len(expected)
    for line, reference in zip(got, expected):
        assert_same_beams(ast.literal_eval(line), ast.literal_eval(reference))


@pytest.mark.slow
def test_beams_as_a_dict_are_those_of_the_reference() -> None:
    got, expected = run(search_output_file_format="py"), (REFERENCE / "search_beam_py.txt").read_text()
    beams = ast.literal_eval(expected)
    assert list(ast.literal_eval(got)) == list(beams)
    for tag, found in ast.literal_eval(got).items():
        assert_same_beams(found, beams[tag])
    assert [line.split(",")[0][:4] for line in got.splitlines()] == [
        line.split(",")[0][:4] for line in expected.splitlines()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("layer, hypotheses", [("decision", 1), ("output", 3), ("enc", 1)])
def test_lines_with_tags_and_scores(layer: str, hypotheses: int) -> None:
    """The best of each beam, or all of it; what is not the result of a search has no score."""
    text = run(search_output_layer=layer, search_output_file_format="tsv")
    rows = [line.split("\t") for line in text.splitlines()]
    assert [tag for tag, _, _ in rows] == [tag for tag in BEAMS for _ in range(hypotheses)]
    if layer == "enc":
        assert all(score == "" and len(ast.literal_eval(values)) == 5 for _, score, values in rows)
        return
    expected = [pair for found in BEAMS.values() for pair in found[:hypotheses]]
    assert_same_beams([(float(score), text) for _, score, text in rows], expected)


@pytest.mark.slow
def test_tabs_in_lines_with_tags(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(
        search_output_layer="decision", search_output_file_format="tsv",
        extern_data=vocab(labels=["</s>", "a\tb", "c\nd", "e"]),
    )  # fmt: skip
    assert text.splitlines()[0].split("\t")[2] == "a\\tb c\\nd"
    assert "Wrote out: decision for 4 sequences, a line each: tag, log score, text" in capsys.readouterr().out


@pytest.mark.slow
def test_compressed_output_without_targets() -> None:
    run(
        eval=WITHOUT_TARGETS, search_output_file="out.gz", search_output_file_format="py", search_do_eval=False,
        search_output_layer="decision",
    )  # fmt: skip
    with gzip.open("out.gz", "rt") as got, gzip.open(REFERENCE / "search_noeval_py_gz.txt.gz", "rt") as expected:
        assert got.read() == expected.read()
    assert sorted(path.name for path in pathlib.Path().iterdir()) == ["net", "out.gz"]


@pytest.mark.slow
def test_several_layers() -> None:
    found = ast.literal_eval(run(search_output_layer=["decision", "output"], search_output_file_format="py"))
    assert list(found) == ["seq-0", "seq-1", "seq-2", "seq-3"]
    for entry in found.values():
        assert list(entry) == ["decision", "output"]
        assert entry["decision"] == entry["output"][0][1]


@pytest.mark.slow
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
        label_names = {"classes": ["0", "a", "b", "c"]}

    extern_data = parse_extern_data(extern_data_options({"extern_data": SETTINGS["extern_data"]}))
    classes = extern_data["classes"]
    assert labels_of(classes, Named, extern_data, None).text([1, 3, 7]) == "ac7"
    other = classes.replace(sparse_dim=extern_data["data"].sparse_dim)
    assert labels_of(other, Named, extern_data, "classes").text([1, 3]) == "1 3"


@pytest.mark.parametrize(
    "kind, layer", [("attention", "output_decision"), ("transducer", "recognised"), ("ctc", "output_decision")]
)
def test_labels_with_one_more_for_the_end_have_the_names_of_the_others(kind: str, layer: str) -> None:
    class Named:
        label_names = {"classes": ["sound%d" % index for index in range(10)]}

    text = (pathlib.Path(returnn_tf.__file__).parent / "cli" / "new" / (kind + ".config")).read_text()
    pathlib.Path("new.config").write_text(text)
    net = Network.from_config(Config.from_file("new.config"), search=True)
    output = next(node.output for node in net.plan.roots() if node.path == layer)
    assert labels_of(output, Named, net.extern_data, "classes").text([9, 0]) == "sound9 sound0"


@pytest.mark.slow
@pytest.mark.parametrize("dim", [4, None])
def test_a_placeholder_in_a_file_is_no_name(dim: Optional[int]) -> None:
    """HDFWriter has to write names of labels, also where there are none."""
    with HDFWriter("x.hdf", dim=5, ndim=1, extra_type={"classes": (dim, 1, "int32")}) as writer:
        for number, (data, classes) in enumerate(PAIRS):
            targets = {"classes": [np.array(classes, "int32")]}
            writer.insert_sequences([np.array(data, "int32")], ["seq-%d" % number], targets)
    hdf = {"class": "HDFDataset", "files": ["x.hdf"]}
    classes = {"dim": 4, "sparse": True}
    for number, dataset in enumerate([hdf, {"class": "ConcatDataset", "datasets": [hdf]}]):
        output = run(
            eval=dataset,
            extern_data={"data": {"dim": 5, "sparse": True}, "classes": classes},
            search_output_layer="decision",
            search_output_file="found%d" % number,
        )
        assert output.splitlines() == ["1 2", "3", "2 2 1", ""]
    assert Dataset.from_config(hdf).labels["classes"] == ["dummy-label"], "as in RETURNN"


def test_bytes_and_pieces_of_words() -> None:
    """256 labels without names, or of a vocabulary of bytes, are UTF-8; what is none does not end the search."""

    class Dataset:
        label_names: dict[str, list[str]] = {}

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


@pytest.mark.slow
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


@pytest.mark.slow
def test_error_report(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [([1, 2, 3], [1, 2]), ([4, 4], [3, 1]), ([0, 1, 2, 3, 4], [1, 2]), ([2], [3])]
    seqs = [{"data": np.array(a, "int32"), "classes": np.array(b, "int32")} for a, b in pairs]
    run(dev={**DATASET, "data": seqs}, search_data="dev", search_output_file="", log_verbosity=5)
    text = capsys.readouterr().out
    # one two / three one -> three / one two -> two two one / three -> nothing
    assert "decision: label errors 57.14% (4 of 7: 1 substitutions, 2 deletions, 1 insertions)" in text
    assert "dev: error 0.571" in text
    assert "word errors" not in text  # the labels are the words


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_search_data_may_be_a_dataset() -> None:
    text = run(search_data=SETTINGS["eval"], eval=None, search_output_layer="decision")
    assert text == (REFERENCE / "search_decision_txt.txt").read_text()


SCORES = {"class": "softmax", "from": "data", "loss": "ce", "target": "classes"}


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
        ({"eval": None, "network": {"output": SCORES}}, "does not search: it has no layer 'choice'"),
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


def _with_end(**end: Any) -> dict[str, Any]:
    """Return the network with another layer ``end`` in its loop."""
    output = SETTINGS["network"]["output"]
    layers = {name: layer for name, layer in end.items() if isinstance(layer, dict)}
    options = {name: value for name, value in end.items() if not isinstance(value, dict)}
    unit = {**output["unit"], **layers}
    return {**SETTINGS["network"], "output": {**output, **options, "unit": unit}}


def _compare(**options: Any) -> dict[str, Any]:
    return {"class": "compare", "from": "output", **options}


#: Other ways to say that label 0 ends a hypothesis.
ENDS: list[dict[str, Any]] = [
    {},
    {"end": _compare(kind="less_equal", value=0)},
    {"eos": {"class": "constant", "value": 0}, "end": {"class": "compare", "from": ["output", "eos"]}},
    {"end": {"class": "eval", "from": "output", "eval": "tf.equal(source(0), 0)", "out_type": {"dtype": "bool"}}},
    {
        "zero": _compare(value=0),
        "late": {"class": "compare", "from": ":i", "kind": "greater_equal", "value": 5},
        "end": {"class": "combine", "kind": "logical_or", "from": ["zero", "late"]},
    },
    {
        "zero": _compare(value=0),
        "small": _compare(kind="less", value=3),
        "end": {"class": "combine", "kind": "logical_and", "from": ["zero", "small"]},
    },
    {"end": _compare(value=0), "include_eos": True},  # the hypotheses have it, too
]


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_the_end_label_of_the_references_is_no_error(end: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """What the search found is exactly what was said; each reference ends with the label that ends the search."""
    run(network=_with_end(**end), search_output_file="")
    text = capsys.readouterr().out
    assert "decision: label errors 0.00% (0 of 6: 0 substitutions, 0 deletions, 0 insertions)" in text
    assert "decision: the end label 0 (</s>) of 4 references does not count" in text
    assert "eval: error 0.0\n" in text and "word errors" not in text


@pytest.mark.slow
@pytest.mark.parametrize("end", [ENDS[0], ENDS[-1]], ids=["", "in the hypotheses"])
def test_the_end_label_of_the_references_is_none_of_their_text(end: dict[str, Any]) -> None:
    config = Config({**SETTINGS, "network": _with_end(**end)})
    found = search(load_network(config, search=True)[0], DATASET, "decision")
    assert [each.reference for each in found] == [each.text.replace("</s>", "").strip() for each in found]
    assert (found.errors.total, found.errors.reference) == (0, 6)


def _decision(**options: Any) -> dict[str, Any]:
    return {**SETTINGS["network"], "decision": {**SETTINGS["network"]["decision"], **options}}


POSTFIX = {"class": "postfix_in_time", "postfix": 0, "from": "data:classes"}
UNKNOWN_END = {
    "end": {
        "class": "eval", "from": ["output", "s"], "out_type": {"dtype": "bool", "shape": ()},
        "eval": "tf.equal(source(0, auto_convert=False), 0) & (source(1, auto_convert=False)[:, 0] < 9)",
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "network, has_end, errors",
    [
        ({**_decision(target="with_end"), "with_end": POSTFIX}, False, "0 of 6"),  # the reference is a layer
        (_decision(), False, "0 of 6"),
        (_decision(target="other"), False, "0 of 6"),  # other labels: nothing is known of their end
        (_decision(loss_opts={"label_map": {3: 0}}), False, "0 of 6"),  # 3 in the end is still a label
        (_with_end(**UNKNOWN_END), True, "4 of 10"),  # something else than the label decides, too
    ],
)
def test_which_end_labels_count(
    network: dict[str, Any], has_end: bool, errors: str, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = [seq["classes"] if has_end else seq["classes"][:-1] for seq in (SEQS if has_end else SEQS[:3])]
    seqs = [{"data": seq["data"], "classes": row, "other": row} for seq, row in zip(SEQS, labels)]
    dims = {**DATASET["output_dim"], "other": (5, 1)}
    extern_data = {**SETTINGS["extern_data"], "other": {"dim": 5, "sparse": True}}
    dataset = {**DATASET, "data": seqs, "output_dim": dims}
    run(network=network, eval=dataset, extern_data=extern_data, search_output_file="")
    assert "(%s:" % errors in capsys.readouterr().out


@pytest.mark.parametrize(
    "end, expected",
    [
        ({}, {0}),
        ({"end": _compare(kind="less_equal", value=1)}, {0, 1}),
        (
            {
                "zero": _compare(value=0),
                "end3": _compare(value=3),
                "end": {"class": "combine", "kind": "logical_or", "from": ["zero", "end3"]},
            },
            {0, 3},
        ),
        ({"end": {"class": "compare", "from": ["output", "prev:output"]}}, set()),
        ({"end": _compare(value=7)}, set()),
        (UNKNOWN_END, set()),
    ],
)
def test_end_labels(end: dict[str, Any], expected: set[int]) -> None:
    plan = plan_from_config(Config({**SETTINGS, "network": _with_end(**end)}), search=True)
    by_path, classes = plan.by_path(), plan.extern_data["classes"]
    assert end_labels(plan, by_path["decision"], classes) == end_labels(plan, by_path["output"], classes) == expected


@pytest.mark.slow
@pytest.mark.parametrize("names, words", [("_abc", False), (" abc", True)])
def test_words_of_characters(names: str, words: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Where none of them is a space, a sequence would be a single word."""
    seqs = [{**SEQS[0], "classes": np.array([3, 1], "int32")}, *SEQS[1:]]
    run(eval={**DATASET, "data": seqs}, extern_data=vocab(labels=list(names)), search_output_file="")
    text = capsys.readouterr().out
    assert "decision: label errors" in text and ("word errors" in text) is words
