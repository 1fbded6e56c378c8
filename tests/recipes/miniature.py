"""Miniature corpora in the layouts of real ones: a few utterances, a tone for each letter."""

from __future__ import annotations

import gzip
import pathlib
import random
from collections.abc import Sequence

import numpy as np
import soundfile
from numpy.typing import NDArray

WORDS = ("A", "CAT", "DOG", "SEES", "THE", "OLD", "TREE", "AND", "HE", "SLEEPS", "IT'S", "RAIN")


def sentences(count: int, seed: int) -> list[str]:
    """Return sentences of three to six words."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, 6))) for _ in range(count)]


def tones(text: str, rate: int) -> NDArray[np.float32]:
    """Return audio: for each letter 60 ms of a tone of its own, with some noise. Floats below 0.5, [time]."""
    time = np.arange(round(0.06 * rate)) / rate
    parts = [np.sin(2 * np.pi * 60 * (ord(letter) - 30) * time) for letter in text]
    samples = 0.3 * np.concatenate(parts) + 0.01 * np.random.default_rng(len(text)).normal(size=len(text) * len(time))
    return samples.astype(np.float32)


def librispeech(folder: pathlib.Path) -> None:
    """Write ``LibriSpeech`` with a chapter in each part, and the texts of its language models."""
    parts = {"train-clean-100": 12, "train-clean-360": 4, "train-other-500": 4}
    parts.update(dict.fromkeys(("dev-clean", "dev-other", "test-clean", "test-other"), 2))
    for number, (part, count) in enumerate(parts.items()):
        speaker, chapter = 100 + number, 200 + number
        place = folder / "LibriSpeech" / part / str(speaker) / str(chapter)
        place.mkdir(parents=True)
        lines = []
        for i, text in enumerate(sentences(count, seed=number)):
            name = "%d-%d-%04d" % (speaker, chapter, i)
            lines.append("%s %s\n" % (name, text))
            soundfile.write(place / (name + ".flac"), tones(text, 16000), 16000)
        (place / ("%d-%d.trans.txt" % (speaker, chapter))).write_text("".join(lines))
    write_gz(folder / "librispeech-lm-norm.txt.gz", sentences(200, seed=50))
    (folder / "librispeech-vocab.txt").write_text("".join(word + "\n" for word in WORDS))
    write_language_model(folder / "4-gram.arpa.gz")


def write_gz(path: pathlib.Path, lines: Sequence[str]) -> None:
    """Write a compressed text."""
    with gzip.open(path, "wt", encoding="utf8") as file:
        file.writelines(line + "\n" for line in lines)


def write_language_model(path: pathlib.Path) -> None:
    """Write a unigram model of the words in the format ARPA, compressed."""
    entries = ["-99\t<s>\t0", "-1\t</s>", "-2\t<unk>", *("-1.2\t%s" % word for word in WORDS)]
    write_gz(path, ["\\data\\", "ngram 1=%d" % len(entries), "", "\\1-grams:", *entries, "", "\\end\\"])


#: German, English
TRANSLATED = (("die Katze", "the cat"), ("der Hund", "the dog"), ("sieht", "sees"), ("den alten Baum", "the old tree"),
              ("schläft", "sleeps"), ("und", "and"), ("heute", "today"))  # fmt: skip


def wmt17(folder: pathlib.Path) -> None:
    """Write ``training`` with two corpora, of which some pairs are no translations, and ``dev`` with two test sets."""
    rng = random.Random(1)
    for name in ("training", "dev"):
        (folder / name).mkdir()

    def made(count: int) -> list[tuple[str, str]]:
        rows = [rng.choices(TRANSLATED, k=rng.randint(2, 4)) for _ in range(count)]
        return [(" ".join(pair[0] for pair in row), " ".join(pair[1] for pair in row)) for row in rows]

    for corpus in ("europarl-v7.de-en", "news-commentary-v12.de-en"):
        rows = [
            *made(30),
            ("", "nothing"),
            ("zu lang " * 60, "too long " * 60),
            ("ein Wort", "seven words or more are too many"),
        ]
        for side, language in enumerate(("de", "en")):
            path = folder / "training" / ("%s.%s" % (corpus, language))
            path.write_text("".join(row[side] + "\n" for row in rows), encoding="utf8")
    for name in ("newstest2015", "newstest2017"):
        rows = [("Tom & Jerry: die Katze", "Tom & Jerry: the cat"), *made(4)]
        for side, (kind, language) in enumerate((("src", "de"), ("ref", "en"))):
            segments = [
                '<seg id="%d">%s</seg>\n' % (i, row[side].replace("&", "&amp;")) for i, row in enumerate(rows, 1)
            ]
            text = '<%sset setid="%s" srclang="any">\n<doc>\n<p>\n%s</p>\n</doc>\n</%sset>\n'
            path = folder / "dev" / ("%s-deen-%s.%s.sgm" % (name, kind, language))
            path.write_text(text % (kind, name, "".join(segments), kind), encoding="utf8")


def tedlium2(folder: pathlib.Path) -> None:
    """Write ``TEDLIUM_release2``: a talk for each set, as NIST's sphere and stm, and texts."""
    for number, name in enumerate(("train", "dev", "test")):
        place = folder / "TEDLIUM_release2" / name
        talk, end, lines, samples = "Speaker%d_2010" % number, 0.0, [], []
        for i, text in enumerate(sentences(6 if name == "train" else 2, seed=70 + number)):
            samples += [np.zeros(1600, np.float32), tones(text, 16000)]
            start, end = end + 0.1, end + 0.1 + len(samples[-1]) / 16000
            shown = text.lower().replace("it's", "it(2) 's {BREATH}")
            lines.append("%s 1 %s %.2f %.2f <o,f0,male> %s\n" % (talk, talk[:-5], start, end, shown))
            if not i:
                lines.append("%s 1 %s 0.00 0.10 <o,,unknown> ignore_time_segment_in_scoring\n" % (talk, talk))
        (place / "stm").mkdir(parents=True)
        (place / "stm" / (talk + ".stm")).write_text("".join(lines))
        (place / "sph").mkdir()
        soundfile.write(place / "sph" / (talk + ".sph"), np.concatenate(samples), 16000, "PCM_16", format="NIST")
    (folder / "TEDLIUM_release2" / "LM").mkdir()
    texts = [text.lower().replace("it's", "it 's") for text in sentences(100, seed=80)]
    write_gz(folder / "TEDLIUM_release2" / "LM" / "ted.en.gz", texts)


def switchboard(folder: pathlib.Path) -> None:
    """Write two conversations of two channels, an alignment as of Kaldi, a test set, a lexicon and an n-gram model."""
    alignment = []
    for number in (2001, 2005):
        sides = [sentences(3, seed=number + side) for side in range(2)]
        place = folder / "swb_ms98_transcriptions" / str(number)[:2] / str(number)
        place.mkdir(parents=True)
        samples = np.zeros((8 * 8000, 2), np.float32)
        for side, texts in enumerate(sides):
            lines = ["sw%d%s-ms98-a-0001 0.000000 0.200000 [silence]\n" % (number, "AB"[side])]
            for i, text in enumerate(texts):
                letters = text[:30]
                audio = tones(letters, 8000)
                start = 0.2 + 2.5 * i
                samples[round(start * 8000) : round(start * 8000) + len(audio), side] = audio
                end = start + len(audio) / 8000
                word = "[laughter-%s]" % letters.split()[0].lower()
                shown = " ".join([word, *letters.lower().split()[1:], "[noise]"])
                lines.append("sw%d%s-ms98-a-%04d %.6f %.6f %s\n" % (number, "AB"[side], i + 2, start, end, shown))
                name = "sw0%d-%s_%06d-%06d" % (number, "AB"[side], int(100 * start + 0.5), int(100 * end + 0.5))
                labels = np.repeat([ord(letter) % 12 for letter in letters], 6)[: -2 + i % 2]  # a frame more, or none
                alignment.append("%s %s\n" % (name, " ".join(map(str, labels))))
            (place / ("sw%d%s-ms98-a-trans.text" % (number, "AB"[side]))).write_text("".join(lines))
        disc = folder / ("swb1_d%d" % (number % 2 + number // 2004)) / "data"
        disc.mkdir(parents=True)
        soundfile.write(disc / ("sw0%d.sph" % number), samples, 8000, "ULAW", format="NIST")
    (folder / "alignment.txt").write_text("".join(alignment[:-1]))  # the last segment has none
    (folder / "hub5e_00" / "english").mkdir(parents=True)
    audio = tones("THE OLD TREE", 8000)
    path = folder / "hub5e_00" / "english" / "en_4156.sph"
    soundfile.write(path, np.stack([audio, audio], axis=1), 8000, "ULAW", format="NIST")
    (folder / "hub5e_00" / "hub5e00.stm").write_text(
        ";; comment\nen_4156 A en_4156_A 0.00 0.40 <O,en,F,en-F> THE OLD\n"
        "en_4156 B en_4156_B 0.10 0.60 <O,en,M,en-M> OLD TREE\n"
        "en_4156 B en_4156_B 0.60 0.70 <O,en,M,en-M> IGNORE_TIME_SEGMENT_IN_SCORING\n"
    )
    spelt = ["%s\t%s\n" % (word, " ".join(str(ord(letter) % 12) for letter in word)) for word in WORDS]
    (folder / "lexicon.txt").write_text("".join(spelt))
    write_language_model(folder / "4-gram.arpa.gz")
