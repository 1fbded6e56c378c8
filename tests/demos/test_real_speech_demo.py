"""The demo of recorded speech: texts of scripts, sets, nearest utterances, scores."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest

from returnn_tf.cli.main import main as returnn_tf_main
from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.engine.decoding.beam import BeamDecoder, BeamOptions
from returnn_tf.ops.sequence.lexicon import read_lexicon
from returnn_tf.ops.sequence.ngram_file import open_ngram
from tests.demos.demo_modules import demo_modules


@pytest.fixture(scope="module")
def demo():
    names = ["alignments", "dialogue", "draw_prompts", "lm", "nearest", "phrases", "prompts", "run", "russian"]
    names += ["quotations", "score", "score_prompts", "speak_prompts", "synthesise"]
    return SimpleNamespace(**dict(zip(names, demo_modules("real_speech", *names))))


SCRIPT = r"""
-- Random text
-- dialogId("old", "font_big", "Gone")
dialogId("let-m-divna", "font_small", "What kind of \"ship\"?")
dialogStr("Co je to za \"divnou\" loď?")

dialogId("rush", "",
         "It (the car) -- said he -- goes")
dialogStr(
         "Je to -- řekl -- venku (už)"
)
dialogId("no translation", "font_big", "Hello")
dialogId("empty", "font_big", "")
dialogStr("")
"""


def test_script(demo):
    assert demo.dialogue.read_script(SCRIPT) == [
        ("let-m-divna", "font_small", 'Co je to za "divnou" loď?'),
        ("rush", "", "Je to -- řekl -- venku (už)"),
        ("empty", "font_big", ""),
    ]


@pytest.mark.parametrize(
    "language, text, expected",
    [
        ("cs", "Vidíš to oko? Němý svědek...", "vidíš to oko němý svědek"),
        ("cs", "Bud\N{COMBINING CARON} rada", "buď rada"),  # the letter and its caron as two characters
        ("cs", "chceš-li, 'tak' _to_", "chceš li tak to"),
        ("nl", "Zo\N{RIGHT SINGLE QUOTATION MARK}n 'vis': 't is één", "zo'n vis t is één"),
        ("cs", "Kopie verze 2.", None),
        ("cs", "Konkrétně %1 hodin!", None),
        ("cs", "Подожди, počkej", None),
        ("nl", "loď", None),
        ("cs", "?!", None),
        ("cs", "", None),
    ],
)
def test_normalised(demo, language, text, expected):
    assert demo.dialogue.normalised(text, language) == expected


def utterance(demo, level, text):
    return demo.dialogue.Utterance("cs/%s/%s" % (level, text), "x.ogg", level, "big", text, 1.0)


def test_sets(demo):
    """Levels are in one set, and no text is in two."""
    held_out = demo.dialogue.HELD_OUT
    assert not held_out["dev"] & held_out["test"]
    dev, test = (sorted(held_out[name])[0] for name in ("dev", "test"))
    texts = {"share": ["a", "b"], dev: ["b", "c", "d"], test: ["a", "c", "e"]}
    sets = demo.dialogue.split(utterance(demo, level, text) for level, given in texts.items() for text in given)
    found = {name: [(u.level, u.text) for u in of_set] for name, of_set in sets.items()}
    assert found == {
        "train": [("share", "a"), ("share", "b")],
        "dev": [(dev, "c"), (dev, "d")],
        "test": [(test, "e")],
    }
    figures = demo.dialogue.statistics(sets)
    assert figures["dev"] == {"utterances": 2, "minutes": 0.0, "words": 2, "words not in training": 100.0}


def write(path, content, rate=8000):
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        path.write_text(content, encoding="utf8")
    else:
        import soundfile

        soundfile.write(str(path), content, rate)


def test_corpus(demo, tmp_path):
    """Audio with texts of the same level; what is left out is counted."""
    texts, audio = tmp_path / "texts" / demo.dialogue.GAME, tmp_path / "audio" / demo.dialogue.GAME
    line = 'dialogId("%s", "font_%s", "x")\ndialogStr("%s")\n'
    write(texts / "script" / "cave" / "dialogs_cs.lua", line % ("a", "big", "Ahoj!") + line % ("b", "x", "8"))
    write(texts / "script" / "cave" / "dialogs_nl.lua", line % ("a", "big", "Dag!"))
    write(texts / "script" / "share" / "jokes_dialogs_cs.lua", line % ("a", "small", "Vtip") + line % ("e", "x", " "))
    second = np.zeros(8000)
    for name in ("cave/cs/a", "cave/cs/b", "cave/cs/unknown", "share/jokes/cs/a", "share/jokes/cs/e", "cave/nl/a"):
        write(audio / "sound" / (name + ".ogg"), second)
    write(texts / "script" / "map" / "dialogs_cs.lua", line % ("short", "big", "Ne"))
    write(audio / "sound" / "map" / "cs" / "short.ogg", second[:800])
    found, left_out = demo.dialogue.read_corpus(str(tmp_path / "texts"), str(tmp_path / "audio"), "cs")
    assert [(u.tag, u.speaker, u.text, u.seconds) for u in found] == [
        ("cs/cave/a", "big", "ahoj", 1.0),
        ("cs/share/a", "small", "vtip", 1.0),
    ]
    assert sorted(left_out.values()) == [1, 1, 2]
    with pytest.raises(demo.dialogue.PackageError, match="no audio of language 'cs'"):
        demo.dialogue.read_corpus(str(tmp_path / "texts"), str(tmp_path), "cs")
    with pytest.raises(demo.dialogue.PackageError, match="no dialogue of language 'cs'"):
        demo.dialogue.read_corpus(str(tmp_path), str(tmp_path / "audio"), "cs")


def path_distance(one, two):
    """Return the distance by a loop over all pairs of frames."""
    best = np.full((len(one), len(two)), math.inf)
    for i, j in itertools.product(range(len(one)), range(len(two))):
        cost = float(np.linalg.norm(one[i] - two[j]))
        before = [best[i - 1, j] + cost] if i else []
        before += [best[i, j - 1] + cost] if j else []
        before += [best[i - 1, j - 1] + 2 * cost] if i and j else []
        best[i, j] = min(before, default=cost)
    return best[-1, -1] / (len(one) + len(two))


def test_time_warping(demo):
    rng = np.random.default_rng(1)
    frames = [rng.standard_normal((length, 3)).astype(np.float32) for length in (1, 2, 4, 5, 7, 5)]
    for asked in frames:
        expected = [path_distance(asked, known) for known in frames]
        np.testing.assert_allclose(demo.nearest.distances(asked, frames), expected, rtol=1e-4, atol=1e-3)


def test_nearest(demo):
    """Said slower, it is still the same; what is more than twice as long is no candidate."""
    rng = np.random.default_rng(2)
    known = [rng.standard_normal((length, 3)).astype(np.float32) for length in (6, 9, 5, 8, 40)]
    asked = [np.repeat(known[3], 2, axis=0), known[0], known[4][:15]]
    found = demo.nearest.nearest(asked, known, at_once=2)
    assert found[:2] == [3, 0] and found[2] != 4


def test_scores(demo, tmp_path):
    """Rates of all seeds; an answer that is missing is an error, not an empty one."""
    (tmp_path / "cs_test.tsv").write_text("file\tseq_name\ttext\na\tx\tjedna dvě\nb\ty\ttři\n", encoding="utf8")
    (tmp_path / "cs_test_nearest.py").write_text(repr({"x": "tři", "y": "tři"}))
    for seed, text in ((1, "jedna dva"), (2, "jedna dvě")):
        (tmp_path / ("cs_blstm_%d_model" % seed)).mkdir()
        found = {tag: {"ctc_decision": answer, "output_decision": ""} for tag, answer in (("x", text), ("y", "tři"))}
        (tmp_path / ("cs_blstm_%d_search.py" % seed)).write_text(repr(found))
    (tmp_path / "cs_blstm_2_decode_words.py").write_text(repr({"x": "dvě", "y": "tři"}))
    references = demo.score.read_table(str(tmp_path / "cs_test.tsv"))
    systems = demo.score.systems(str(tmp_path), "cs")
    words = {
        name: [demo.score.rates(references, answers)[0] for answers in of.values()] for name, of in systems.items()
    }
    assert words[demo.score.NEAREST] == [pytest.approx(200 / 3)]
    assert words["blstm: CTC, best path"] == [pytest.approx(100 / 3), 0]
    assert words["blstm: " + demo.score.DECODED["words"]] == [pytest.approx(100 / 3)]
    assert words["blstm: attention"] == [100, 100]
    assert demo.score.spread(words["blstm: CTC, best path"]) == "16.7 (0.0 - 33.3)"
    with pytest.raises(ValueError, match="no answer to 1 of 2 utterances, e.g. 'y'"):
        demo.score.rates(references, {"x": "jedna"})


def test_leading_roles(demo, tmp_path, monkeypatch, capsys):
    """They are counted by themselves, where the table has speakers."""
    rows = ["file\tseq_name\ttext\tspeaker_name", "a\tx\tjedna dvě\tsmall", "b\ty\ttři\tsnail"]
    (tmp_path / "cs_test.tsv").write_text("\n".join(rows), encoding="utf8")
    (tmp_path / "cs_test_nearest.py").write_text(repr({"x": "jedna", "y": "dva"}))
    monkeypatch.setattr("sys.argv", ["score.py", str(tmp_path), "--language", "cs"])
    assert demo.score.main() == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("| %s | 66.7 | 58.3 | 50.0 | 44.4 |" % demo.score.NEAREST)


LAB = "signal ru_0001\nnfields 1\n#\n0.25 125 pau\n0.3 125 pau\n0.5 125 a\n0.55 125 a\n0.7 125 pau\n"


def test_labels_with_times(demo):
    """Pauses in a row are one; equal phones are not."""
    segments = demo.russian.read_lab(LAB, "x.lab")
    assert segments == [(0.3, "pau"), (0.5, "a"), (0.55, "a"), (0.7, "pau")]


@pytest.mark.parametrize(
    "content, message",
    [
        ("0.25 125 pau\n", "x.lab: no line '#'"),
        ("#\n0.25 pau\n", "x.lab, line 2: '0.25 pau' is not an end, a color and a phone"),
        ("#\n0.25 125 pau\n\nx 125 a\n", "x.lab, line 4: 'x 125 a' is not"),
        ("#\n0.25 125 pau\n0.25 125 a\n", "x.lab, line 3: a does not end after"),
        ("#\n0 125 pau\n", "line 2: pau does not end after"),
    ],
)
def test_damaged_labels(demo, content, message):
    with pytest.raises(demo.russian.PackageError, match=message):
        demo.russian.read_lab(content, "x.lab")


@pytest.mark.parametrize(
    "segments, frames, expected",
    [
        (
            [(0.02, "a"), (0.05, "b")],
            6,
            [0, 0, 1, 1, 1, 1],
        ),  # middles at 0, 10, 20, ... ms; behind the end as before it
        ([(0.015, "a"), (0.05, "b")], 4, [0, 0, 1, 1]),
        ([(0.01, "a"), (0.018, "b"), (0.05, "a")], 4, [0, 1, 0, 0]),
        ([(0.011, "a"), (0.018, "b"), (0.05, "a")], 3, [0, 0, 0]),  # b lies between two middles
    ],
)
def test_labels_of_frames(demo, segments, frames, expected):
    segments = [demo.russian.Segment(*segment) for segment in segments]
    assert demo.russian.frame_labels(segments, frames, {"a": 0, "b": 1}).tolist() == expected


def test_russian_corpus(demo, tmp_path):
    """All sentences of the package, in one set each."""
    folder = tmp_path / demo.russian.VOICE
    for number in range(130):
        write(folder / "lab" / ("ru_%04d.lab" % number), LAB)
        write(folder / "wav" / ("ru_%04d.wav" % number), np.zeros(1600 + number), rate=16000)
    package = demo.russian.Package("festvox-ru", "1", "", str(tmp_path))
    sentences = demo.russian.read_corpus(package)
    assert [(s.tag, s.frames) for s in sentences[::129]] == [("ru_0000", 11), ("ru_0129", 11)]
    sets = demo.russian.split(sentences)
    assert {name: len(of_set) for name, of_set in sets.items()} == {"train": 6, "dev": 62, "test": 62}
    assert sorted(s.tag for of_set in sets.values() for s in of_set) == [s.tag for s in sentences]
    demo.russian.write_set(str(tmp_path / "ru_train"), sets["train"], {"a": 0, "pau": 1}, str(tmp_path))
    aligned, size = demo.alignments.read(str(tmp_path / "ru_train_given.hdf"))
    assert size == 2 and {tag: len(labels) for tag, labels in aligned.items()} == {s.tag: 11 for s in sets["train"]}
    with pytest.raises(demo.russian.PackageError, match="0 labelled sentences"):
        demo.russian.read_corpus(package._replace(folder=str(tmp_path / "lab")))


@pytest.mark.parametrize(
    "aligned, expected",
    [
        ([9, 0, 9, 9, 1, 9], [0, 0, 0, 1, 1, 1]),
        ([0, 0, 9, 1], [0, 0, 1, 1]),  # half of one frame: to the next phone
        ([9, 0, 9, 0, 1], [0, 0, 0, 0, 1]),
        ([9, 9, 2], [2, 2, 2]),
    ],
)
def test_blanks_become_phones(demo, aligned, expected):
    assert demo.alignments.without_blanks(np.array(aligned, np.int32), 9).tolist() == expected


def test_distances_of_alignments(demo):
    given = np.array([0, 0, 1, 1, 2], np.int32)
    assert demo.alignments.distances(np.array([0, 1, 1, 1, 2], np.int32), given).tolist() == [1, 0]
    assert demo.alignments.distances(np.array([0, 1, 1, 1, 1], np.int32), given) is None
    with pytest.raises(ValueError, match="nothing but blanks"):
        demo.alignments.without_blanks(np.array([9, 9], np.int32), 9)


def test_scores_without_pauses(demo):
    assert demo.score.rates({"x": "pau a b pau"}, {"x": "a pau b"})[0] == 0


class Steps:
    """Keeps the commands instead of running them."""

    def __init__(self, folder):
        self.folder, self.commands = folder, []

    def out(self, name):
        return str(self.folder / name)

    def script(self, title, *arguments, environment=None):
        self.commands.append(" ".join(arguments))

    returnn = script

    def remove_products(self, pattern):
        for path in self.folder.iterdir():
            if re.fullmatch(pattern, path.name):
                path.rmdir() if path.is_dir() else path.unlink()


def test_data_that_is_there_is_kept(demo, tmp_path):
    steps = Steps(tmp_path)
    demo.run.make_phones(steps, "packages", few=False)
    assert [command.split()[0] for command in steps.commands] == ["russian.py", "data", "data", "data"]
    for name in demo.run.SETS:
        (tmp_path / ("ru_%s.zip" % name)).write_bytes(b"")
    steps.commands.clear()
    demo.run.make_phones(steps, "packages", few=False)
    assert steps.commands == []
    (tmp_path / "ru_dev.zip").unlink()
    demo.run.make_phones(steps, "packages", few=False)
    assert len(steps.commands) == 2 and steps.commands[1].startswith("data oggzip out/ru_dev.tsv")


@pytest.mark.parametrize("stage", ["", "pretrained", "from_cs"])
def test_answers_that_are_scored(demo, tmp_path, stage):
    """What a training decodes is written where score.py looks for it."""
    steps, name = Steps(tmp_path), "nl_blstm_%s2" % (stage and stage + "_")
    for old in ("_search.py", "_decode_words.py"):  # of an earlier run, which a search would not replace
        (tmp_path / (name + old)).write_text("")
    demo.run.train(steps, "nl", "blstm", 2, stage=stage, few=False)
    decoded = [command.split("--output out/")[1].split()[0] for command in steps.commands if "--output" in command]
    assert decoded == [name + "_decode_words.py", name + "_decode_labels.py"] and list(tmp_path.iterdir()) == []
    (tmp_path / (name + "_model")).mkdir()
    for file in decoded:
        (tmp_path / file).write_text("{}")
    systems = demo.score.systems(str(tmp_path), "nl")
    assert len(systems) == 2 and all(list(of_seeds) == ["2"] for of_seeds in systems.values())


@pytest.mark.parametrize("text, expected", [("cs", ("cs",)), ("ru,cs", ("ru", "cs"))])
def test_corpora(demo, text, expected):
    assert demo.run.some_of(demo.run.CORPORA)(text) == expected


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--corpora ru,prompts --pretrain", "--pretrain: none of --corpora ru,prompts is dialogue"),
        ("--from-czech", "add nl to --corpora"),
        ("--corpora nl,cs --from-czech", "cs must stand before nl"),
        ("--corpora cs,nl --from-czech --pretrain", "not allowed with argument"),
    ],
)
def test_options_without_use(demo, arguments, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["run.py", *arguments.split()])
    with pytest.raises(SystemExit):
        demo.run.main()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "cs,", "de", "cs nl"])
def test_unknown_corpora(demo, text):
    with pytest.raises(demo.run.argparse.ArgumentTypeError, match="is none of cs, nl, ru, prompts"):
        demo.run.some_of(demo.run.CORPORA)(text)


def test_decoding_with_characters(demo):
    """The model of characters writes a space as `returnn-tf decode` looks it up."""
    from returnn_tf.ops.sequence.ngram_file import SPACE

    assert demo.lm.SPACE == SPACE and demo.lm.characters("a bé") == ["a", SPACE, "b", "é"]


def test_without_apt_get(demo, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["dialogue.py", str(tmp_path / "packages"), str(tmp_path)])
    assert demo.dialogue.main() == 1
    assert "package fillets-ng-data: apt-get is not installed" in capsys.readouterr().err


TEXTS = "; Core Asterisk Sounds\n\nhello: Hello: world.\ndigits/1:one\n\nhello: Twice\nempty:\nno colon\n"


def test_texts_of_prompts(demo):
    """With and without a byte order mark; of two texts with one name, the first."""
    expected = {"hello": "Hello: world.", "digits/1": "one", "empty": ""}
    assert demo.prompts.read_texts(TEXTS) == demo.prompts.read_texts("\ufeff" + TEXTS) == expected


@pytest.mark.parametrize(
    "language, text, expected",
    [
        ("en", "At the tone,  please say your name.", "At the tone, please say your name."),
        ("en", "Press 1 for sales", "Press 1 for sales"),  # espeak-ng reads numbers
        ("en", "dash [-]", "dash"),
        ("en", "space [ ]", "space"),
        ("en", "Login incorrect.  Mailbox?", "Login incorrect. Mailbox?"),
        ("fr", "Où est-ce? Ici", "Où est-ce? Ici"),
        ("en", "[this is a simple beep tone]", None),
        ("en", "<beep ascending>", None),
        ("en", 'IAX (note: does not say "2")', None),
        ("it", "Qualcosa ? terribilmente sbagliato!", None),
        ("it", "non pu? essere", None),
        ("it", "perch?no", None),
        ("ru", "at [@]", None),
        ("ru", "7 для Q", None),
        ("ru", "Дефис. [-]", "Дефис."),
        ("en", "да", None),
        ("en", "...", None),
        ("en", "28", None),
    ],
)
def test_what_is_said(demo, language, text, expected):
    assert demo.prompts.spoken(text, language) == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Opción  inválida.", "opcion invalida"),
        ("... to exit_the menu", "to exit the menu"),
        ("Ещё 2", "еще 2"),
        ("D'accord", "d accord"),
    ],
)
def test_same_texts(demo, text, expected):
    assert demo.prompts.key(text) == expected


def prompt(demo, tag, text, phones=None):
    language, name = tag.split("/")
    return demo.prompts.Prompt(language, name, "x.wav", text, phones or " ".join(text.lower()), 1.0)


def test_sets_of_prompts(demo):
    """A text is in one set, in all languages; what sounds the same as a prompt of another set is in one of them."""
    texts = ["".join("bdfghjklmn"[int(digit)] for digit in "%03d" % number) for number in range(200)]
    prompts = [prompt(demo, "en/%d" % number, text) for number, text in enumerate(texts)]
    prompts += [prompt(demo, "es/%d" % number, text.upper()) for number, text in enumerate(texts)]
    prompts += [prompt(demo, "fr/%d" % number, text, "a") for number, text in enumerate(texts)]
    prompts += [prompt(demo, "en/again", texts[0])]
    sets = demo.prompts.split(prompts)
    assert sets == demo.prompts.split(prompts)
    numbers = {name: {p.name for p in of_set if p.language == "en"} for name, of_set in sets.items()}
    assert numbers == {
        name: {p.name for p in of_set if p.language == "es"} | (numbers[name] & {"again"})
        for name, of_set in sets.items()
    }
    assert {name: len(found - {"again"}) for name, found in numbers.items()} == {"train": 144, "dev": 16, "test": 40}
    assert any({"0", "again"} <= found for found in numbers.values())
    assert [p.name for name in ("dev", "test") for p in sets[name] if p.language == "fr"] == []
    assert len(sets["train"]) == 144 * 3 + ("again" in numbers["train"])


def test_read_prompts(demo, tmp_path, monkeypatch):
    """Audio with texts that tell what is said, and can be said in that time."""
    folder = tmp_path / "audio" / demo.prompts.SOUNDS / "it_IT"
    for name in ("hello", "digits/1", "beep", "long", "unknown", "fast"):
        write(folder / (name + ".wav"), np.zeros(8000 * (31 if name == "long" else 1)))
    texts = "hello: Ciao\ndigits/1: uno\nbeep: [tono]\nlong: molto\nfast: abcdefghijklmnopqrstuvw\nnothing: x\n"
    path = tmp_path / "texts/usr/share/doc/asterisk-core-sounds-it/core-sounds-it.txt.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(texts.encode()))
    monkeypatch.setattr(demo.prompts, "phones_of", lambda text, voice: list(text) if voice == "it" else [])
    found, left_out = demo.prompts.read_language(str(tmp_path / "texts"), str(tmp_path / "audio"), "it")
    assert [(p.tag, p.text, p.phones, p.seconds) for p in found] == [
        ("it/digits/1", "uno", "u n o", 1.0),
        ("it/hello", "Ciao", "C i a o", 1.0),
    ]
    assert sorted(left_out.values()) == [1, 1, 2]
    with pytest.raises(demo.prompts.PackageError, match="core-sounds-it.txt.gz is missing"):
        demo.prompts.read_language(str(tmp_path), str(tmp_path / "audio"), "it")
    with pytest.raises(demo.prompts.PackageError, match="it_. is missing"):
        demo.prompts.read_language(str(tmp_path / "texts"), str(tmp_path), "it")
    write(folder / "hello.wav", np.zeros(10), rate=16000)
    with pytest.raises(demo.prompts.PackageError, match="hello.wav: 16000 Hz instead of 8000"):
        demo.prompts.read_language(str(tmp_path / "texts"), str(tmp_path / "audio"), "it")


def test_one_phrase(demo, tmp_path):
    """The n-gram model allows one phrase, not none or several, also where those have better labels."""
    prefix = str(tmp_path / "en")
    demo.prompts.write_lexicon(prefix, {"a b": "ab", "a": "just/a", "b": "b", "b a": "ba"})
    labels = DecodedLabels(["a", "b"])
    lexicon = read_lexicon(prefix + ".lexicon", labels)
    lm = open_ngram(prefix + ".arpa", None, lexicon)
    options = BeamOptions(beam_size=100, beam_threshold=1e30, labels_per_frame=0, lm_scale=1.0, nbest=100)
    decoder = BeamDecoder(3, 2, labels, options, lexicon=lexicon, lm=lm)

    def found(path):
        return decoder.decode(np.log(np.where(np.eye(3)[path], 0.8, 0.1)))[0].words

    assert found([0, 2, 2]) == ("just/a",) and found([0, 1, 2]) == ("ab",) and found([2, 1, 0]) == ("ba",)
    assert found([0, 1, 0, 1, 0]) in {("ab",), ("ba",)}
    assert len(found([2, 2, 2])) == 1


def written_corpus(demo, folder):
    prompts = [
        prompt(demo, "%s/%s" % (language, text), text) for language in demo.prompts.VOICES for text in ("xyz", "longer")
    ]
    prompts.append(prompt(demo, "en/same", "Xyz"))
    names = demo.prompts.phrases(prompts)
    for language in demo.prompts.VOICES:
        of_language = [p for p in prompts if p.language == language]
        demo.prompts.write_set(str(folder / ("prompts_test_" + language)), of_language, names, "")
    return prompts


def test_scores_of_prompts(demo, tmp_path):
    """A phrase that sounds the same is right; with all languages possible, the language has to be right as well."""
    prompts = written_corpus(demo, tmp_path)
    known = demo.score_prompts.read_prompts(str(tmp_path))
    assert known["en/same"] == known["en/xyz"] == ("en", "xyz", 3) and len(known) == 11
    right = {p.tag: "xyz" if p.name == "same" else p.name for p in prompts}
    for language in demo.prompts.VOICES:
        found = {tag.split("/")[0] + tag[2:]: phrase for tag, phrase in right.items() if tag.startswith(language)}
        found = {tag: "longer" if tag == "it/xyz" else phrase for tag, phrase in found.items()}
        (tmp_path / ("prompts_1_decode_%s.py" % language)).write_text(repr(found))
    lines = [
        "%s\t%s\t%s\t-1.5\n" % (tag, "ru" if tag == "en/longer" else tag[:2], phrase) for tag, phrase in right.items()
    ]
    (tmp_path / "prompts_1_c_any.tsv").write_text("".join(lines))
    prefix = str(tmp_path / "prompts_1")
    beam, anything = (demo.score_prompts.answers(prefix, system) for system in ("beam", "any"))
    rates = demo.score_prompts.rates
    assert rates(known, beam) == (pytest.approx(100 / 11), 0) and rates(known, beam, "it") == (50, 0)
    assert rates(known, anything) == (pytest.approx(100 / 11), 20) and rates(known, anything, "en")[1] == 100
    assert demo.score_prompts.answers(prefix, "given") is None
    assert demo.score_prompts.nearest_answers(str(tmp_path)) is None
    for language in demo.prompts.VOICES:
        found = {tag: "%s/xyz" % language for tag in right if tag.startswith(language)}
        (tmp_path / ("prompts_test_%s_nearest.py" % language)).write_text(repr(found))
    nearest = demo.score_prompts.nearest_answers(str(tmp_path))
    assert rates(known, nearest) == (pytest.approx(100 * 5 / 11), 100)
    with pytest.raises(ValueError, match="no answer to 1 of 11 prompts, e.g. 'fr/xyz'"):
        rates(known, {tag: answer for tag, answer in beam.items() if tag != "fr/xyz"})


def test_phrases_that_are_spoken(demo, tmp_path):
    """One text for each phrase, also for those of prompts that are in no test."""
    written_corpus(demo, tmp_path)
    train = [prompt(demo, "en/a", "A.", "a"), prompt(demo, "en/b", "Ah", "a"), prompt(demo, "ru/a", "да", "a")]
    names = demo.prompts.phrases(train)
    for name, part in (("train", train[:1]), ("dev", train[1:])):
        demo.prompts.write_set(str(tmp_path / ("prompts_" + name)), part, names, "")
    found = demo.speak_prompts.read_phrases(str(tmp_path), "en")
    assert found == {"a": "A.", "xyz": "xyz", "longer": "longer"}
    assert demo.draw_prompts.some_tags(str(tmp_path)) == [language + "/xyz" for language in demo.prompts.VOICES]


@pytest.mark.parametrize("tags, expected", [(True, "en/b"), (False, "y")])
def test_nearest_answers(demo, tmp_path, monkeypatch, tags, expected):
    """Tags or texts of what is known; audio of any rate."""
    rng = np.random.default_rng(3)
    sounds = {name: rng.uniform(-0.5, 0.5, 4000) * np.hanning(4000) ** power for name, power in (("a", 0), ("b", 4))}
    for table, entries in (("known", [("a", "x"), ("b", "y")]), ("asked", [("b", "z")])):
        for name, _ in entries:
            write(tmp_path / (name + ".wav"), sounds[name])
        lines = ["%s.wav\ten/%s\t%s\n" % (name, name, text) for name, text in entries]
        (tmp_path / (table + ".tsv")).write_text("file\tseq_name\ttext\n" + "".join(lines))
        assert (
            returnn_tf_main(
                ["data", "oggzip", str(tmp_path / (table + ".tsv")), "--output", str(tmp_path / (table + ".zip"))]
            )
            == 0
        )
    options = ["--tags"] if tags else []
    monkeypatch.setattr(
        "sys.argv", ["x", str(tmp_path / "known"), str(tmp_path / "asked"), "--sample-rate", "8000", *options]
    )
    assert demo.nearest.main() == 0
    assert (tmp_path / "asked_nearest.py").read_text() == "{'en/b': '%s'}\n" % expected


def test_spectrogram(demo):
    """A tone of 1 kHz, 5 ms from frame to frame."""
    tone = np.sin(2 * np.pi * 1000 / demo.prompts.RATE * np.arange(1000)).astype(np.float32)
    found = demo.draw_prompts.spectrogram(tone)
    assert found.shape == (257, 21) and found.argmax(axis=0).tolist() == 21 * [64]


def test_languages_of_prompts(demo, tmp_path):
    """Their number is an input of the network, and that of the lexicons of the decoder in C."""
    written_corpus(demo, tmp_path)
    for number, language in enumerate(demo.prompts.VOICES):
        labels, size = demo.alignments.read(str(tmp_path / ("prompts_test_%s_language.hdf" % language)))
        assert size == 5 and labels["%s/xyz" % language].tolist() == [number]
    inputs = {name: {"tensor": name + ":0"} for name in ("data", "data_size0", "language", "language_size0")}
    output = {"tensor": "out:0", "vocabulary": "v.txt", "blank": 7}
    facts = {"inputs": inputs, "outputs": {"output": output}, "native": {"libraries": ["lstm.so"]}}
    (tmp_path / "model.json").write_text(json.dumps(facts))
    words = demo.phrases.arguments(str(tmp_path), "out/prompts", ["it", "en"])
    assert words[-8:] == [
        "--lexicon",
        "3",
        "it",
        "out/prompts_it.lexicon",
        "--lexicon",
        "0",
        "en",
        "out/prompts_en.lexicon",
    ]
    for name, values in {
        "--condition": ["language:0", "language_size0:0"],
        "--blank": ["7"],
        "--library": [str(tmp_path / "lstm.so")],
    }.items():
        at = words.index(name) + 1
        assert words[at : at + len(values)] == values


def test_steps_of_prompts(demo, tmp_path):
    """What is decoded is written where it is scored."""
    steps = Steps(tmp_path)
    demo.run.make_prompts(steps, "packages", few=True)
    zips = [command.split("--output ")[1].split()[0] for command in steps.commands if command.startswith("data oggzip")]
    assert zips == [
        "out/prompts_%s.zip" % name for name in ("train", "dev", *("test_" + l for l in demo.prompts.VOICES))
    ]
    assert all("--sample-rate 8000" in command for command in steps.commands[1:])
    steps.commands.clear()
    demo.run.train_prompts(steps, "packages", 2, few=False)
    decoded = [
        command.split("--output out/")[1].split()[0] for command in steps.commands if command.startswith("decode")
    ]
    for name in decoded:
        (tmp_path / name).write_text("{}")
    assert demo.score_prompts.answers(str(tmp_path / "prompts_2"), "beam") == {}
    after = [command.split()[:2] for command in steps.commands[-4:]]
    assert after == [
        ["export", "prompts.config"],
        ["phrases.py", "out/prompts_2"],
        ["plot", "out/prompts_2_learning_rates"],
        ["draw_prompts.py", "out/prompts_2"],
    ]


def test_without_espeak(demo, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["prompts.py", str(tmp_path / "packages"), str(tmp_path)])
    assert demo.prompts.main() == 1
    assert "apt-get install espeak-ng" in capsys.readouterr().err


QUOTATIONS = """\
Krása pomíjí,
  blbost je věčná. Ano!
\t\t-- Nestroy
%
Kadlec: - Ne -- nikdy
%
Je 8 hodin. Ahoj!
"""


def package_of_quotations(demo, folder, **files):
    for name, content in files.items():
        write(folder / demo.quotations.FORTUNES / "cs" / name, content)
    return SimpleNamespace(folder=str(folder))


def test_quotations(demo, tmp_path):
    """Sentences, without those who said them, and without other languages and indices."""
    files = {"b": QUOTATIONS, "a": "Nazdar.", "a.dat": "x", "a.u8": "Nazdar.", "klasik-sk": "Čo?"}
    package = package_of_quotations(demo, tmp_path, **files)
    sentences = list(demo.quotations.sentences_of(package, "cs"))
    expected = ["Krása pomíjí, blbost je věčná.", "Ano!", "Kadlec:", "Ne", "nikdy", "Je 8 hodin.", "Ahoj!"]
    assert sentences == ["Nazdar.", *expected]
    with pytest.raises(demo.dialogue.PackageError, match="no quotations in"):
        list(demo.quotations.sentences_of(SimpleNamespace(folder=str(tmp_path / "none")), "cs"))


def test_more_text(demo, tmp_path):
    """What the language models get has nothing of dev and test, and no text twice."""
    sets = {"train": [], "dev": [utterance(demo, "x", "ano")], "test": []}
    path = str(tmp_path / "cs_more.txt")
    demo.dialogue.write_more_text(path, ["Ne?", "Ano!", "Je 8 hodin.", "ne", "Buď rada"], "cs", sets)
    assert demo.lm.more_texts(str(tmp_path / "cs")) == ["buď rada", "ne"]
    assert demo.lm.more_texts(str(tmp_path / "nl")) == []
    assert demo.synthesise.speakable(["a b", "a b c", "a " * 17, "a " * 16]) == ["a b c", "a " * 16]


def test_models_with_more_text(demo, tmp_path, monkeypatch, capsys):
    """The words of other texts can be recognised, and their n-grams are in the model."""
    for name, texts in (("train", ["a b", "b a"]), ("dev", ["a c", "b c"])):
        rows = "".join("x.wav\t%d\t%s\n" % entry for entry in enumerate(texts))
        write(tmp_path / ("cs_%s.tsv" % name), "file\tseq_name\ttext\n" + rows)
    write(tmp_path / "cs_more.txt", "a c\nc c b\n")
    monkeypatch.setattr("sys.argv", ["lm.py", str(tmp_path / "cs")])
    assert demo.lm.main() == 0
    assert (tmp_path / "cs.words").read_text() == "a\nb\nc\n"
    assert "\tc c b\n" in (tmp_path / "cs_words.arpa").read_text()
    before, after = (float(figure) for figure in re.findall(r"words: .*perplexity ([\d.]+)", capsys.readouterr().out))
    assert after < before
