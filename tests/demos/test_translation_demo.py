"""The translation demo: catalogues, sets, pieces and scores, and all of it on few pairs."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from returnn_tf.cli.main import main
from tests.demos.demo_modules import DEMOS, demo_modules


@pytest.fixture(scope="module")
def demo():
    names = ("catalogues", "corpus", "pieces", "score", "run")
    return SimpleNamespace(**dict(zip(names, demo_modules("translation", *names))))


def write_mo(path: Path, messages: dict[str, str]) -> None:
    """Write a catalogue in the binary format of gettext."""
    entries = sorted({"": "Content-Type: text/plain; charset=UTF-8\n", **messages}.items())
    texts = [[text.encode("utf8") for text in column] for column in zip(*entries)]
    start, tables, content = 28 + 16 * len(entries), [], b""
    for column in texts:
        for text in column:
            tables.append(struct.pack("<II", len(text), start + len(content)))
            content += text + b"\0"
    header = struct.pack("<IIIIIII", 0x950412DE, 0, len(entries), 28, 28 + 8 * len(entries), 0, 0)
    path.parent.mkdir(parents=True)
    path.write_bytes(header + b"".join(tables) + content)


@pytest.fixture
def pairs(demo):
    """Return 200 of ten packages, in words that say which."""
    words = ["open", "close", "read", "write", "find", "lose", "copy", "move", "make", "take"]
    return [
        demo.catalogues.Pair(
            "p%d" % p, "can not %s the %s %s" % (a, b, words[p]), "ne peut %s le %s %s" % (b, a, words[p])
        )
        for p in range(10)
        for a, b in [(a, b) for a in words[:5] for b in words[5:9]]
    ]


def test_catalogues(demo, tmp_path):
    folder = str(tmp_path / "{language}" / "x")
    messages = {
        "could not open\n the file": "impossible d'ouvrir\n le fichier",
        "menu\x04Save the file": "Enregistrer le fichier",
        "%d file found\0%d files found": "%d fichier trouvé\0%d fichiers trouvés",
        "OK": "OK",
        "a message without a translation": "",
        "the same in both": "the same in both",
    }
    write_mo(tmp_path / "fr" / "x" / "tool.mo", messages)
    (tmp_path / "fr" / "x" / "damaged.mo").write_bytes(b"\xde\x12\x04\x95 and nothing else")
    found = demo.catalogues.collect("fr", [folder])
    assert {(pair.source, pair.target) for pair in found} == {
        ("could not open the file", "impossible d'ouvrir le fichier"),
        ("Save the file", "Enregistrer le fichier"),
        ("%d file found", "%d fichier trouvé"),
    }
    assert {pair.package for pair in found} == {"tool"}
    assert demo.catalogues.collect("xx", [folder]) == []
    assert demo.catalogues.tokens("can't open %-5s: %(name)s!") == [
        "can",
        "'",
        "t",
        "open",
        "%-5s",
        ":",
        "%(name)s",
        "!",
    ]


@pytest.mark.parametrize("fetched", [False, True])
def test_packages_where_no_program_has_catalogues(demo, tmp_path, monkeypatch, fetched):
    """They are fetched once, into a folder of their own, and read from there."""
    monkeypatch.setattr(demo.catalogues, "FOLDERS", ())
    monkeypatch.setattr(demo.run, "LEAST", 2)
    messages = {"could not open the file": "impossible d'ouvrir", "Save the file": "Enregistrer le fichier"}
    folder = tmp_path / "out" / "packages"
    commands = []

    class Noted(demo.run.Steps):
        def step(self, title, command, environment=None):
            commands.append(list(command))
            if "pip" in command:
                write_mo(folder / "shop" / "cart" / "locale" / "fr" / "LC_MESSAGES" / "django.mo", messages)
            return ""

    if fetched:
        write_mo(folder / "shop" / "cart" / "locale" / "fr" / "LC_MESSAGES" / "django.mo", messages)
    demo.run.run(Noted(str(DEMOS / "translation"), str(tmp_path)), "fr", few=True)
    assert ["pip" in command for command in commands[:2]] == ([False] * 2 if fetched else [True, False])
    (collect,) = [command for command in commands if command[0].endswith("catalogues.py")]
    monkeypatch.setattr("sys.argv", collect)
    monkeypatch.chdir(tmp_path)
    assert demo.catalogues.main() == 0
    assert [pair.package for pair in demo.corpus.read_pairs("out/pairs.tsv")] == ["shop/cart"] * 2


def test_nothing_held_out_is_in_training(demo, pairs):
    similar = [pair._replace(source=pair.source.upper() + "!") for pair in pairs[:100:7]]
    sets = demo.corpus.split(pairs + similar, 25)
    packages = {name: {pair.package for pair in of_set} for name, of_set in sets.items()}
    assert not packages["packages"] & (packages["train"] | packages["messages"] | packages["dev"])
    assert [len(sets[name]) for name in ("dev", "messages", "packages")] == [25, 25, 25] and len(sets["train"]) > 50
    key = demo.corpus.key_of
    for side in ("source", "target"):
        known = {key(getattr(pair, side)) for pair in sets["train"]}
        for name in ("dev", "messages", "packages"):
            assert not known & {key(getattr(pair, side)) for pair in sets[name]}


def test_pieces_are_the_text_again(demo, pairs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("out")
    demo.corpus.write_pairs("out/pairs.tsv", pairs)
    monkeypatch.setattr("sys.argv", ["corpus.py", "out", "--heldout", "20"])
    demo.corpus.main()
    assert main(demo.run.learn_pieces(60)) == 0
    monkeypatch.setattr("sys.argv", ["pieces.py", "out"])
    demo.pieces.main()
    tmp_path = tmp_path / "out"
    with gzip.open(tmp_path / "target.train.gz", "rt", encoding="utf8") as file:
        lines = file.read().splitlines()
    train = demo.corpus.read_pairs(str(tmp_path / "train.tsv"))
    assert [demo.score.text_of(line) for line in lines] == [pair.target for pair in train]
    labels = pickle.loads((tmp_path / "source.vocab.pkl").read_bytes())
    assert labels["</S>"] == 0 and labels["<unk>"] == 1 and len(labels) == len(set(labels.values()))
    assert {piece for line in lines for piece in line.split()} <= set(labels)
    assert (tmp_path / "labels.txt").read_text(encoding="utf8").splitlines() == list(labels)


def test_scores(demo, pairs):
    texts = [pair.target for pair in pairs[:20]]
    assert demo.score.scores(texts, texts) == {"BLEU": pytest.approx(100), "chrF": pytest.approx(100)}
    worse = demo.score.scores([pair.source for pair in pairs[:20]], texts)
    assert worse["BLEU"] < 20 and worse["chrF"] < 60
    assert demo.score.from_memory(pairs, ["can not opn the lose open"]) == [pairs[0].target]


@pytest.mark.long
def test_whole_demo_on_few_pairs(run_demo, tmp_path):
    output = run_demo(str(DEMOS / "translation" / "run.py"), "--quick", "--work", str(tmp_path))
    for line in ("Transformer, beam 6", "the most similar training message", "computing time"):
        assert line in output
    assert {"learning_curve.png", "alignment.png", "results.png"} <= set(os.listdir(tmp_path / "out"))
