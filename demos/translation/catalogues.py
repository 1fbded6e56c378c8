#!/usr/bin/env python3
"""Collects pairs of an English message and its translation from the catalogues of installed programs (gettext, .mo).

    python catalogues.py out                    out/pairs.tsv of English and French
    python catalogues.py out --language sv      Swedish
    python catalogues.py out --packages packages  also those of packages of Python that were unpacked into a folder

The catalogues are read where they are; nothing of them is part of this demo.
"""

from __future__ import annotations

import argparse
import gettext
import glob
import os
import re
import site
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

IN_PACKAGES = os.path.join("**", "locale", "{language}", "LC_MESSAGES")
#: Where programs and packages of Python have their catalogues.
FOLDERS = (
    "/usr/share/locale/{language}/LC_MESSAGES",
    "/usr/local/share/locale/{language}/LC_MESSAGES",
    "/opt/homebrew/share/locale/{language}/LC_MESSAGES",
    *(os.path.join(folder, IN_PACKAGES) for folder in site.getsitepackages()),
)
#: Catalogues with names of languages and places instead of messages.
_NAMES = re.compile(r"iso_|xkeyboard-config$|libtextcat")
_TOKEN = re.compile(r"%[-+ #0]*[*\d.]*(?:hh|h|ll|l|z|j|t|q)?[a-zA-Z]|%\([^)]*\)[a-z]|\{[^}]*\}|\w+|[^\w\s]")
MOST_WORDS, MOST_TRANSLATED = 8, 12


class Pair(NamedTuple):
    """A message.

    :param package: name of its catalogue
    :param source: English, with single blanks
    :param target: its translation
    """

    package: str
    source: str
    target: str


def folders_with(packages: Iterable[str]) -> list[str]:
    """Return the folders to look at, with those of packages of Python in further folders."""
    return [*FOLDERS, *(os.path.join(folder, IN_PACKAGES) for folder in packages)]


def files_of(language: str, folders: Iterable[str] = FOLDERS) -> list[str]:
    """Return the catalogues of a language."""
    found: list[str] = []
    for folder in folders:
        found += sorted(glob.glob(os.path.join(folder.format(language=language), "*.mo"), recursive=True))
    return found


def package_of(path: str) -> str:
    """Return the name of a catalogue; what is made with Django calls all of them django, so that of the folder."""
    name = os.path.splitext(os.path.basename(path))[0]
    return "/".join(path.split(os.sep)[-6:-4]) if name in ("django", "djangojs") else name


def read_catalogue(path: str) -> Iterator[Pair]:
    """Yield the messages of one file; of one with several forms, the first."""
    try:
        with open(path, "rb") as file:
            catalogue = gettext.GNUTranslations(file)
    except (OSError, UnicodeDecodeError, ValueError):
        return  # of another encoding than it says, or damaged
    for key, target in catalogue._catalog.items():  # type: ignore[attr-defined]
        source = key[0] if isinstance(key, tuple) else key
        source = source.split("\x04")[-1]  # without its context
        yield Pair(package_of(path), " ".join(source.split()), " ".join(str(target).split()))


def is_sentence(pair: Pair) -> bool:
    """Return whether it has words, few enough of them, and is translated at all."""
    counts = len(pair.source.split()), len(pair.target.split())
    fits = 2 <= counts[0] <= MOST_WORDS and 1 <= counts[1] <= MOST_TRANSLATED
    return fits and pair.source != pair.target and re.search("[a-z]{3}.* .*[a-z]{2}", pair.source) is not None


def tokens(text: str) -> list[str]:
    """Return words, signs, and marks such as %s, for the translation and for splitting into pieces."""
    return _TOKEN.findall(text)


def collect(language: str, folders: Iterable[str] = FOLDERS) -> list[Pair]:
    """Return the pairs of all catalogues; of several translations of a message, the first."""
    found: dict[str, Pair] = {}
    for path in files_of(language, folders):
        if not _NAMES.match(package_of(path)):
            for pair in read_catalogue(path):
                if is_sentence(pair):
                    found.setdefault(" ".join(tokens(pair.source)).lower(), pair)
    return list(found.values())


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--language", default="fr")
    parser.add_argument("--packages", action="append", default=[], metavar="DIR", help="with packages of Python")
    parser.add_argument("--least", type=int, default=3000, help="fail if there are fewer pairs (%(default)s)")
    args = parser.parse_args()
    pairs = collect(args.language, folders_with(args.packages))
    counts = Counter(pair.package for pair in pairs)
    print("%d pairs of English and %r from %d catalogues" % (len(pairs), args.language, len(counts)))
    print("most are of %s" % ", ".join("%s (%d)" % entry for entry in counts.most_common(8)))
    if len(pairs) < args.least:
        print("these are too few: install programs with catalogues, or take another language", file=sys.stderr)
        return 3
    os.makedirs(args.folder, exist_ok=True)
    with open(os.path.join(args.folder, "pairs.tsv"), "w", encoding="utf8") as file:
        file.writelines("%s\t%s\t%s\n" % pair for pair in pairs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
