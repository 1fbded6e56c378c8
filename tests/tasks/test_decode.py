"""Task ``decode`` and ``returnn-tf decode``: words from posteriors, files, tuning, and what can go wrong."""

from __future__ import annotations

import json
import math
import pathlib
import re
from typing import Any

import numpy as np
import pytest

from returnn_tf.cli.main import main
from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.datasets import HDFWriter
from returnn_tf.engine.checkpoints import checkpoint
from tests import processes
from tests.run_tasks import run_task

NAMES = ["o@@", "ne", "tw@@", "o", "six"]
BLANK = len(NAMES)
SIZE = len(NAMES) + 1
#: The best labels of each frame, and the reference. The second one ends within a word.
SEQS: list[tuple[list[int], list[int]]] = [
    ([0, 0, BLANK, 1, BLANK, 4], [0, 1, 4]),
    ([BLANK, 2, 2, 0, BLANK], [2, 3]),
]
LEXICON = "one\to@@ ne\ntwo\ttw@@ o\n"
ARPA = "\\data\\\nngram 1=4\n\n\\1-grams:\n-1.5\t<unk>\n-0.5\t</s>\n-0.3\tone\n-0.8\ttwo\n\n\\end\\\n"
ROWS = np.zeros((SIZE, SIZE), "float32")
ROWS[:, 3] = 1.0  # "o" is second everywhere
ROWS[np.arange(SIZE), np.arange(SIZE)] = 4.0


def settings(**changes: Any) -> dict[str, Any]:
    data = [
        {"data": ROWS[path], "classes": np.array(labels, "int32"), "text": np.frombuffer(b"one two", "uint8")}
        for path, labels in SEQS
    ]
    dims = {"data": (SIZE, 2), "classes": (BLANK, 1), "text": (256, 1)}
    labels = {"class": "Vocabulary", "labels": NAMES, "unknown_label": None}
    linear = {"class": "linear", "activation": "log_softmax", "with_bias": False, "from": "data"}
    return {
        "task": "decode",
        "eval": {"class": "StaticDataset", "data": data, "output_dim": dims},
        "extern_data": {"data": {"dim": SIZE}, "classes": {"dim": BLANK, "sparse": True, "vocab": labels}},
        "target": "classes",
        "network": {
            "output": {**linear, "n_out": SIZE, "loss": "ctc", "loss_opts": {"output_in_log_space": True}},
        },
        **changes,
    }


@pytest.fixture(autouse=True)
def files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The posteriors of the network, a lexicon and a language model in the current folder."""
    monkeypatch.chdir(tmp_path)
    with HDFWriter("post.hdf", dim=SIZE, ndim=2) as writer:
        for number, (path, _) in enumerate(SEQS):
            probs = np.exp(ROWS[path]) / np.exp(ROWS[path]).sum(axis=1, keepdims=True)
            writer.insert_batch(probs[None], {0: np.array([len(path)], "int32")}, ["seq-%d" % number])
    pathlib.Path("lexicon.txt").write_text(LEXICON, "utf8")
    pathlib.Path("words.arpa").write_text(ARPA, "utf8")


FILES: dict[str, Any] = {"decode_posteriors": "post.hdf", "search_output_file": "out"}
WORDS: dict[str, Any] = {**FILES, "decode_lexicon": "lexicon.txt"}


def run(**changes: Any) -> str:
    config = Config(settings(**changes))
    assert run_task(config) == 0
    path = pathlib.Path(config.str("search_output_file", ""))
    return path.read_text("utf8") if path.is_file() else ""


@pytest.mark.parametrize(
    "changes, lines",
    [
        (FILES, ["one six", "two"]),
        (WORDS, ["one", "two"]),
        ({**WORDS, "decode_hot_words": {"six": 2.0}}, ["one six", "two"]),
        ({**WORDS, "decode_hot_words": {"six": -9}}, ["one", "two"]),
        ({**WORDS, "decode_lm": "words.arpa", "decode_lm_scale": 9.0, "decode_word_score": 8.0}, ["one", "one"]),
        ({**WORDS, "decode_lm": "words.arpa", "decode_lm_scale": 0.0}, ["one", "two"]),
        ({**FILES, "decode_blank": 4, "decode_lexicon": ""}, None),
    ],
)
def test_words(changes: Any, lines: Any) -> None:
    found = run(**changes).splitlines()
    if lines is None:
        assert len(found) == 2 and "six" not in found[0]
    else:
        assert found[0] == lines[0] and (changes.get("decode_lexicon") is None or found == lines)


def test_error_rate_and_speed(capsys: pytest.CaptureFixture[str]) -> None:
    run(**WORDS, log_verbosity=3)
    printed = capsys.readouterr().out
    assert "decode: word errors 33.33% (1 of 3: 0 substitutions, 1 deletions, 0 insertions)" in printed
    assert "decode: 2 sequences, 11 frames, 0.0" in printed and "on one core" in printed


def test_references_of_another_key(capsys: pytest.CaptureFixture[str]) -> None:
    run(**WORDS, decode_reference="text")
    assert "word errors 50.00% (2 of 4: 0 substitutions, 2 deletions, 0 insertions)" in capsys.readouterr().out


def test_tuning(capsys: pytest.CaptureFixture[str]) -> None:
    grid = {"lm_scale": [0.0, 30.0], "word_score": [0.0, -1.0]}
    run(**WORDS, decode_lm="words.arpa", decode_tune=grid)
    table = [line for line in capsys.readouterr().out.splitlines() if re.match(r"\s*\d+ .*%", line)]  # no progress
    assert [line.split()[:3] for line in table] == [
        ["0", "0", "33.33%"], ["0", "-1", "33.33%"], ["30", "0", "100.00%"], ["30", "-1", "100.00%"],
    ]  # fmt: skip
    assert [line.endswith("<- best") for line in table] == [True, False, False, False]
    assert not pathlib.Path("out").exists()


@pytest.mark.parametrize("confidence", ["posterior", "entropy"])
def test_nbest_and_parts_of_the_score(confidence: str) -> None:
    text = run(
        **WORDS, search_confidence=confidence, decode_lm="words.arpa", decode_nbest=3, search_output_file_format="jsonl"
    )
    for line in text.splitlines():
        entry = json.loads(line)
        assert entry["tag"].startswith("seq-")
        hypotheses = [entry, *entry["alternatives"]]
        assert 1 < len(hypotheses) <= 3
        for found in hypotheses:
            assert sum(found["parts"].values()) == pytest.approx(found["score"], abs=1e-4)
            assert set(found["parts"]) == {"acoustic", "lm"}
            assert all(0 < piece["confidence"] <= 1 for piece in [*found["words"], *found["labels"]])


def test_priors() -> None:
    """A label that is always likely is no news: without "o" the first sequence ends with "six"."""
    path = pathlib.Path("priors.txt")
    path.write_text("".join("%r\n" % math.log(p) for p in (0.1, 0.1, 0.1, 0.5, 0.1, 0.1)), "utf8")
    plain = run(**FILES, search_output_file_format="tsv").splitlines()
    pathlib.Path("out").unlink()
    shifted = run(**FILES, search_output_file_format="tsv", decode_priors="priors.txt").splitlines()
    assert [line.split("\t")[2] for line in plain] == [line.split("\t")[2] for line in shifted]
    assert all(float(b.split("\t")[1]) > float(a.split("\t")[1]) for a, b in zip(plain, shifted))


@pytest.mark.slow
def test_of_the_network_with_times(capsys: pytest.CaptureFixture[str]) -> None:
    config = settings()
    config["network"]["half"] = {
        "class": "slice", "axis": "T", "slice_step": 2, "from": "output", "is_output_layer": True,
    }  # fmt: skip
    net = Network.from_config(Config(config))
    net.set_param_values({"output/W": np.eye(SIZE, dtype="float32")})
    pathlib.Path("net").mkdir()
    checkpoint.save("net/network.001", net.stored_params, {}, checkpoint.CheckpointInfo(epoch=1, step=1, random_seed=1))
    found = run(
        model="net/network", decode_lexicon="lexicon.txt", search_output_file="out", search_output_file_format="ctm",
        search_frame_seconds=0.5,
    )  # fmt: skip
    rows = [line.split() for line in found.splitlines()]
    assert [(row[0], float(row[2]), float(row[3]), row[4]) for row in sorted(rows)] == [
        ("seq-0", 0.0, 2.1, "one"), ("seq-1", 0.5, 1.6, "two"),
    ]  # fmt: skip
    assert "real-time factor 0.0" in capsys.readouterr().out
    found = run(
        model="net/network", network=config["network"], decode_layer="half", decode_blank=BLANK,
        search_output_file="half", search_output_file_format="jsonl", search_frame_seconds=0.5,
    )  # fmt: skip
    (entry,) = [entry for entry in map(json.loads, found.splitlines()) if entry["tag"] == "seq-1"]
    assert entry["duration"] == 2.5  # of 5 frames; the layer has 3 of a second each, not of 2.5 / 3
    assert [(label["text"], label["start"]) for label in entry["labels"]] == [("tw@@", 1.0)]


@pytest.mark.slow
def test_two_ranks_write_the_file_of_one() -> None:
    """All sequences in the order of the dataset, with the error rate over all of them."""
    rng = np.random.RandomState(1)
    for name, dim, ndim in (("data", SIZE, 2), ("classes", BLANK, 1)):
        with HDFWriter(name + ".hdf", dim=dim, ndim=ndim) as writer:
            for number in range(7):
                frames = 4 + 3 * number % 5
                values = rng.normal(0, 3, [frames, SIZE]) if name == "data" else rng.randint(0, BLANK, [frames // 2])
                values = values.astype("float32" if name == "data" else "int32")
                writer.insert_batch(values[None], {0: np.array([len(values)], "int32")}, ["seq-%d" % number])
    given = {name: {"class": "HDFDataset", "files": [name + ".hdf"]} for name in ("data", "classes")}
    changes = {
        "eval": {"class": "MetaDataset", "datasets": given, "data_map": {key: (key, "data") for key in given}},
        "allow_random_model_init": True, "search_frame_seconds": 0.5, "search_output_file_format": "jsonl",
        "max_seqs": 2, "decode_nbest": 2,
    }  # fmt: skip
    config = settings(**changes)
    pathlib.Path("my.config").write_text("".join("%s = %r\n" % item for item in config.items()), "utf8")
    found = {}
    for name, launch in (("one", []), ("two", ["launch", "--processes", "2"])):
        command = [*launch, "decode", "my.config", "--lexicon", "lexicon.txt", "--output", name]
        done = processes.run(["-m", "returnn_tf", *command])
        assert done.returncode == 0, done.stdout + done.stderr
        errors = re.findall("word errors .*", done.stdout)
        found[name] = pathlib.Path(name).read_text("utf8"), errors
    assert found["one"] == found["two"]
    text, errors = found["one"]
    assert [json.loads(line)["tag"] for line in text.splitlines()] == ["seq-%d" % number for number in range(7)]
    assert len(errors) == 1


CONFIG_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({**FILES, "decode_lm": "words.arpa"}, "lacks 5 of the 6 labels"),
    ({**WORDS, "decode_lm": "words.arpa", "decode_lm_level": "label"}, "lacks 5 of the 6 labels"),
    ({**FILES, "decode_lm": "words.arpa", "decode_lm_level": "word"}, "is one of words: that needs a lexicon"),
    ({**FILES, "decode_layer": "data"}, "the index of|no loss or layer says which label is the blank"),
    ({**FILES, "decode_layer": "outptu"}, "outptu"),
    ({**FILES, "decode_blank": 9}, r"is 9, but layer 'output' has the labels 0 to 5"),
    ({**FILES, "decode_blank": 5, "decode_topology": "hmm"}, "there is no blank with decode_topology = 'hmm'"),
    ({**FILES, "decode_separator": "sil"}, "decode_separator.* is no label of the model"),
    ({**FILES, "decode_hot_words": 5}, "must be a file, a list of words and phrases, or a dict"),
    ({**WORDS, "decode_hot_words": ["x y"]}, "Hot word 'x' .*: the lexicon lacks it"),
    ({**FILES, "decode_reference": "words"}, "has no data key 'words'; it has: data, classes, text"),
    ({**FILES, "decode_reference": "data"}, "data key 'data' has values, not labels.*: classes, text"),
    ({**FILES, "search_output_file_format": "ctm"}, "files of posteriors do not tell how long their audio is"),
    ({**FILES, "decode_tune": {"lm_scael": [1.0]}}, "there is no scale 'lm_scael'. Did you mean 'lm_scale'"),
    ({**FILES, "decode_tune": {"blank_scale": [0.0]}}, "blank_scale = 0 must be above 0"),
    ({**FILES, "decode_tune": {"lm_scale": [0.5]}}, "lm_scale has no effect without decode_lm"),
    ({**FILES, "decode_tune": {"prior_scale": [0.5]}}, "prior_scale has no effect without decode_priors"),
    (
        {**FILES, "decode_topology": "hmm", "decode_tune": {"blank_scale": [0.5]}},
        "blank_scale has no effect as there is no blank",
    ),
    ({**FILES, "decode_posteriors": "no.hdf"}, "no.hdf"),
    ({**FILES, "decode_priors": "lexicon.txt"}, "has the log of a prior in each line"),
    ({**FILES, "decode_priors": "priors.txt"}, "has 2 numbers, but the model has 6 labels"),
    ({**FILES, "decode_lexicon": "bad.txt"}, r"labels that the model lacks, in 1 line: line 2 \('nn'\)"),
    (
        {**FILES, "decode_lexicon": "unspelt.txt"},
        r"has 1 word that the labels of the model can't spell: line 1 \(",
    ),
    ({**FILES, "decode_lexicon": "empty.txt"}, "is empty"),
    ({**FILES, "decode_hot_words": "weights.txt"}, r"'six' \(weights.txt, line 2\): its weight 'much' is no number"),
]


@pytest.mark.parametrize("changes, text", CONFIG_ERRORS)
def test_mistakes(changes: Any, text: str) -> None:
    contents = {
        "priors.txt": "-0.5\n-0.5\n", "bad.txt": "one o@@ ne\ntwo tw@@ nn\n", "unspelt.txt": "x\n", "empty.txt": "\n",
        "weights.txt": "o\t1\nsix\tmuch\n",
    }  # fmt: skip
    for name, content in contents.items():
        pathlib.Path(name).write_text(content, "utf8")
    with pytest.raises((ConfigError, DataError), match=text):
        run(**changes)


def test_values_that_are_no_posteriors() -> None:
    with HDFWriter("logits.hdf", dim=SIZE, ndim=2) as writer:
        writer.insert_batch(ROWS[None, :3] - 2, {0: np.array([3], "int32")}, ["x"])
    with pytest.raises(DataError, match=r"logits.hdf, sequence 'x' has neither probabilities nor their logs"):
        run(**{**FILES, "decode_posteriors": "logits.hdf"})


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Options of the command are the settings."""
    lines = ["%s = %r\n" % (key, value) for key, value in settings().items() if key not in ("task", "eval")]
    pathlib.Path("my.config").write_text("".join(lines), "utf8")
    args = ["decode", "my.config", "--posteriors", "post.hdf", "--lexicon", "lexicon.txt", "--output", "out"]
    assert main([*args, "--hot-words", "{'six': 2.0}", "++log_verbosity", "3"]) == 0
    assert pathlib.Path("out").read_text("utf8").splitlines() == ["one six", "two"]
    assert main([*args, "--lexicn", "x"]) == 2
    assert "Did you mean '--lexicon'?" in capsys.readouterr().err
    assert main(["decode", "--help"]) == 0
    assert "--lm-scale" in capsys.readouterr().out
    assert main([*args, "--tune", "lm_scale=1:0:0.5"]) == 2
    assert "there are no values" in capsys.readouterr().err
