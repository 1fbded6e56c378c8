"""``tools/calculate-word-error-rate.py`` and ``dump-dataset-raw-strings.py``: recorded rates, and texts of datasets."""

from __future__ import annotations

import ast
import gzip
import json
from pathlib import Path

import pytest

from returnn_tf.cli.main import main
from returnn_tf.datasets.core.safe_files import read_text_dict

CASES = json.loads((Path(__file__).parents[2] / "data" / "outputs" / "word_error_rate.json").read_text())
HYPS = "{'seq-0': 'a b', 'seq-1': 'c'}"
CONFIG = """
import numpy
def texts(*rows):
    return {"class": "StaticDataset", "data": [{"raw": numpy.array(t), "orth": numpy.frombuffer(t.encode(), "uint8"),
                                                "data": numpy.zeros([2, 1])} for t in rows]}
dev = texts("a b", "x c")
search_data = texts("b", "c")
other = texts("a b", "c")
def get(name):
    return other if name == "o" else dev
"""


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("hyps").write_text(HYPS)
    Path("a.config").write_text(CONFIG)


def wer(*args):
    return main(["tool", "calculate-word-error-rate", *args])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_recorded(case):
    for name in ("refs", "hyps"):
        Path(name).write_text(repr(case[name]))
    code = wer("--refs", "refs", "--hyps", "hyps", "--out", "out", *case["extra_args"])
    assert bool(code) == bool(case["exit_code"])
    assert (Path("out").read_text() if Path("out").exists() else None) == case["out_file"]


@pytest.mark.parametrize(
    "args, rate",
    [
        (["--config", "a.config"], "50.00"),  # search_data, as there is no eval: "a b" for "b"
        (["--config", "a.config", "++wer_data", "dev"], "25.00"),
        (["--config", "a.config", "++wer_data", "config:get('o')"], "0.00"),
        (["--config", "a.config", "--dataset", "dev"], "25.00"),
        (["--config", "a.config", "--dataset", "config:other", "--key", "orth"], "0.00"),
        (["--config", "a.config", "--dataset", "dev", "--startseq", "1"], "50.00"),
    ],
)
def test_references_of_a_dataset(args, rate):
    assert wer("--hyps", "hyps", "--out", "out", *args) == 0
    assert Path("out").read_text() == rate + "\n"


@pytest.mark.parametrize(
    "args, code",
    [
        (["--config", "a.config", "--dataset", "dev", "--endseq", "0", "--expect_full"], 1),
        (["--dataset", "{'class': 'TextDictDataset'}"], 2),
    ],
)
def test_references_of_a_dataset_that_are_not_enough(args, code):
    assert wer("--hyps", "hyps", "--out", "out", *args) == code
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "content, rate",
    [
        ("{'seq-0': [(-0.5, 'a b'), (nan, 'x')], 'seq-1': [(-inf, 'c d')]}", "33.33"),
        ("{'seq-0': [(float('nan'), 'b')], 'seq-1': [(float('-inf'), ''), (0, 'c')]}", "66.67"),
        ("{'seq-0': 'a\\tb\\n', 'seq-1': 'c'}", "0.00"),
    ],
)
def test_numbers_that_are_none(content, rate):
    with gzip.open("hyps.gz", "wt") as file:
        file.write(content)
    Path("refs").write_text("{'seq-0': [(1.0, 'a b')], 'seq-1': 'c'}")
    assert wer("--hyps", "hyps.gz", "--refs", "refs", "--out", "out") == 0
    assert Path("out").read_text() == rate + "\n"


@pytest.mark.parametrize(
    "hyps, args, code, message",
    [
        (HYPS, [], 2, "give one of --refs, --dataset or --config; got none"),
        (HYPS, ["--refs", "hyps", "--config", "a.config"], 2, "got --refs and --dataset or --config"),
        (HYPS, ["--refs", "none"], 1, "file 'none' does not exist"),
        (HYPS, ["--refs", "hyps", "--ref", "x"], 2, "unrecognized arguments"),
        (HYPS, ["--config", "a.config", "--dataset", "dav"], 2, "no dataset 'dav'. Did you mean 'dev'?"),
        (HYPS, ["--config", "a.config", "--key", "data"], 1, "holds float64 [2, 1], not text"),
        (HYPS, ["--config", "a.config", "--key", "row"], 2, "no data key 'row'. Did you mean 'raw'?"),
        ("{'a': []}", ["--refs", "refs"], 1, "the entry of 'a' is neither a text nor a list"),
        ("{'a': exit()}", ["--refs", "refs"], 1, "does not hold a Python literal"),
        ("{'a': '', 'b': ''}", ["--refs", "refs", "--verbosity", "9"], 2, "--verbosity"),
        ("{'a': ''}", ["--refs", "empty"], 1, "have no words"),
    ],
)
def test_mistakes(hyps, args, code, message, capsys):
    Path("refs").write_text("{'a': 'b'}")
    Path("empty").write_text("{'a': ''}")
    Path("hyps").write_text(hyps)
    assert wer("--hyps", "hyps", "--out", "out", *args) == code
    error = capsys.readouterr().err
    assert message in error and error.partition("\nMore: ")[0].strip().count("\n") == 0 and not Path("out").exists()


@pytest.mark.parametrize("out", ["refs.py", "refs.py.gz", "folder/refs.py"])
@pytest.mark.parametrize("key", ["raw", "orth"])
def test_texts_of_a_dataset(out, key):
    args = ["--config", "a.config", "--dataset", "config:get('dev')", "--key", key]
    assert main(["tool", "dump-dataset-raw-strings", *args, "--out", out]) == 0
    assert list(read_text_dict(out).items()) == [("seq-0", "a b"), ("seq-1", "x c")]
    if out == "refs.py":
        assert ast.literal_eval(Path(out).read_text()) and Path(out).read_text().splitlines()[1] == "'seq-0': 'a b',"
    assert main(["tool", "dump-dataset-raw-strings", *args, "--out", out]) == 1  # there is one


def test_some_texts_of_a_dataset(capsys):
    args = ["tool", "dump-dataset-raw-strings", "--config", "a.config", "--dataset", "dev", "--out", "x"]
    assert main([*args, "--startseq", "2"]) == 1
    Path("x").touch()
    assert main([*args, "--startseq", "1", "--endseq", "5"]) == 0
    assert read_text_dict("x") == {"seq-1": "x c"}
