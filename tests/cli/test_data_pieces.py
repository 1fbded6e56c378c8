"""``returnn-tf data bpe|sentencepiece``: pieces of words from all kinds of corpora."""

from __future__ import annotations

import ast
import gzip
import random
import re
from pathlib import Path
from typing import Any, Callable

import pytest

from returnn_tf.cli.main import main
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.vocabulary import Vocabulary, make_vocabulary

RNG = random.Random(3)
WORDS = ["".join(RNG.choices("abcdefgh", k=RNG.randint(2, 7))) for _ in range(50)]
TEXTS = [" ".join(RNG.choices(WORDS, k=9)) for _ in range(80)]


def _text(folder: Path) -> list[str]:
    (folder / "a.txt").write_text("\n".join(TEXTS))
    return ["a.txt"]


def _compressed(folder: Path) -> list[str]:
    for name, texts in (("a.txt.gz", TEXTS[:30]), ("b.gz", TEXTS[30:])):
        with gzip.open(folder / name, "wt", newline="\r\n") as file:
            file.writelines(text + "\n" for text in texts)
    return ["a.txt.gz", "b.gz"]


def _table(folder: Path) -> list[str]:
    lines = ["id\tone\tother", *("%d\t%s\t%s" % (i, *pair) for i, pair in enumerate(zip(TEXTS[::2], TEXTS[1::2])))]
    (folder / "a.tsv").write_text("\n".join(lines))
    return ["a.tsv", "--column", "one,other"]


def _speech(folder: Path) -> list[str]:
    """A dataset whose vocabulary is not there yet, with a function on its texts, and without its audio."""
    lines = [
        '{"audio_filepath": "%d.wav", "duration": 1, "text": "%s"}' % item for item in enumerate(map(str.upper, TEXTS))
    ]
    (folder / "manifest.json").write_text("\n".join(lines))
    pieces = {"class": "BytePairEncoding", "bpe_file": "out/p.codes", "vocab_file": "out/p.vocab"}
    train = {"class": "NeMoDataset", "path": "manifest.json", "audio": {}, "targets": pieces, "partition_epoch": 3}
    (folder / "my.config").write_text("train = %r" % {**train, "orth_post_process": "lowercase"})
    return ["my.config", "--dataset", "train"]


def _bytes_of_a_dataset(folder: Path) -> list[str]:
    (folder / "my.py").write_text(
        "import numpy\nSEQS = [{'raw': numpy.frombuffer(text.encode(), 'uint8')} for text in %r]\n"
        "train = {'class': 'StaticDataset', 'data': SEQS, 'output_dim': {'raw': (256, 1)}}" % (TEXTS,)
    )
    return ["my.py", "--dataset", "train"]


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def printed_vocabulary(output: str) -> Vocabulary:
    """Return the vocabulary that the output says to write in a config."""
    (options,) = (line.partition(": ")[2] for line in output.splitlines() if line.startswith("in a config"))
    result: Vocabulary = make_vocabulary(ast.literal_eval(options))
    return result


@pytest.mark.parametrize("corpus", [_text, _compressed, _table, _speech, _bytes_of_a_dataset])
def test_bpe_of_corpora(
    corpus: Callable[[Path], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All forms of the same texts give the same files, which a dataset reads as they are named."""
    assert main(["data", "bpe", *corpus(tmp_path), "--size", "60", "--output", "out/p", "--words"]) == 0
    vocabulary = printed_vocabulary(capsys.readouterr().out)
    assert vocabulary.num_labels == 60 and vocabulary.unknown_label == "UNK"
    assert Path("out/p.words").read_text().split() == sorted({word for text in TEXTS for word in text.split()})
    found = Path("out/p.vocab").read_text(), Path("out/p.codes").read_text()
    _text(tmp_path)
    assert main(["data", "bpe", "a.txt", "--size", "60", "--output", "again"]) == 0
    assert found == (Path("again.vocab").read_text(), Path("again.codes").read_text())
    if corpus is _speech:
        dataset = Dataset.from_config({**_train(), "audio": None})
        seq = next(iter(dataset.sequences(1)))
        assert vocabulary.get_seq_labels(seq.data["classes"]).replace("@@ ", "") in TEXTS


def _train() -> dict[str, Any]:
    values: dict[str, Any] = {}
    exec(Path("my.config").read_text(), values)
    return dict(values["train"])


@pytest.mark.parametrize(("more", "kind"), [
    ([], "unigram"), (["--kind", "bpe", "--without-bos-eos", "--normalize", "identity"], "bpe"),
])  # fmt: skip
def test_sentencepiece(more: list[str], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["data", "sentencepiece", *_compressed(tmp_path), "--size", "50", *more, "--output"]
    assert main([*arguments, "out/p"]) == 0
    vocabulary = printed_vocabulary(capsys.readouterr().out)
    assert vocabulary.num_labels == 50
    assert (vocabulary.eos_label_id is None) == bool(more)
    for text in TEXTS[:5]:
        assert "".join(vocabulary.pieces(text)).replace("▁", " ").strip() == text
    assert main([*arguments, "again"]) == 0
    assert Path("again.model").read_bytes() == Path("out/p.model").read_bytes()


@pytest.mark.parametrize("action", ["bpe", "sentencepiece"])
@pytest.mark.parametrize(("arguments", "message"), [
    (["no.txt", "--size", "50"], "no.txt"),
    (["my.config", "--size", "50"], "'my.config' seems to be a config, not a text; add --dataset train"),
    (["my.config", "--dataset", "dev", "--size", "50"], "no dataset 'dev'"),
    (["a.txt", "a.txt", "--dataset", "dev", "--size", "50"], "--dataset is for one config"),
    (["a.tsv", "--column", "two", "--size", "50"], "no column 'two'.* --column"),
    (["damaged.gz", "--size", "50"], "'damaged.gz' can't be read"),
    (["latin.txt", "--size", "50"], "'latin.txt' is no text in UTF-8"),
    (["empty.txt", "--size", "50"], "the corpus has no words"),
    (["a.txt", "--size", "5"], "5 labels are too few"),
    (["a.txt", "--size", "5000"], "5000 labels are too many: the corpus gives no more than"),
    (["a.txt", "--size", "50", "--output", "a"], "exists already, and models may depend on its labels; add --replace"),
])  # fmt: skip
def test_mistakes(
    arguments: list[str], message: str, action: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for write in (_text, _table, _speech):
        write(tmp_path)
    for name in ("a.codes", "a.model"):
        Path(name).write_text("of a model")
    Path("damaged.gz").write_bytes(gzip.compress(b"abc" * 1000)[:-9])
    Path("latin.txt").write_bytes("Bär".encode("latin1"))
    Path("empty.txt").write_text("\n \n")
    output = [] if "--output" in arguments else ["--output", "out/p"]
    assert main(["data", action, *arguments, *output]) in (1, 2)
    captured = capfd.readouterr()
    errors = captured.err.splitlines()
    assert len(errors) <= 2 and re.search(message, errors[0])
    assert not captured.out and not Path("out").exists()


def test_replace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _text(tmp_path)
    for size in ("40", "50"):
        assert (
            main(["data", "bpe", "a.txt", "--size", size, "--output", "p", "--replace", "--labels", "</s>,<unk>"]) == 0
        )
        vocabulary = printed_vocabulary(capsys.readouterr().out)
        assert (vocabulary.num_labels, vocabulary.unknown_label_id, vocabulary.labels[0]) == (int(size), 1, "</s>")
