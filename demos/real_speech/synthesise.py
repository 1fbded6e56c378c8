#!/usr/bin/env python3
"""Lets espeak-ng speak sentences for pretraining, with many voices, speeds, pitches and noise.

python synthesise.py out --language cs          out/audio/*.wav, out/cs_synthetic.tsv

They are those of the training set, and as many of out/cs_more.txt; where there is no such file, those of the training
set twice.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
from collections.abc import Iterable

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "common"))

from espeak import HOW_TO_INSTALL, draw, voices_of, write_set  # noqa: E402
from lm import more_texts, texts_of  # noqa: E402

VARIANTS = ("m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "f1", "f2", "f3", "f4", "f5")


def speakable(texts: Iterable[str]) -> list[str]:
    """Return the texts of 3 to 16 words, which are as long as utterances of the game."""
    return [text for text in texts if 3 <= len(text.split()) <= 16]


def main() -> int:
    """Run the command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--language", default="cs")
    parser.add_argument("--most", type=int, metavar="N", help="only N sentences of the training set, and N others")
    args = parser.parse_args()
    if shutil.which("espeak-ng") is None:
        print(HOW_TO_INSTALL, file=sys.stderr)
        return 1
    name = args.language + "_synthetic"
    texts = texts_of(os.path.join(args.folder, args.language + "_train.tsv"))[: args.most]
    more = speakable(more_texts(os.path.join(args.folder, args.language)))
    texts += random.Random(1).sample(more, min(len(texts), len(more))) if more else texts
    write_set(args.folder, name, draw(name, texts, voices_of((args.language,), VARIANTS), seed=1))
    print("%d utterances" % len(texts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
