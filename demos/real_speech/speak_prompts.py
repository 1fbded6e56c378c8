#!/usr/bin/env python3
"""Lets espeak-ng speak all phrases of a language, for a recogniser that needs no training: see nearest.py.

python speak_prompts.py out --language en          out/audio/en/*.wav, out/prompts_en_spoken.tsv
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "common"))

from espeak import HOW_TO_INSTALL, Utterance, write_set  # noqa: E402
from prompts import VOICES  # noqa: E402

SPEED, PITCH, SNR = 160, 50, 60.0  # words per minute, the middle of 0 to 99, dB


def read_phrases(folder: str, language: str) -> dict[str, str]:
    """Return a text for each phrase of a language."""
    found: dict[str, str] = {}
    for name in ("train", "dev", "test_" + language):
        with open(os.path.join(folder, "prompts_%s.tsv" % name), encoding="utf8", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                if row["seq_name"].startswith(language + "/"):
                    found.setdefault(row["phrase"], row["orthography"])
    return found


def main() -> int:
    """Run the command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--language", choices=list(VOICES), default="en")
    args = parser.parse_args()
    if shutil.which("espeak-ng") is None:
        print(HOW_TO_INSTALL, file=sys.stderr)
        return 1
    texts, voice = read_phrases(args.folder, args.language), VOICES[args.language]
    utterances = [
        Utterance("%s/%s" % (args.language, name), text, voice, SPEED, PITCH, SNR, seed)
        for seed, (name, text) in enumerate(sorted(texts.items()))
    ]
    write_set(args.folder, "prompts_%s_spoken" % args.language, utterances)
    print("%d phrases" % len(utterances))
    return 0


if __name__ == "__main__":
    sys.exit(main())
