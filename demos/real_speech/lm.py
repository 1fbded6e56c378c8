#!/usr/bin/env python3
"""Estimates n-gram models of the training texts: of words, and of characters, with which unknown words can be written.

    python lm.py out/cs         out/cs.words, out/cs_words.arpa, out/cs_labels.arpa, from out/cs_train.tsv

Where there is more text, out/cs_more.txt, a second model is estimated of it, and both are interpolated, with the weight
that is best on dev. The perplexities that are printed are those of dev.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "common"))

from ngram import best_weight, estimate, interpolate, perplexity, write_arpa  # noqa: E402

WORDS, CHARACTERS = 3, 8  # orders
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # how returnn-tf decode looks up a label that is a space


def texts_of(path: str) -> list[str]:
    """Return the texts of a table."""
    with open(path, encoding="utf8", newline="") as file:
        return [row["text"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def more_texts(prefix: str) -> list[str]:
    """Return the texts that are not of the corpus, if there are any."""
    path = prefix + "_more.txt"
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf8") as file:
        return file.read().splitlines()


def characters(text: str) -> list[str]:
    """Return the characters of a text, as labels of a model."""
    return list(text.replace(" ", SPACE))


def main() -> int:
    """Run the command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefix")
    args = parser.parse_args()
    train, dev = (texts_of("%s_%s.tsv" % (args.prefix, name)) for name in ("train", "dev"))
    more = more_texts(args.prefix)
    with open(args.prefix + ".words", "w", encoding="utf8") as file:
        file.writelines("%s\n" % word for word in sorted({word for text in train + more for word in text.split()}))
    for kind, order, tokens in (("words", WORDS, str.split), ("labels", CHARACTERS, characters)):
        asked = [tokens(text) for text in dev]
        model = estimate(map(tokens, train), order)
        print("%s: %d-gram, %d n-grams, perplexity %.1f" % (kind, order, len(model), perplexity(model, asked, order)))
        if more:
            other = estimate(map(tokens, more), order)
            weight = best_weight(model, other, asked, order)
            model = interpolate(model, other, weight)
            found = (kind, weight, len(model), perplexity(model, asked, order))
            print("%s: %.2f of it with the other texts, %d n-grams, perplexity %.1f" % found)
        write_arpa("%s_%s.arpa" % (args.prefix, kind), model)
    return 0


if __name__ == "__main__":
    sys.exit(main())
