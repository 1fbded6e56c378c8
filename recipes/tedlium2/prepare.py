#!/usr/bin/env python3
"""Prepares TED-LIUM 2: tables of the utterances for ``returnn-tf data oggzip``, and texts.

    python prepare.py            out/train.tsv, dev.tsv, test.tsv; out/train.txt, out/lm.txt.gz

The corpus is TEDLIUM_release2/ as it is unpacked: train/stm, train/sph and so on, LM/*.en.gz.
"""

from __future__ import annotations

import glob
import gzip
import os
import re
import sys
from typing import NamedTuple

CORPUS = "TEDLIUM_release2"
SETS = ("train", "dev", "test")
IGNORED = "ignore_time_segment_in_scoring"


class Mistake(Exception):
    """What the user has to change."""


class Utterance(NamedTuple):
    """A line of an stm file.

    :param name: of the talk, with the times in units of 10 ms
    :param audio: path in the corpus
    :param start: in seconds, as end
    """

    name: str
    audio: str
    start: float
    end: float
    text: str


def cleaned(text: str) -> str:
    """Return the words alone.

    Left out are numbers of pronunciations, ``to(2)``, sounds, ``{BREATH}``, ``<sil>``, ``[NOISE]``, and ``<unk>``
    (not understood). ``it 's`` is one word.
    """
    text = re.sub(r"\(\d+\)", "", text)
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]|<[^>]*>", " ", text)
    return re.sub(r" '(?=(?:s|t|d|m|ll|re|ve)\b)", "'", " ".join(text.split()))


def utterances(path: str, audio: str) -> list[Utterance]:
    """Read an stm file: ``FILE CHANNEL SPEAKER START END <LABELS> TEXT`` in each line.

    :param audio: of the talk
    """
    found = []
    with open(path, encoding="utf8") as file:
        for number, line in enumerate(file, 1):
            fields = line.split(maxsplit=6)
            if not fields or line.startswith(";;"):
                continue
            try:
                start, end = float(fields[3]), float(fields[4])
            except (IndexError, ValueError):
                raise Mistake(
                    "%s, line %d has no start and end as fields 4 and 5: is it an stm file?" % (path, number)
                ) from None
            labels, text = fields[5:6], " ".join(fields[6:])
            if not labels or not labels[0].startswith("<"):
                raise Mistake("%s, line %d has no <labels> as field 6" % (path, number))
            text = cleaned(text)
            if text and IGNORED not in text:
                name = "%s-%07d-%07d" % (fields[0], round(100 * start), round(100 * end))
                found.append(Utterance(name, audio, start, end, text))
    return found


def read_set(name: str) -> list[Utterance]:
    """Return the utterances of a set, talk by talk."""
    stms = sorted(glob.glob(os.path.join(CORPUS, name, "stm", "*.stm")))
    if not stms:
        raise Mistake(
            "there is no %s/%s/stm/*.stm: unpack TEDLIUM_release2.tar.gz here, or link to it" % (CORPUS, name)
        )
    found = []
    for stm in stms:
        talk = os.path.basename(stm)[: -len(".stm")]
        audio = os.path.join(CORPUS, name, "sph", talk + ".sph")
        if not os.path.exists(audio):
            raise Mistake("%s does not exist, but %s does" % (audio, stm))
        check_audio(audio)
        found += utterances(stm, audio)
    return found


def check_audio(path: str) -> None:
    """Raise a mistake for a file of NIST that is compressed by shorten, which libsndfile does not read."""
    with open(path, "rb") as file:
        header = file.read(1024)
    if header.startswith(b"NIST_1A") and b"shorten" in header:
        raise Mistake("%s is compressed by shorten. Decompress all: sph2pipe -p -f wav IN.sph OUT.sph" % path)


def write_table(path: str, found: list[Utterance]) -> None:
    """Write the table that ``returnn-tf data oggzip`` reads."""
    with open(path, "w", encoding="utf8") as file:
        file.write("file\tseq_name\tstart\tend\ttext\n")
        file.writelines("%s\t%s\t%.2f\t%.2f\t%s\n" % (u.audio, u.name, u.start, u.end, u.text) for u in found)
    print("wrote %s: %d utterances, %.1f hours" % (path, len(found), sum(u.end - u.start for u in found) / 3600))


def main() -> int:
    """Run the command."""
    os.makedirs("out", exist_ok=True)
    try:
        for name in SETS:
            found = read_set(name)
            write_table("out/%s.tsv" % name, found)
            with open("out/%s.txt" % name, "w", encoding="utf8") as file:
                file.writelines(u.text + "\n" for u in found)
        texts = sorted(glob.glob(os.path.join(CORPUS, "LM", "*.en.gz")))
        if not texts:
            raise Mistake("there is no %s/LM/*.en.gz, texts for the language model" % CORPUS)
        with gzip.open("out/lm.txt.gz", "wt", encoding="utf8") as output:
            for path in texts:
                with gzip.open(path, "rt", encoding="utf8") as lines:
                    output.writelines(text + "\n" for text in map(cleaned, lines) if text)
        print("wrote out/lm.txt.gz")
    except (Mistake, OSError) as exc:
        print("prepare.py: %s" % exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
