#!/usr/bin/env python3
"""The translation demo, from the catalogues of installed programs to BLEU; what ``make demo-translation`` runs.

Each step is a command of its own, which is printed, so that it can be repeated by hand. Everything goes to the
directory out/ below the working directory (``--work``, by default where this file is); what an earlier run left there
is replaced.
"""

from __future__ import annotations

import argparse
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "common"))

import catalogues  # noqa: E402
from steps import StepFailed, Steps  # noqa: E402

PRODUCTS = r".*\.(tsv|gz|pkl|txt|json|png|model)|model|learning_rates|search\.py"
#: Have catalogues in many languages, 6000 pairs together; for machines whose programs have none.
PACKAGES = ("Django", "django-cms", "django-oscar", "spyder", "wagtail", "weblate")
LEAST = 3000


def learn_pieces(size: int) -> list[str]:
    """Return the arguments that learn byte pair encoding from both languages, with all signs as they are."""
    options = ["--kind", "bpe", "--normalize", "identity", "--without-bos-eos"]
    return ["data", "sentencepiece", "out/texts.txt", "--size", str(size), "--output", "out/pieces", *options]


def run(steps: Steps, language: str, *, few: bool) -> None:
    """Run all steps.

    :param few: few pairs and one epoch: only shows that all steps work
    """
    steps.remove_products(PRODUCTS)
    folder = steps.out("packages")  # kept from run to run
    if len(catalogues.collect(language, catalogues.folders_with([folder]))) < LEAST:
        # only their catalogues are read: they are not installed into the environment, nor what they depend on
        options = ["--no-deps", "--upgrade", "--target", folder]
        steps.step("fetch packages with catalogues (130 MB)", ["-m", "pip", "install", "-q", *options, *PACKAGES])
    options = [
        "--language",
        language,
        "--least",
        str(LEAST),
        *(["--packages", folder] if os.path.isdir(folder) else []),
    ]
    steps.script("collect messages", "catalogues.py", "out", *options)
    sizes = ["--most", "400", "--heldout", "20"] if few else []
    steps.script("divide them", "corpus.py", "out", *sizes)
    steps.returnn("learn pieces of words", *learn_pieces(300 if few else 2000))
    steps.script("split the texts into pieces", "pieces.py", "out")
    steps.returnn("look at the data", "data", "info", "transformer.config", "train")
    steps.returnn("train the Transformer", "transformer.config", *(["++num_epochs", "1"] if few else []))
    steps.returnn("translate the held-out messages", "transformer.config", "++task", "search")
    steps.script("compare with the baselines", "score.py", "out")
    steps.script("draw", "draw.py", "out")


def main() -> int:
    """Run the command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default=HERE, metavar="DIR", help="working directory; results go to DIR/out")
    parser.add_argument("--language", default="fr", help="to translate to (%(default)s): de, es, sv, ...")
    parser.add_argument("--quick", action="store_true", help="few pairs, one epoch: only shows that all steps work")
    args = parser.parse_args()
    steps = Steps(HERE, args.work)
    try:
        run(steps, args.language, few=args.quick)
    except StepFailed as failed:
        print("the demo ends here: the last command failed (%s)" % failed, file=sys.stderr)
        return 1
    print("\n=== %s" % steps.summary())
    for picture in ("learning_curve", "alignment", "results"):
        print("%-16s %s" % (picture.replace("_", " ") + ":", os.path.relpath(steps.out(picture + ".png"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
