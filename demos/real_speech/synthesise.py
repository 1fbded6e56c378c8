#!/usr/bin/env python3
"""Lets espeak-ng speak the sentences of the training set, for pretraining, with many voices, speeds, pitches and noise.

python synthesise.py out --language cs          out/audio/*.wav, out/cs_synthetic.tsv
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "common"))

from espeak import HOW_TO_INSTALL, draw, voices_of, write_set  # noqa: E402
from lm import texts_of  # noqa: E402

VARIANTS = ("m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "f1", "f2", "f3", "f4", "f5")


def main() -> int:
    """Run the command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--language", default="cs")
    parser.add_argument("--copies", type=int, default=2, metavar="N", help="how often each sentence is spoken (2)")
    args = parser.parse_args()
    if shutil.which("espeak-ng") is None:
        print(HOW_TO_INSTALL, file=sys.stderr)
        return 1
    name = args.language + "_synthetic"
    texts = args.copies * texts_of(os.path.join(args.folder, args.language + "_train.tsv"))
    write_set(args.folder, name, draw(name, texts, voices_of((args.language,), VARIANTS), seed=1))
    print("%d utterances" % len(texts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
