"""``tools/hdf_dump.py``: the files are those that RETURNN wrote of the same datasets, up to the last attribute."""

from __future__ import annotations

import gzip
from pathlib import Path

import h5py
import numpy as np
import pytest

from returnn_tf.cli.main import main
from returnn_tf.datasets import Dataset

RECORDED = Path(__file__).parents[2] / "data" / "datasets" / "hdf"
CONVERT = "{'class': 'TaskNumberBaseConvertDataset', 'input_base': 8, 'output_base': 2, 'num_seqs': 5, %s}"
CASES = {
    "tool_12ax": ["{'class': 'Task12AXDataset', 'num_seqs': 4}"],
    "tool_config": ["a.config"],
    "tool_dummy_range": [
        "{'class': 'DummyDataset', 'num_seqs': 8, 'input_dim': 4, 'output_dim': 6, 'seq_len': 6}",
        *("--start_seq", "1", "--end_seq", "3", "--epoch", "2"),
    ],
    "writer_static": [str(RECORDED / "writer_static.hdf")],
}


def content(path) -> tuple[dict, dict]:
    """Return attributes and arrays of a file."""
    with h5py.File(path, "r") as file:
        attributes = {"/": dict(file.attrs)}
        arrays = {}

        def visit(name, item):
            attributes[name] = {key: np.asarray(value).tolist() for key, value in item.attrs.items()}
            if isinstance(item, h5py.Dataset):
                arrays[name] = (item.dtype.str, item[:].tolist())

        file.visititems(visit)
    return attributes, arrays


@pytest.mark.parametrize("name", CASES)
def test_copies_as_recorded(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("a.config").write_text("#!rnn.py\ntrain = " + CONVERT % "'fixed_random_seed': 7")
    Path("out.hdf").touch()  # as made by a job
    assert main(["tool", "hdf_dump", CASES[name][0], "out.hdf", *CASES[name][1:]]) == 0, capsys.readouterr().err
    assert content("out.hdf") == content(RECORDED / (name + ".hdf"))
    assert {path.name for path in tmp_path.iterdir()} == {"a.config", "out.hdf"}


def test_targets_alone(tmp_path, monkeypatch):
    """Data that is a target is stored as classes; text is left out, also where it comes with its labels."""
    monkeypatch.chdir(tmp_path)
    Path("lines").write_text("b a\na\n")
    Path("words").write_text("a\nb\n")
    vocabulary = "'orth_vocab': {'vocab_file': 'words', 'unknown_label': None}"
    assert main(["tool", "hdf-dump", "{'class': 'LmDataset', 'corpus_file': 'lines', %s}" % vocabulary, "x.hdf"]) == 0
    attributes, arrays = content("x.hdf")
    assert attributes["/"] == {} and sorted(arrays) == ["seqLengths", "seqTags"] + [
        "targets/%s/classes" % part for part in ("data", "labels")
    ]
    found = Dataset.from_config({"class": "HDFDataset", "files": ["x.hdf"]})
    assert [seq.data["classes"].tolist() for seq in found.sequences()] == [[1, 0], [0]]


def test_axes_after_the_frames(tmp_path, monkeypatch):
    """More than two axes, and one value per sequence."""
    monkeypatch.chdir(tmp_path)
    Path("a.config").write_text(
        "import numpy\ntrain = {'class': 'StaticDataset', 'data': ["
        "{'data': numpy.full([n, 2, 3], n, 'float32'), 'x': numpy.array(n, 'int64')} for n in (1, 2)]}"
    )
    assert main(["tool", "hdf-dump", "a.config", "x.hdf"]) == 0
    _, arrays = content("x.hdf")
    assert np.shape(arrays["inputs"][1]) == (3, 2, 3) and arrays["targets/data/x"] == ("<i8", [1, 2])


@pytest.mark.parametrize(
    "args, code, message",
    [
        (["none.config", "x.hdf"], 2, "config file 'none.config' not found"),
        (["some/where", "x.hdf"], 2, "there is no config 'some/where'"),
        (["{'class': 'Task12AX'", "x.hdf"], 2, "is not a dict of plain values"),
        (["{'class': 'Task12AX'}", "x.hdf"], 2, "is endless: give the number of the last sequence"),
        (["{'class': 'Task12AX', 'num_seqs': 1}", "x.hdf", "--start_seq", "1"], 1, "there are no sequences to write"),
        (["{'class': 'Task12AX', 'num_seqs': 1}", "no/x.hdf/x", "--ende_seq", "1"], 2, "Did you mean '--end_seq'"),
        (["config:train", "x.hdf"], 2, "is of a config, but no config is given"),
        (["Task12AX:num_seqs=2", "x.hdf", "++a", "1"], 2, "is a dataset itself"),
    ],
)
def test_mistakes(args, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["tool", "hdf_dump", *args]) == code
    error = capsys.readouterr().err
    assert message in error and error.partition("\nMore: ")[0].strip().count("\n") == 0
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Return two texts, one of them with factors, and their vocabularies."""
    for path in RECORDED.glob("mt*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with gzip.open(tmp_path / "mt.tgt.txt.gz", "wb") as file:
        file.write((RECORDED / "mt.tgt.txt").read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def convert(*args):
    given = ["-t", "mt.tgt.txt", "-w", "mt.tgt.vocab.pkl", "-o", "x.hdf", *args]
    return main(["tool", "hdf_dump_translation_dataset", *given])


PLAIN = ["-s", "mt.src.txt", "-v", "mt.src.vocab.pkl"]
FACTORS = ["-s", "mtf.src.txt", "-v", "mt.src.vocab.pkl,mtf.factor.vocab.pkl", "--source_factors", "case"]


@pytest.mark.parametrize(
    "name, args",
    [
        ("tool_translation", [*PLAIN, "-n", "5", "-d", "100", "-c", "gzip"]),
        ("tool_translation", [*PLAIN, "-t", "mt.tgt.txt.gz", "-d", "3", "-l", "2"]),
        ("tool_translation_factors", [*FACTORS, "-n", "5"]),
    ],
)
def test_parallel_texts_as_recorded(name, args, texts):
    Path("x.hdf").touch()
    assert convert(*args) == 0
    assert content("x.hdf") == content(RECORDED / (name + ".hdf"))
    with h5py.File("x.hdf", "r") as file:
        assert file["inputs"].compression == ("gzip" if "gzip" in args else None)


@pytest.mark.parametrize(
    "args, code, message",
    [
        ([*PLAIN, "-n", "6"], 1, "has 5 lines, not 6"),
        ([*PLAIN, "-t", "short"], 1, "'short' has 1 lines, but 'mt.src.txt' has more"),
        ([*PLAIN, "-t", "none"], 1, "'none' can't be read: No such file"),
        ([*FACTORS[:2], *FACTORS[2:4]], 2, "words and 0 factors need 1 vocabularies, but there are 2"),
        (["-s", "mt.src.txt", *FACTORS[2:]], 1, "line 1: 'the' has 1 parts, not 2"),
        (
            [*FACTORS, "--target_factors", "case", "-w", "mt.tgt.vocab.pkl,mt.tgt.vocab.pkl"],
            2,
            "have the same data key",
        ),
        ([*PLAIN, "-w", "short"], 1, "short"),
        ([*PLAIN, "-x"], 2, "unrecognized arguments"),
        ([*PLAIN, "-o", "mt.tgt.txt"], 1, "exists already"),
    ],
)
def test_mistakes_in_parallel_texts(args, code, message, texts, capsys):
    Path("short").write_text("das\n")
    before = sorted(texts.iterdir())
    assert convert(*args) == code
    error = capsys.readouterr().err
    assert (
        message in error
        and error.partition("\nMore: ")[0].strip().count("\n") == 0
        and sorted(texts.iterdir()) == before
    )
