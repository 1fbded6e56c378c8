#!/usr/bin/env python3
"""Lets the decoder in C recognise prompts, with the language given, and with all five languages possible.

    python phrases.py out/prompts_1 out/packages --c ../decoder/c
        out/prompts_1_c_given.tsv, out/prompts_1_c_any.tsv: prompt, language, phrase, log probability

The decoder is built if it is not there or older than its sources. It reads the recordings of the package as they are.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence

from prompts import RATE, VOICES


def build(sources: str, folder: str) -> str:
    """Return the decoder, built into a folder."""
    command = ["make", "-s", "-C", sources, "PYTHON=" + sys.executable, "OUT=" + os.path.abspath(folder)]
    subprocess.run(command, check=True)
    return os.path.join(folder, "decoder_c")


def arguments(export: str, lexicons: str, languages: Iterable[str]) -> list[str]:
    """Return the arguments of the decoder that are the same for all recordings.

    :param export: folder of the SavedModel
    :param lexicons: prefix of the lexicons
    :param languages: those that are possible
    """
    with open(os.path.join(export, "model.json"), encoding="utf8") as file:
        facts = json.load(file)
    tensors = {name: entry["tensor"] for name, entry in facts["inputs"].items()}
    output = facts["outputs"]["output"]
    words = ["phrases", export, "--input", tensors["data"], "--sizes", tensors["data_size0"]]
    words += ["--condition", tensors["language"], tensors["language_size0"], "--output", output["tensor"]]
    words += ["--vocabulary", os.path.join(export, output["vocabulary"]), "--blank", str(output["blank"])]
    words += ["--rate", str(RATE)]
    for library in facts["native"]["libraries"] if facts.get("native") else ():
        words += ["--library", os.path.join(export, library)]
    for language in languages:
        words += ["--lexicon", str(list(VOICES).index(language)), language, "%s_%s.lexicon" % (lexicons, language)]
    return words


def recognised(program: str, options: Sequence[str], recordings: dict[str, str]) -> list[list[str]]:
    """Return for each recording its tag, and the language, phrase and score that the decoder found.

    :param recordings: path -> tag
    """
    done = subprocess.run([program, *options, "--", *recordings], stdout=subprocess.PIPE, text=True, check=True)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return [[recordings[path], *found] for path, *found in rows]


def main() -> int:
    """Run the command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="prefix of a model; its export is in MODEL_export")
    parser.add_argument("packages", help="folder of the packages")
    parser.add_argument("--c", metavar="DIR", help="folder of the sources", required=True)
    args = parser.parse_args()
    folder = os.path.dirname(args.model)
    lexicons, export = os.path.join(folder, "prompts"), args.model + "_export"
    found: dict[str, list[list[str]]] = {"given": [], "any": []}
    try:
        program = build(args.c, folder)
        for language in VOICES:
            path = "%s_test_%s.tsv" % (lexicons, language)
            with open(path, encoding="utf8", newline="") as file:
                rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
            recordings = {os.path.join(args.packages, row["file"]): row["seq_name"] for row in rows}
            for kind, possible in (("given", [language]), ("any", list(VOICES))):
                found[kind] += recognised(program, arguments(export, lexicons, possible), recordings)
    except subprocess.CalledProcessError as failed:
        print("%s failed with exit code %d" % (failed.cmd[0], failed.returncode), file=sys.stderr)
        return 1
    for kind, lines in found.items():
        with open("%s_c_%s.tsv" % (args.model, kind), "w", encoding="utf8") as file:
            file.writelines("\t".join(line) + "\n" for line in lines)
    for line in found["any"][:: max(1, len(found["any"]) // 10)]:
        print("%-30s %s %s %s" % tuple(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
