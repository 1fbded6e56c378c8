"""``tools/dump-dataset.py``: its types, statistics and limits."""

from __future__ import annotations

import ast
import io
import re
from pathlib import Path

import numpy as np
import pytest

from returnn_tf.cli.main import main
from returnn_tf.datasets import Dataset, HDFWriter

CONFIG = """
import numpy
max_seq_length = {"data": 3}
def rows(n):
    rng = numpy.random.RandomState(n)
    return {"class": "StaticDataset", "input_dim": 2, "output_dim": {"data": [2, 2], "classes": [5, 1]}, "data": [
        {"data": rng.normal(3, 2, [1 + i, 2]).astype("float32"), "classes": rng.randint(0, 5, [1 + i]).astype("int32")}
        for i in range(n)]}
train = rows(13)
dev = dict(rows(3), seq_ordering="sorted_reverse")
eval = rows(4)
"""


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.config").write_text(CONFIG)


def dump(*args):
    return main(["tool", "dump-dataset", "a.config", *args])


@pytest.mark.parametrize(
    "args, tags",
    [
        ([], range(11)),
        (["--endseq", "-1"], range(13)),
        (["--startseq", "11", "--endseq", "12"], [11, 12]),
        (["--seqtags", "seq-12,seq-2"], [12, 2]),
        (["--dataset", "dev"], [2, 1, 0]),
        (["--dataset", "eval"], [0, 1, 2, 3]),
        (["--dataset", "config:rows(2)"], [0, 1]),
        (["--max_seq_length", "2"], [0, 1]),
        (["--max_seq_length", "config"], [0, 1, 2]),
        (["--max_seq_length", "config", "++batch_size", "auto"], [0, 1, 2]),
        (["--min_seq_length", "{'classes': 10}", "--endseq", "inf"], [9, 10, 11, 12]),
    ],
)
def test_which_sequences(args, tags, capsys):
    assert dump("--type", "print_tag", *args) == 0
    assert re.findall(r"seq-(\d+)", capsys.readouterr().out) == [str(tag) for tag in tags]


def test_stdout(capsys):
    assert dump("--endseq", "0", "--stdout_as_bytes", "--dataset", "{'class': 'Task12AX', 'num_seqs': 2}") == 0
    out = capsys.readouterr().out
    assert "seq-0 (position 0" in out and "classes as bytes: b'" in out and "(20 of 84)" in out
    assert dump("--endseq", "0", "--stdout_limit", "inf", "--dataset", "{'class': 'Task12AX', 'num_seqs': 2}") == 0
    assert " of 84)" not in capsys.readouterr().out


def test_number_of_sequences(capsys):
    assert dump("--get_num_seqs") == 0
    assert "num_seqs of epoch 1: 13" in capsys.readouterr().out


def test_files():
    assert dump("--type", "dump_tag", "--dump_prefix", "./p.", "--endseq", "-1") == 0
    assert Path("p.seq-tags.txt").read_text().splitlines() == ["seq-%d" % i for i in range(13)]
    assert dump("--type", "dump_seq_len", "--dump_prefix", "./p.", "--key", "classes", "--dataset", "dev") == 0
    assert ast.literal_eval(Path("p.seq-lens.txt").read_text()) == {"seq-2": 3, "seq-1": 2, "seq-0": 1}
    assert dump("--type", "numpy", "--dump_prefix", "./p.", "--endseq", "0") == 0
    values = next(iter(Dataset.from_config({"class": "HDFDataset", "files": [_hdf()]}).sequences())).data
    np.testing.assert_array_equal(np.loadtxt("p.0.data.txt.gz").astype("float32"), values["data"][0])
    assert np.loadtxt("p.0.targets.classes.txt.gz", dtype=int) == values["classes"][0]


def _hdf():
    assert main(["tool", "hdf-dump", "a.config", "train.hdf"]) == 0
    return "train.hdf"


@pytest.mark.slow
def test_plot():
    pytest.importorskip("matplotlib")
    assert dump("--type", "plot", "--endseq", "1", "--dump_prefix", "./p.") == 0
    assert sorted(path.name for path in Path().glob("p.*")) == ["p.0.png", "p.1.png"]


def test_interactive(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("print('has', data['data'].shape, sequence.tag)\n"))
    assert dump("--type", "interactive", "--endseq", "1") == 0
    assert "has (1, 2) seq-0" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["data", "classes"])
def test_statistics(key, capsys):
    """Over all frames, with the deviation of the population, in the format of numpy.savetxt."""
    args = ["tool", "dump-dataset", _hdf(), "--endseq", "-1", "--type", "null", "--key", key]
    assert main([*args, "--stats", "--dump_stats", "out/s"]) == 0
    assert "std_dev" in capsys.readouterr().out
    found = Dataset.from_config({"class": "HDFDataset", "files": ["train.hdf"]}).sequences()
    frames = np.concatenate([seq.data[key] for seq in found]).astype("float64")
    wanted = {"mean": frames.mean(0), "std_dev": frames.std(0), "min": frames.min(0), "max": frames.max(0)}
    for name, value in wanted.items():
        lines = Path("out/s.%s.txt" % name).read_text().splitlines()
        assert all(re.fullmatch(r"-?\d\.\d{18}e[+-]\d\d", line) for line in lines)
        np.testing.assert_allclose(np.array(lines, float), np.atleast_1d(value), rtol=1e-12)
    assert ast.literal_eval(Path("out/s.info.txt").read_text())["total_data_len"] == len(frames) == 91


def test_hdf_without_a_time_axis():
    with HDFWriter("x.hdf", ndim=1, dim=3) as writer:
        writer.insert_batch(np.zeros([2, 3], "float32"), {}, ["a", "b"])
    assert main(["tool", "dump-dataset", "x.hdf", "--type", "null", "--dump_stats", "s"]) == 0
    assert len(Path("s.mean.txt").read_text().split()) == 3


@pytest.mark.parametrize(
    "args, code, message",
    [
        (["--type", "nul"], 2, "invalid choice"),
        (["--stdout"], 2, "unrecognized arguments"),
        (["--dataset", "trein"], 2, "Did you mean 'train'?"),
        (["--key", "date", "--stats", "--type", "null"], 2, "Did you mean 'data'?"),
        (["--stats", "--type", "print_tag"], 2, "reads no data"),
        (["--seqtags", "seq-99"], 1, "seq-99"),
        (["--max_seq_length", "x"], 2, "neither a number"),
        (["--max_seq_length", "{'date': 2}"], 2, "there is no data key 'date'"),
        (["--startseq", "-1"], 2, "must not be negative"),
        (["--startseq", "13", "--endseq", "-1"], 1, "has no sequences"),
        (["--type", "null", "--dump_stats", "/dev/null/x"], 1, "can't be written"),
        (["--verbosity", "9"], 2, "levels from 0 to 5"),
    ],
)
def test_mistakes(args, code, message, capsys, tmp_path):
    assert dump(*args) == code
    error = capsys.readouterr().err
    assert message in error and error.partition("\nMore: ")[0].strip().count("\n") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a.config"]
