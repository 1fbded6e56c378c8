#!/usr/bin/env python3
"""Counts wrong words (of Russian: phones, without pauses) and characters of all systems whose answers are there.

    python score.py out --language cs           out/cs_results.json, and a table

Rates are those of the package jiwer, in percent; of several seeds the mean, and in brackets the least and the largest.
Of dialogue, the leading roles are counted also by themselves, as most of the other ones speak in no training set.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import os
import re
import sys
from collections.abc import Container, Mapping
from typing import Optional

import jiwer

SEARCHES = {"ctc_decision": "CTC, best path", "output_decision": "attention"}
DECODED = {
    "words": "CTC, known words, trigram model",
    "labels": "CTC, model of 8 characters",
    "phones": "phone model",
}
SILENCE = "pau"  # of the Russian phones, which is no word in the other languages
NEAREST = "the training utterance that sounds most alike"
MODEL = re.compile(r"((?:conformer|blstm)(?:_pretrained|_from_cs)?|given|ctc|realigned)_(\d+)")
LEADING_ROLES = ("small", "big")
Texts = dict[str, str]  # tag -> words


def read_table(path: str, speakers: Container[str] = ()) -> Texts:
    """Return what was said.

    :param speakers: by them only, if there are any
    """
    with open(path, encoding="utf8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {row["seq_name"]: row["text"] for row in rows if not speakers or row.get("speaker_name") in speakers}


def read_answers(path: str) -> Optional[dict[str, object]]:
    """Return what a search or a decoding wrote, None if it has not run."""
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf8") as file:
        found = ast.literal_eval(file.read())
    assert isinstance(found, dict)
    return found


def rates(references: Texts, hypotheses: Mapping[str, object]) -> tuple[float, float]:
    """Return word and character error rate in percent.

    :raises ValueError: there is no answer to some of the utterances, so that the rates would be those of another set
    """
    missing = sorted(set(references) - set(hypotheses))
    if missing:
        raise ValueError("no answer to %d of %d utterances, e.g. %r" % (len(missing), len(references), missing[0]))
    said = [without_silence(references[tag]) for tag in sorted(references)]
    found = [without_silence(str(hypotheses[tag])) for tag in sorted(references)]
    return 100 * float(jiwer.wer(said, found)), 100 * float(jiwer.cer(said, found))


def without_silence(text: str) -> str:
    """Return a text without pauses."""
    return " ".join(word for word in text.split() if word != SILENCE)


def systems(folder: str, language: str) -> dict[str, dict[str, Mapping[str, object]]]:
    """Return the answers of all systems: name of the system -> seed -> tag -> text."""
    found: dict[str, dict[str, Mapping[str, object]]] = {}

    def add(system: str, seed: str, answers: Optional[Mapping[str, object]]) -> None:
        if answers is not None:
            found.setdefault(system, {})[seed] = answers

    add(NEAREST, "", read_answers(os.path.join(folder, "%s_test_nearest.py" % language)))
    models = {
        name[len(language) + 1 : -len("_model")] for name in os.listdir(folder) if name.startswith(language + "_")
    }
    for encoder, seed in sorted(match.groups() for match in map(MODEL.fullmatch, models) if match):
        prefix = os.path.join(folder, "_".join([language, encoder, seed]))
        searched = read_answers(prefix + "_search.py")
        for layer, title in SEARCHES.items():
            texts = searched and {tag: answers[layer] for tag, answers in searched.items()}  # type: ignore[index]
            add("%s: %s" % (encoder.replace("_", ", "), title), seed, texts)
        for kind, title in DECODED.items():
            add("%s: %s" % (encoder.replace("_", ", "), title), seed, read_answers("%s_decode_%s.py" % (prefix, kind)))
    return found


def spread(values: list[float]) -> str:
    """Return the mean, and of several values the range."""
    mean = "%.1f" % (sum(values) / len(values))
    return mean if len(values) == 1 else "%s (%.1f - %.1f)" % (mean, min(values), max(values))


def main() -> int:
    """Run the command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--language", default="cs")
    args = parser.parse_args()
    table = os.path.join(args.folder, args.language + "_test.tsv")
    parts = {"": read_table(table), ", leading roles": read_table(table, LEADING_ROLES)}
    results: dict[str, dict[str, list[float]]] = {}
    for system, of_seeds in systems(args.folder, args.language).items():
        results[system] = {}
        for part, references in parts.items():
            if not references:
                continue
            try:
                found = [rates(references, answers) for answers in of_seeds.values()]
            except ValueError as error:
                print("%s: %s" % (system, error), file=sys.stderr)
                return 1
            for kind, values in zip(("wrong words", "wrong characters"), zip(*found)):
                results[system][kind + part] = list(values)
    with open(os.path.join(args.folder, args.language + "_results.json"), "w", encoding="utf8") as file:
        json.dump(results, file, indent=1)
    for number, (system, of_kind) in enumerate(results.items()):
        if not number:
            print("| %s, test |%s" % (args.language, "".join(" %s, %% |" % kind for kind in of_kind)))
            print("|---|" + "---|" * len(of_kind))
        print("| %s |%s" % (system, "".join(" %s |" % spread(values) for values in of_kind.values())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
