#!/usr/bin/env python3
"""Divides the pairs of catalogues.py into sets.

    python corpus.py out           from out/pairs.tsv: the pairs of each set, and all texts to train on, out/texts.txt

Three sets are held out: dev; messages, from the catalogues of which others are trained on; packages, whole catalogues.
"""

from __future__ import annotations

import argparse
import os
import random
from collections import Counter
from collections.abc import Iterable

from catalogues import Pair, tokens

SETS = ("train", "dev", "messages", "packages")


def read_pairs(path: str) -> list[Pair]:
    """Read a table of pairs."""
    with open(path, encoding="utf8") as file:
        return [Pair(*line.rstrip("\n").split("\t")) for line in file]


def write_pairs(path: str, pairs: Iterable[Pair]) -> None:
    """Write a table of pairs."""
    with open(path, "w", encoding="utf8") as file:
        file.writelines("%s\t%s\t%s\n" % pair for pair in pairs)


def held_out_packages(pairs: list[Pair], wanted: int, seed: int = 1) -> set[str]:
    """Return packages with at least so many pairs together; small ones, if there are enough of them."""
    counts = sorted(Counter(pair.package for pair in pairs).items())
    random.Random(seed).shuffle(counts)
    counts.sort(key=lambda entry: entry[1] > wanted // 2)
    chosen: dict[str, int] = {}
    for package, count in counts[:-1]:
        if sum(chosen.values()) < wanted:
            chosen[package] = count
    return set(chosen)


def key_of(text: str) -> str:
    """Return a text without what messages that say the same often differ in: signs and capitals."""
    return " ".join(token.lower() for token in tokens(text) if token.isalpha())


def split(pairs: list[Pair], size: int, seed: int = 1) -> dict[str, list[Pair]]:
    """Return the sets. No text of a held-out pair, in either language, is in a training pair.

    :param size: of each held-out set
    """
    rng = random.Random(seed)
    packages = held_out_packages(pairs, size, seed)
    others = [pair for pair in pairs if pair.package not in packages]
    rng.shuffle(others)
    of_packages = [pair for pair in pairs if pair.package in packages]
    sets = {
        "dev": others[:size],
        "messages": others[size : 2 * size],
        "packages": rng.sample(of_packages, min(size, len(of_packages))),
    }
    held_out = {key_of(text) for of_set in sets.values() for pair in of_set for text in pair[1:]}
    train = [pair for pair in others[2 * size :] if not {key_of(pair.source), key_of(pair.target)} & held_out]
    return {"train": train, **sets}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--heldout", type=int, default=500, help="size of each held-out set (%(default)s)")
    parser.add_argument("--most", type=int, help="use so many pairs only")
    args = parser.parse_args()
    pairs = read_pairs(os.path.join(args.folder, "pairs.tsv"))
    if args.most:
        pairs = random.Random(1).sample(pairs, min(args.most, len(pairs)))
    sets = split(pairs, args.heldout)
    with open(os.path.join(args.folder, "texts.txt"), "w", encoding="utf8") as file:
        file.writelines(text + "\n" for pair in sets["train"] for text in pair[1:])
    for name, of_set in sets.items():
        write_pairs(os.path.join(args.folder, name + ".tsv"), of_set)
        print("%-8s  %6d pairs, e.g. %r = %r" % (name, len(of_set), of_set[0].source, of_set[0].target))
    print("held-out packages: %s" % ", ".join(sorted({pair.package for pair in sets["packages"]})))


if __name__ == "__main__":
    main()
