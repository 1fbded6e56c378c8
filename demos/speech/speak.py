#!/usr/bin/env python3
"""Lets espeak-ng speak the sentences of the demo, adds noise, and writes tables of the utterances.

    python speak.py out                     out/audio/*.wav, out/train.tsv, dev.tsv, sentences.tsv, voices.tsv
    python speak.py out --train 200         fewer

No sentence is in two of the tables. The voices of voices.tsv speak nowhere else.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "common"))

import sentences
from espeak import HOW_TO_INSTALL, draw, voices_of, write_set

ACCENTS = ("en-us", "en-gb", "en-gb-x-rp", "en-gb-scotland")
VARIANTS = (
    "m1", "m2", "m3", "m4", "m6", "m7", "m8", "f1", "f2", "f3", "f5", "Alex", "Alicia", "Andy", "Annie", "Diogo",
    "Gene", "Hugo", "Marco", "Mike", "Michael", "aunty", "belinda", "benjamin", "boris", "ed", "edward", "john", "max",
    "paul", "rob", "victor", "zac",
)  # fmt: skip
#: Accents and variants that only the held-out voices have.
HELD_OUT_ACCENTS = ("en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-us-nyc")
HELD_OUT_VARIANTS = ("m5", "f4", "Lee", "steph", "linda", "Jacky")
SIZES = {"train": 2400, "dev": 100, "sentences": 200, "voices": 200}


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    for name, size in SIZES.items():
        parser.add_argument("--" + name, type=int, default=size, metavar="N", help="utterances (%d)" % size)
    args = parser.parse_args()
    if shutil.which("espeak-ng") is None:
        print(HOW_TO_INSTALL, file=sys.stderr)
        return 1
    sizes = {name: getattr(args, name) for name in SIZES}
    texts = sentences.distinct(sum(sizes.values()), seed=1)
    known, held_out = voices_of(ACCENTS, VARIANTS), voices_of(HELD_OUT_ACCENTS, HELD_OUT_VARIANTS)
    for seed, (name, size) in enumerate(sizes.items()):
        of_set, texts = texts[:size], texts[size:]
        write_set(args.folder, name, draw(name, of_set, held_out if name == "voices" else known, seed))
        print("%s: %d utterances, e.g. %r" % (name, size, of_set[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
