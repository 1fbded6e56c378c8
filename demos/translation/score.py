#!/usr/bin/env python3
"""Compares translations with those of the catalogues, by BLEU and chrF of the package sacrebleu.

    python score.py out            out/results.json, a table, and some translations

The Transformer is compared with what needs no training: the message as it is, and the translation of the training
message which is most similar, as translators get it from their translation memory (by the package rapidfuzz).
"""

from __future__ import annotations

import argparse
import ast
import json
import os

import rapidfuzz
import sacrebleu
from corpus import Pair, read_pairs

SETS = ("messages", "packages")
COPY, MEMORY, TRANSFORMER = "the message untranslated", "the most similar training message", "Transformer, beam 6"


def text_of(pieces: str) -> str:
    """Return the text of pieces, where a low line begins a word."""
    return "".join(piece for piece in pieces.split() if piece != "<unk>").replace("\u2581", " ").strip()


def read_search(path: str) -> list[str]:
    """Return the translations in the order of the lines: tags are line-0, line-1, ..."""
    with open(path, encoding="utf8") as file:
        found = ast.literal_eval(file.read())
    return [text_of(found["line-%d" % number]) for number in range(len(found))]


def from_memory(train: list[Pair], sources: list[str]) -> list[str]:
    """Return for each message the translation of the most similar training message."""
    known = [pair.source for pair in train]
    nearest = [rapidfuzz.process.extractOne(text, known, scorer=rapidfuzz.fuzz.ratio) for text in sources]
    return [train[index].target for _, _, index in nearest]


def scores(translations: list[str], references: list[str]) -> dict[str, float]:
    """Return BLEU and chrF."""
    bleu = sacrebleu.corpus_bleu(translations, [references]).score
    return {"BLEU": bleu, "chrF": sacrebleu.corpus_chrf(translations, [references]).score}


def systems(folder: str) -> dict[str, dict[str, list[str]]]:
    """Return the translations: system -> set -> texts."""
    train = read_pairs(os.path.join(folder, "train.tsv"))
    pairs = {name: read_pairs(os.path.join(folder, name + ".tsv")) for name in SETS}
    found: dict[str, dict[str, list[str]]] = {COPY: {}, MEMORY: {}, TRANSFORMER: {}}
    translated = read_search(os.path.join(folder, "search.py"))
    for name in SETS:
        sources = [pair.source for pair in pairs[name]]
        found[COPY][name] = sources
        found[MEMORY][name] = from_memory(train, sources)
        found[TRANSFORMER][name], translated = translated[: len(sources)], translated[len(sources) :]
    return found


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--shown", type=int, default=8, help="translations to print (%(default)s)")
    args = parser.parse_args()
    found = systems(args.folder)
    pairs = {name: read_pairs(os.path.join(args.folder, name + ".tsv")) for name in SETS}
    results = {
        system: {name: scores(texts, [pair.target for pair in pairs[name]]) for name, texts in of_sets.items()}
        for system, of_sets in found.items()
    }
    with open(os.path.join(args.folder, "results.json"), "w", encoding="utf8") as file:
        json.dump(results, file, indent=1)
    for pair, text in list(zip(pairs["messages"], found[TRANSFORMER]["messages"]))[: args.shown]:
        print("message:     %s\nreference:   %s\nTransformer: %s\n" % (pair.source, pair.target, text))
    print("%-34s  %s" % ("BLEU (chrF) on", "  ".join("new %-12s" % name for name in SETS)))
    for system, of_sets in results.items():
        row = "  ".join("%5.1f (%4.1f)    " % tuple(of_sets[name].values()) for name in SETS)
        print("%-34s  %s" % (system, row))


if __name__ == "__main__":
    main()
