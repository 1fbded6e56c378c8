#!/usr/bin/env python3
"""Splits the texts of all sets into pieces of words, for TranslationDataset.

python pieces.py out           from out/pieces.model and the pairs of each set: texts in pieces, and the labels
"""

from __future__ import annotations

import argparse
import gzip
import os
import pickle

import sentencepiece
from catalogues import Pair
from corpus import read_pairs

END, UNKNOWN = "</S>", "<unk>"
#: The datasets, and the sets of which each is made.
FILES = {"train": ["train"], "dev": ["dev"], "heldout": ["messages", "packages"]}


def write_set(folder: str, name: str, pairs: list[Pair], model: sentencepiece.SentencePieceProcessor) -> None:
    """Write ``source.NAME.gz`` and ``target.NAME.gz``, a line of pieces per pair."""
    for kind in ("source", "target"):
        with gzip.open(os.path.join(folder, "%s.%s.gz" % (kind, name)), "wt", encoding="utf8") as file:
            for pair in pairs:
                file.write(" ".join(model.encode(getattr(pair, kind), out_type=str)) + "\n")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    folder = parser.parse_args().folder
    model = sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, "pieces.model"))
    labels = [END, UNKNOWN, *(model.id_to_piece(i) for i in range(model.get_piece_size()) if i != model.unk_id())]
    for kind in ("source", "target"):
        with open(os.path.join(folder, kind + ".vocab.pkl"), "wb") as file:
            pickle.dump({label: index for index, label in enumerate(labels)}, file, protocol=2)
    with open(os.path.join(folder, "labels.txt"), "w", encoding="utf8") as file:
        file.writelines(label + "\n" for label in labels)
    for name, sets in FILES.items():
        pairs = [pair for of_set in sets for pair in read_pairs(os.path.join(folder, of_set + ".tsv"))]
        write_set(folder, name, pairs, model)


if __name__ == "__main__":
    main()
