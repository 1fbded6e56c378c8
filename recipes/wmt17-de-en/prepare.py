#!/usr/bin/env python3
"""Prepares the parallel texts of WMT17, German to English, for TranslationDataset.

    python prepare.py texts             joins the parallel texts: out/pairs.de, out/pairs.en
    python prepare.py pieces            splits them and the test sets into pieces: out/source.train.gz, ...
    python prepare.py plain TSV TEXT    writes what the search found, joined to words, in the order of the test set

The texts are those of training/ (pairs of files x.de, x.en) and dev/ (newstest2015-deen-src.de.sgm, ...).
"""

from __future__ import annotations

import argparse
import glob
import gzip
import html
import os
import pickle
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

LONGEST = 100  # words of a sentence
RATIO = 2.5  # of the numbers of words of a pair, from 5 words on
SETS = {"dev": "newstest2015", "test": "newstest2017"}


class Mistake(Exception):
    """What the user has to change."""


def parallel_texts() -> list[tuple[str, str]]:
    """Return the pairs of files in training/: europarl-v7.de-en.de and europarl-v7.de-en.en, and so on."""
    found = [(path, path[:-3] + ".en") for path in sorted(glob.glob("training/*.de"))]
    if not found:
        raise Mistake("there is no training/*.de: unpack the parallel corpora of WMT17 into training/")
    missing = [english for _, english in found if not os.path.exists(english)]
    if missing:
        raise Mistake("there is no %s, beside its German half" % missing[0])
    return found


def pairs(german: str, english: str) -> Iterator[tuple[str, str]]:
    """Yield the sentences of two files, line by line; blanks are single."""
    with open(german, encoding="utf8") as source, open(english, encoding="utf8") as target:
        while True:
            lines = source.readline(), target.readline()
            if not all(lines):
                if any(lines):
                    raise Mistake("%s and %s have different numbers of lines" % (german, english))
                return
            yield " ".join(lines[0].split()), " ".join(lines[1].split())


def is_translation(source: str, target: str) -> bool:
    """Return whether two texts may be a translation of each other, by their numbers of words."""
    counts = len(source.split()), len(target.split())
    return min(counts) > 0 and max(counts) <= LONGEST and (max(counts) < 5 or max(counts) <= RATIO * min(counts))


def sentences(path: str) -> list[str]:
    """Return the segments of a test set in the format SGML of WMT."""
    try:
        with open(path, encoding="utf8") as file:
            found = re.findall(r"<seg\b[^>]*>(.*?)</seg>", file.read(), re.S | re.I)
    except OSError as exc:
        raise Mistake(
            "%s can't be read: %s. Unpack dev.tgz and test.tgz of WMT17 into dev/" % (path, exc.strerror)
        ) from exc
    if not found:
        raise Mistake("%s has no <seg>: is it a test set of WMT?" % path)
    return [" ".join(html.unescape(text).split()) for text in found]


def write_texts() -> None:
    """Write ``out/pairs.de`` and ``out/pairs.en``."""
    kept = dropped = 0
    with open("out/pairs.de", "w", encoding="utf8") as source, open("out/pairs.en", "w", encoding="utf8") as target:
        for files in parallel_texts():
            for pair in pairs(*files):
                if is_translation(*pair):
                    source.write(pair[0] + "\n")
                    target.write(pair[1] + "\n")
                    kept += 1
                else:
                    dropped += 1
    print("wrote out/pairs.de and out/pairs.en: %d pairs, %d left out" % (kept, dropped))


def write_pieces() -> None:
    """Write the files of TranslationDataset: texts of pieces, and their vocabulary, one for both languages."""
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file="out/pieces.model")
    labels = {model.id_to_piece(i): i for i in range(model.get_piece_size())}
    for side in ("source", "target"):
        with open("out/%s.vocab.pkl" % side, "wb") as file:
            pickle.dump(labels, file, protocol=2)
    for side, language in (("source", "de"), ("target", "en")):
        with open("out/pairs.%s" % language, encoding="utf8") as lines:
            write(model, "out/%s.train.gz" % side, lines)
    for name, test in SETS.items():
        source = sentences("dev/%s-deen-src.de.sgm" % test)
        target = sentences("dev/%s-deen-ref.en.sgm" % test)
        if len(source) != len(target):
            raise Mistake("%s has %d sources, but %d references" % (test, len(source), len(target)))
        write(model, "out/source.%s.gz" % name, source)
        write(model, "out/target.%s.gz" % name, target)
        with open("out/%s.en" % name, "w", encoding="utf8") as file:
            file.writelines(text + "\n" for text in target)


def write(model: Any, path: str, lines: Iterable[str]) -> None:
    """Write texts as pieces, a sentence in each line."""
    with gzip.open(path, "wt", encoding="utf8") as file:
        for line in lines:
            file.write(" ".join(model.encode(line.strip(), out_type=str)) + "\n")
    print("wrote " + path)


def write_plain(found: str, output: str) -> None:
    """Write the texts of a search output (tag, score, pieces), sorted by the number of the line in the tag."""
    with open(found, encoding="utf8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    rows.sort(key=lambda row: int(re.sub(r"\D", "", row[0])))
    with open(output, "w", encoding="utf8") as file:
        file.writelines(row[-1].replace(" ", "").replace("\u2581", " ").strip() + "\n" for row in rows)
    print("wrote %s: %d sentences" % (output, len(rows)))


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True, metavar="STEP")
    steps.add_parser("texts")
    steps.add_parser("pieces")
    plain = steps.add_parser("plain")
    plain.add_argument("found", metavar="TSV")
    plain.add_argument("output", metavar="TEXT")
    args = parser.parse_args()
    os.makedirs("out", exist_ok=True)
    try:
        if args.step == "plain":
            write_plain(args.found, args.output)
        else:
            {"texts": write_texts, "pieces": write_pieces}[args.step]()
    except (Mistake, OSError) as exc:
        print("prepare.py: %s" % exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
