#!/usr/bin/env python3
"""The speech demo, from sentences to word error rates and pictures; what ``make demo-speech`` runs.

Lets espeak-ng speak, makes the zip files, learns pieces of words, trains three encoders, each with CTC and an attention
decoder, recognises held-out sentences, and draws. Each step is a command of its own, which is printed, so that it can
be repeated by hand. Everything goes to the directory out/ below the working directory (``--work``, by default where
this file is); what an earlier run left there is replaced.
"""

from __future__ import annotations

import argparse
import os
import shutil
import string
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "common"))

import speak  # noqa: E402
from steps import StepFailed, Steps  # noqa: E402

SETS = tuple(speak.SIZES)
ENCODERS = ("blstm", "conformer", "streaming")
PRODUCTS = r"audio|.*\.(tsv|zip|codes|vocab|words|json|png)|(%s)_.*" % "|".join(ENCODERS)


def run(steps: Steps, *, few: bool) -> None:
    """Run all steps.

    :param few: few utterances and one epoch: only shows that all steps work
    """
    steps.remove_products(PRODUCTS)
    sizes = [word for name in SETS for word in ("--" + name, "24" if name == "train" else "6")] if few else []
    steps.script("let espeak-ng speak", "speak.py", "out", *sizes)
    pieces = ["out/train.tsv", "--output", "out/bpe", "--size", "100" if few else "229", "--words", "--labels", ""]
    steps.returnn("learn pieces of words", "data", "bpe", *pieces, "--characters", string.ascii_lowercase + "'")
    for name in SETS:
        files = ["out/%s.tsv" % name, "--output", "out/%s.zip" % name]
        steps.returnn("zip %s" % name, "data", "oggzip", *files, "--sample-rate", "16000")
    steps.returnn("look at the data", "data", "info", "blstm.config", "train", "--keys", "data,classes")
    for encoder in ENCODERS:
        options = ["++num_epochs", "1"] if few else []
        steps.returnn("train the %s" % encoder, encoder + ".config", *options)
        steps.returnn("%s: search by attention, best path of CTC" % encoder, encoder + ".config", "++task", "search")
    steps.returnn(
        "streaming: search by CTC with a lexicon", "decode", "streaming.config", "--output", "out/streaming_decode.py"
    )
    some = ["out/audio/%s-0000.wav" % name for name in SETS[-2:]]
    steps.returnn("recognise files", "transcribe", "out/blstm_model", *some, "--resample")
    shutil.rmtree(steps.out("audio"))
    steps.script("count wrong words", "score.py", "out")
    steps.script("draw", "draw.py", "out")


def main() -> int:
    """Run the command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default=HERE, metavar="DIR", help="working directory; results go to DIR/out")
    parser.add_argument(
        "--quick", action="store_true", help="few utterances, one epoch: only shows that all steps work"
    )
    args = parser.parse_args()
    if shutil.which("espeak-ng") is None:
        print(speak.HOW_TO_INSTALL, file=sys.stderr)
        return 1
    steps = Steps(HERE, args.work)
    try:
        run(steps, few=args.quick)
    except StepFailed as failed:
        print("the demo ends here: the last command failed (%s)" % failed, file=sys.stderr)
        return 1
    print("\n=== %s" % steps.summary())
    for picture in ("learning_curves", "attention", "results"):
        print("%-16s %s" % (picture.replace("_", " ") + ":", os.path.relpath(steps.out(picture + ".png"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
