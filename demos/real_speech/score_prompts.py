#!/usr/bin/env python3
"""Counts the prompts that were taken for another phrase, by language; of several seeds the mean, least and largest.

    python score_prompts.py out          out/prompts_results.json, and a table

A phrase is right if it is the prompt, or one of those that sound the same.
"""

from __future__ import annotations

import argparse
import csv
import glob
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Optional

from prompts import VOICES
from score import read_answers, spread

SHORT = 5  # phones; most of the shorter ones are letters and numbers
NEAREST = "the phrase of espeak-ng that sounds most alike"
SYSTEMS = {
    "beam": "BLSTM, beam search",
    "given": "the same in C, full sum",
    "any": "the same in C, of all languages",
}


class Prompt(NamedTuple):
    """What was said."""

    language: str
    phrase: str
    phones: int


class Rates(NamedTuple):
    """Shares of prompts in percent: wrong ones, and wrong ones among those of more than ``SHORT`` phones."""

    wrong: float
    wrong_long: float


def read_prompts(folder: str) -> dict[str, Prompt]:
    """Return all prompts of the test, by tag."""
    found = {}
    for language in VOICES:
        with open(os.path.join(folder, "prompts_test_%s.tsv" % language), encoding="utf8", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                found[row["seq_name"]] = Prompt(language, row["phrase"], len(row["text"].split()))
    return found


def answers(prefix: str, system: str) -> Optional[dict[str, tuple[str, str]]]:
    """Return the language and phrase that a system found for each tag; None if it has not run."""
    if system == "beam":
        by_language = {language: read_answers("%s_decode_%s.py" % (prefix, language)) for language in VOICES}
        if None in by_language.values():
            return None
        return {
            tag: (language, str(phrase)) for language, of in by_language.items() for tag, phrase in (of or {}).items()
        }
    path = "%s_c_%s.tsv" % (prefix, system)
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    return {tag: (language, phrase) for tag, language, phrase, _ in rows}


def nearest_answers(folder: str) -> Optional[dict[str, tuple[str, str]]]:
    """Return what the baseline found; None if it has not run for all languages."""
    found: dict[str, tuple[str, str]] = {}
    for language in VOICES:
        of_language = read_answers(os.path.join(folder, "prompts_test_%s_nearest.py" % language))
        if of_language is None:
            return None
        found.update((tag, (language, str(answer).split("/", 1)[1])) for tag, answer in of_language.items())
    return found


def rates(prompts: Mapping[str, Prompt], found: Mapping[str, tuple[str, str]], language: str = "") -> Rates:
    """Return the error rates of a language, or of all.

    :raises ValueError: there is no answer to some of the prompts
    """
    missing = sorted(set(prompts) - set(found))
    if missing:
        raise ValueError("no answer to %d of %d prompts, e.g. %r" % (len(missing), len(prompts), missing[0]))
    asked = {tag: prompt for tag, prompt in prompts.items() if language in ("", prompt.language)}

    def share(tags: Iterable[str]) -> float:
        wrong = [found[tag] != (prompts[tag].language, prompts[tag].phrase) for tag in tags]
        return 100 * sum(wrong) / max(1, len(wrong))

    return Rates(share(asked), share(tag for tag, prompt in asked.items() if prompt.phones > SHORT))


def main() -> int:
    """Run the command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    args = parser.parse_args()
    prompts = read_prompts(args.folder)
    models = glob.glob(os.path.join(glob.escape(args.folder), "prompts_*_model"))
    prefixes = sorted(path[: -len("_model")] for path in models if re.search(r"prompts_\d+_model$", path))
    results: dict[str, dict[str, list[Rates]]] = {}
    by_system = {title: [answers(prefix, system) for prefix in prefixes] for system, title in SYSTEMS.items()}
    try:
        for title, of_models in {NEAREST: [nearest_answers(args.folder)], **by_system}.items():
            found = [of for of in of_models if of is not None]
            if found:
                results[title] = {name or "all": [rates(prompts, of, name) for of in found] for name in (*VOICES, "")}
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    with open(os.path.join(args.folder, "prompts_results.json"), "w", encoding="utf8") as file:
        json.dump(
            {title: {name: [r._asdict() for r in of] for name, of in by.items()} for title, by in results.items()},
            file,
            indent=1,
        )
    print("| wrong phrases, %% | %s | all | more than %d phones |" % (" | ".join(VOICES), SHORT))
    print("|---|%s---|---|" % ("---|" * len(VOICES)))
    for title, by_language in results.items():
        cells = [spread([of.wrong for of in by_language[name]]) for name in (*VOICES, "all")]
        print("| %s | %s | %s |" % (title, " | ".join(cells), spread([of.wrong_long for of in by_language["all"]])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
