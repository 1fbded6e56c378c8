#!/usr/bin/env python3
"""Learns the pieces of words (byte pair encoding) from the transcriptions of a table, by the package subword-nmt.

python bpe.py out/train.tsv out/bpe --merges 200        out/bpe.codes and out/bpe.vocab, a dict from piece to label
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import string
import sys


def learn(texts: list[str], prefix: str, merges: int) -> list[str]:
    """Write the merges and the vocabulary of some texts.

    :return: the pieces; each can be combined of the others with it, so that every word of known letters can be written
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # no progress bar
    from subword_nmt.apply_bpe import BPE
    from subword_nmt.learn_bpe import learn_bpe

    codes = io.StringIO()
    learn_bpe(io.StringIO("\n".join(texts)), codes, merges)
    with open(prefix + ".codes", "w", encoding="utf8") as file:
        file.write(codes.getvalue())
    with open(prefix + ".codes", encoding="utf8") as file:
        bpe = BPE(file)
    pieces = {piece for text in texts for piece in bpe.process_line(text).split()}
    letters = {letter for text in texts for letter in text if not letter.isspace()} | set(string.ascii_lowercase + "'")
    pieces |= letters | {letter + "@@" for letter in letters}  # for words that do not occur
    ordered = sorted(pieces)
    with open(prefix + ".vocab", "w", encoding="utf8") as file:
        file.write("{\n%s}\n" % "".join("%r: %d,\n" % (piece, label) for label, piece in enumerate(ordered)))
    return ordered


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("prefix")
    parser.add_argument("--merges", type=int, default=200)
    args = parser.parse_args()
    with open(args.table, encoding="utf8", newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    pieces = learn(texts, args.prefix, args.merges)
    with open(args.prefix + ".words", "w", encoding="utf8") as file:
        file.writelines("%s\n" % word for word in sorted({word for text in texts for word in text.split()}))
    print("%d labels, e.g. %s" % (len(pieces), " ".join(sorted(pieces, key=len)[-8:])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
