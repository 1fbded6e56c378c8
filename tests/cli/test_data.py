"""``returnn-tf data info|dump|to-hdf``: what they print and write."""

from __future__ import annotations

import os
import pickle
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from returnn_tf.cli.data import conversion
from returnn_tf.cli.data.durations import duration
from returnn_tf.cli.data.info import histogram
from returnn_tf.cli.main import main
from returnn_tf.datasets import Dataset, HDFWriter
from returnn_tf.datasets.core.registry import DATASETS
from tests.registries import registered_here

RECORDED = Path(__file__).parents[1] / "data" / "datasets" / "hdf"
TASK = "{'class': 'Task12AXDataset', 'num_seqs': %d}"
STREAM = """
import numpy
from returnn_tf.datasets.core.data_spec import Example
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.stream import StreamDataset

@register_dataset("NumbersForTest")
class Numbers(StreamDataset):
    makes_order = True

    def stream(self, epoch, *, seq_list=None):
        for i in range(40 if epoch == 1 else 10):
            yield Example(i, "e%d-%d" % (epoch, i), {"data": numpy.full([1 + i % 3, 2], i, "float32")})

train = {"class": "NumbersForTest", "partition_epoch": 2}
"""


@pytest.fixture
def labelled(tmp_path: Path) -> str:
    """Return an HDF file with 3 sequences: features, labels with names, text."""
    path = str(tmp_path / "x.hdf")
    types = {"classes": (3, 1, "int32"), "text": (None, 1, "string")}
    with HDFWriter(path, dim=2, extra_type=types, extra_labels={"classes": ["a", "b", "<unk>"]}) as writer:
        for name, length in (("s/1", 4), ("s/2", 1), ("s/3", 7)):
            features = np.arange(2 * length, dtype="float32").reshape(1, length, 2)
            extra = {"classes": [np.array([0, 2, 2, 0][: 1 + length // 2], "int32")], "text": [np.array(["é " + name])]}
            writer.insert_batch(features, [length], [name], extra)
    return path


def test_info(labelled, capsys):
    assert main(["data", "info", labelled, "--bins", "3"]) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert "3 sequences" in out
    assert " ".join(lines[4]) == "data values [T, 2] 2 float32 12 1 4.0 4 7"
    assert " ".join(lines[5]) == "classes labels [T] 3 int32 8 1 2.7 3 4"
    assert [line[-1] for line in lines if line[1:2] == ["-"]][:3] == ["1", "1", "1"]  # lengths 1, 4, 7
    # labels 0 2 2, 0, 0 2 2 0
    assert ["0", "50.00", "%", "4", "'a'"] in lines and ["2", "50.00", "%", "4", "'<unk>'"] in lines
    assert "of 3 (1 do not occur)" in out and "out of vocabulary ('<unk>'): 4 of 8, 50.00 %" in out
    values = np.concatenate([np.arange(8), np.arange(2), np.arange(14)])
    assert "mean %.4g, standard deviation %.4g, from 0 to 13" % (values.mean(), values.std()) in out


def test_info_of_parts_of_a_dataset(capsys):
    """The whole corpus however it is divided; an epoch; some sequences; hours of audio."""
    task = "{'class': 'Task12AXDataset', 'num_seqs': 10, 'partition_epoch': 3}"
    found = []
    for options in ([], ["--epoch", "2"], ["--seqs", "2", "--keys", "classes"]):
        assert main(["data", "info", task, *options]) == 0
        found.append(capsys.readouterr().out.splitlines())
    assert [lines[1] for lines in found] == ["10 sequences", "3 sequences in epoch 2", "2 sequences read of 10"]
    assert not any(line.startswith("data ") for line in found[2])


def test_words_outside_of_the_vocabulary(tmp_path, capsys):
    """By the label which the dataset names."""
    (tmp_path / "lines.txt").write_text("a b c\nb b d\n")
    (tmp_path / "words").write_text("{'a': 0, 'b': 1, 'OOV': 2}")
    vocabulary = {"class": "Vocabulary", "vocab_file": str(tmp_path / "words"), "unknown_label": "OOV"}
    dataset = {"class": "LmDataset", "corpus_file": str(tmp_path / "lines.txt"), "orth_vocab": vocabulary}
    assert main(["data", "info", repr(dataset)]) == 0
    assert "out of vocabulary ('OOV'): 2 of 6, 33.33 %" in capsys.readouterr().out


def test_memory_does_not_grow_with_the_dim(tmp_path, capsys):
    """A vocabulary of some bytes may have any ids."""
    words = pickle.dumps({"a": 0, "b": 5, "cat": 2**31 - 2})
    for name, content in (("source.train", b"a cat a\n"), ("target.train", b"b\n")):
        (tmp_path / name).write_bytes(content)
    for name in ("source.vocab.pkl", "target.vocab.pkl"):
        (tmp_path / name).write_bytes(words)
    dataset = {"class": "TranslationDataset", "path": str(tmp_path), "file_postfix": "train"}
    tracemalloc.start()
    try:
        assert main(["data", "info", repr(dataset)]) == 0
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert "labels of 'data', of 2147483647 (2147483645 do not occur)" in out
    assert ["0", "66.67", "%", "2"] in lines and ["2147483646", "33.33", "%", "1"] in lines
    assert main(["tool", "hdf-dump", repr(dataset), str(tmp_path / "x.hdf")]) == 1
    assert "key 'classes' has 2147483647 labels, too many to name" in capsys.readouterr().err


def test_histogram():
    assert histogram([1, 1, 1, 1, 2, 5], 2) == ["  1 - 3  %s 5" % ("#" * 40), "  4 - 5  %-40s 1" % ("#" * 8)]
    assert histogram([7], 5) == ["  7 - 7  %s 1" % ("#" * 40)]


@pytest.mark.slow
def test_dump(labelled, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "pictures"
    assert main(["data", "dump", labelled, "--tags", "s/3,s/1", "--values", "2", "--plot", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[:8] == [
        "s/3 (position 0, index 2 in the corpus)",
        "  data float32 [7, 2]",
        "    [0. 1.]",
        "    [2. 3.]",
        "    ... (2 of 7)",
        "  classes int32 [4]",
        "    0=a 2=<unk> ... (2 of 4)",
        "  text string [1]",
    ]
    assert "'é s/3'" in out and "s/2" not in out
    for name in ("s_1.png", "s_3.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


NASTY = "\x1b]0;title\x07\nerror: fake\r\u202e"


def test_what_controls_terminals_is_escaped(tmp_path, capsys):
    """In tags, labels and names of keys, wherever data is shown."""
    path = str(tmp_path / "a.hdf")
    types = {"k" + NASTY: (2, 1, "int32")}
    with HDFWriter(path, dim=2, extra_type=types, extra_labels={"k" + NASTY: ["a" + NASTY, "b"]}) as writer:
        extra = {"k" + NASTY: [np.zeros(2, "int32")]}
        writer.insert_batch(np.zeros([1, 3, 2], "float32"), [3], ["s" + NASTY], extra)
    tool = [["tool", "dump-dataset", path, "--type", kind] for kind in ("stdout", "print_tag", "print_shape")]
    for command in (["data", "dump", path], ["data", "info", path], *tool):
        assert main(command) == 0
        captured = capsys.readouterr()
        shown = captured.out + captured.err
        assert not set("\x1b\x07\r\u202e") & set(shown), command
        assert not [line for line in shown.splitlines() if line.startswith("error")], command
        assert "\\x1b]0;title" in shown, command


def content(path: str) -> list[tuple]:
    """Return tags and data of all sequences."""
    dataset = Dataset.from_config({"class": "HDFDataset", "files": [path]})
    return [(s.tag, {key: (v.dtype, v.tolist()) for key, v in s.data.items()}) for s in dataset.sequences()]


@pytest.mark.parametrize(
    "name", ["handmade_3d", "handmade_targets_only", "simple_extra", "simple_2d_dyn_sparse", "simple_dense_1d"]
)
def test_to_hdf_keeps_everything(name, tmp_path):
    source, target = str(RECORDED / (name + ".hdf")), str(tmp_path / "out.hdf")
    assert main(["data", "to-hdf", source, "--output", target, "--processes", "1"]) == 0
    assert content(target) == content(source)
    old, new = (Dataset.from_config({"class": "HDFDataset", "files": [path]}) for path in (source, target))
    assert new.num_outputs == old.num_outputs
    assert os.listdir(tmp_path) == ["out.hdf"]


@pytest.mark.slow
def test_to_hdf_of_an_epoch_by_several_processes(tmp_path, capsys):
    """In the order of the epoch; all sequences once, in the order of the corpus."""
    task = "{'class': 'Task12AXDataset', 'num_seqs': 90, 'partition_epoch': 2, 'seq_ordering': 'random'}"
    dataset = Dataset.from_config({"class": "Task12AXDataset", "num_seqs": 90})
    one, every = str(tmp_path / "one.hdf"), str(tmp_path / "all.hdf")
    assert main(["data", "to-hdf", task, "--output", one, "--epoch", "2", "--keys", "classes", "--processes", "1"]) == 0
    found = Dataset.from_config({"class": "HDFDataset", "files": [one]})
    wanted = Dataset.from_config(
        {"class": "Task12AXDataset", "num_seqs": 90, "partition_epoch": 2, "seq_ordering": "random"}
    )
    tags = [seq.tag for seq in wanted.sequences(2)]
    assert [seq.tag for seq in found.sequences()] == tags and found.data_keys == ["classes"]
    assert main(["data", "to-hdf", task, "--output", every, "--part", "16", "--processes", "2"]) == 0
    assert [tag for tag, _ in content(every)] == [seq.tag for seq in dataset.sequences()]
    assert "90 sequences, keys data, classes" in capsys.readouterr().out


def interrupted(monkeypatch, arguments: list[str], after: int) -> None:
    """Run a command until a number of parts is complete; the next one fails in the middle."""
    original = conversion.Conversion._write_part
    count = [0]

    def write(self, path, batches):
        if count[0] == after:
            batches = (batch for part in [batches] for batch in [next(part), 1 / 0])
        count[0] += 1
        original(self, path, batches)

    with monkeypatch.context() as patch:
        patch.setattr(conversion.Conversion, "_write_part", write)
        with pytest.raises(ZeroDivisionError):
            conversion_main(arguments)


def conversion_main(arguments: list[str]) -> int:
    from returnn_tf.cli.data import to_hdf

    return to_hdf.run(arguments)


@pytest.fixture
def config(tmp_path):
    """Yield the path of a config which registers a dataset."""
    with registered_here(DATASETS):
        yield tmp_path / "stream.config"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["corpus", "stream"])
def test_to_hdf_goes_on_after_an_interruption(kind, config, tmp_path, monkeypatch, capsys):
    config.write_text(STREAM)
    target = str(tmp_path / "out.hdf")
    arguments = [TASK % 50 if kind == "corpus" else str(config), "--output", target, "--part", "16"]
    arguments += ["--processes", "1"]
    interrupted(monkeypatch, arguments, 2)
    parts = tmp_path / "out.hdf.parts"
    assert sorted(os.listdir(parts)) == ["000000.hdf", "000001.hdf", "conversion.json"]
    before = (parts / "000001.hdf").stat().st_mtime_ns
    interrupted(monkeypatch, arguments, 1)
    assert (parts / "000001.hdf").stat().st_mtime_ns == before and (parts / "000002.hdf").exists()
    assert main(["data", "to-hdf", *arguments[:-4], "--part", "32"]) == 1
    assert "parts of another conversion (of other part). Start over with --restart" in capsys.readouterr().err
    if kind == "stream":  # another version of its code
        times = config.stat().st_atime_ns, config.stat().st_mtime_ns
        config.write_text(STREAM + "\n")
        assert main(["data", "to-hdf", *arguments]) == 1
        assert "parts of another conversion (of other files). Start over" in capsys.readouterr().err
        config.write_text(STREAM)
        os.utime(config, ns=times)
    assert main(["data", "to-hdf", *arguments]) == 0
    assert "3 parts of an earlier run are there already" in capsys.readouterr().out
    if kind == "corpus":
        assert [tag for tag, _ in content(target)] == ["seq-%d" % i for i in range(50)]
    else:
        found = [(tag, data["data"][1]) for tag, data in content(target)]
        expected = [(1, i) for i in range(40)] + [(2, i) for i in range(10)]
        assert found == [("e%d-%d" % (epoch, i), [[i, i]] * (1 + i % 3)) for epoch, i in expected]


def test_to_hdf_notices_changed_files_that_the_config_imports(config, tmp_path, monkeypatch, capsys):
    (tmp_path / "helper_for_test.py").write_text("scale = 1\n")
    config.write_text("#!rnn.py\nimport helper_for_test\n" + STREAM)
    arguments = [str(config), "--output", str(tmp_path / "out.hdf"), "--part", "16", "--processes", "1"]
    interrupted(monkeypatch, arguments, 2)
    (tmp_path / "helper_for_test.py").write_text("scale = 2\n")
    monkeypatch.delitem(sys.modules, "helper_for_test")
    assert main(["data", "to-hdf", *arguments]) == 1
    assert "parts of another conversion (of other modules). Start over" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["inof"], 2, "Did you mean 'info'?"),
        (["info"], 2, "the following arguments are required: CONFIG"),
        (["info", TASK % 3, "--keys", "classse"], 2, "no data key 'classse'. Did you mean 'classes'?"),
        (["info", TASK % 3, "--seqs", "0"], 2, "must be at least 1"),
        (["info", "{'class': 'Task12AXDataset'}"], 2, "is endless; add --seqs N"),
        (["info", "{'class': oops}"], 2, "is not a dict of plain values"),
        (["info", "none.hdf"], 1, "HDF file 'none.hdf' does not exist"),
        (["dump", TASK % 3, "--tags", "seq-7"], 1, "has no sequence 'seq-7'"),
        (["dump", TASK % 3, "--plto", "x"], 2, "Did you mean '--plot'?"),
        (["to-hdf", TASK % 3], 2, "required: --output"),
        (["to-hdf", TASK % 3, "--output", __file__], 1, "exists already; add --replace"),
        (["to-hdf", "{'class': 'Task12AXDataset'}", "--output", "x.hdf"], 2, "is endless; give it num_seqs"),
    ],
)
def test_mistakes(arguments, code, message, capsys):
    assert main(["data", *arguments]) == code
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err
    assert not os.path.exists("x.hdf.parts")


def test_a_dataset_that_the_config_lacks(tmp_path, capsys):
    path = tmp_path / "my.config"
    path.write_text("dev = %s\n" % (TASK % 3))
    assert main(["data", "info", str(path), "dve"]) == 2
    assert "no dataset 'dve'. Did you mean 'dev'?" in capsys.readouterr().err
    assert main(["data", "info", str(path), "dev", "++dev", TASK % 5]) == 0
    assert "5 sequences" in capsys.readouterr().out


@pytest.mark.slow
def test_to_hdf_of_speech(tmp_path):
    speech = RECORDED.parent / "oggzip2" / "many.zip"
    target = str(tmp_path / "x.hdf")
    dataset = "{'class': 'OggZipDataset', 'path': %r, 'audio': None, 'targets': None}" % str(speech)
    assert main(["data", "to-hdf", dataset, "--output", target, "--processes", "1"]) == 0
    written = Dataset.from_config({"class": "HDFDataset", "files": [target]})
    for seq, other in zip(written.sequences(1), Dataset.from_config(dataset).sequences(1)):
        assert seq.tag == other.tag and seq.data["raw"].tolist() == [other.data["raw"].item()]
        np.testing.assert_array_equal(seq.data["orth"], other.data["orth"])


@pytest.mark.parametrize(
    "seconds, text", [(0, "0.00 seconds"), (59.9, "59.90 seconds"), (61, "1.02 minutes"), (5400, "1.50 hours")]
)
def test_durations_have_a_unit_that_fits(seconds, text):
    assert duration(seconds) == text


def test_help_is_that_of_the_action(capsys):
    texts = {}
    for args in ([], ["info"], ["oggzip"]):
        assert main(["data", *args, "--help"]) == 0
        texts[tuple(args)] = capsys.readouterr().out
    assert len(texts[()].splitlines()) < 25 and "to-hdf" in texts[()] and "--threads" not in texts[()]
    assert "--bins" in texts[("info",)] and "--threads" not in texts[("info",)]
    assert "--threads" in texts[("oggzip",)] and "--bins" not in texts[("oggzip",)]
