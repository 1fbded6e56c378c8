"""Sentences of quotations, from a package of fortunes: more text for language models and synthesised speech."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from packages import Package, PackageError

FORTUNES = os.path.join("usr", "share", "games", "fortunes")
#: Files in which another language is written.
FOREIGN = {"cs": {"klasik-sk"}}
_END_OF_SENTENCE = re.compile(r"(?<=[.!?…:;])\s+(?:-+\s+)?|\s+-+\s+")
_SOURCE = re.compile(r"\s*--.*")


def read_quotations(content: str) -> list[str]:
    r"""Return the sentences of a file of quotations, which lines with a percent sign part, without those who said them.

    >>> read_quotations("Krása pomíjí,\nblbost je věčná. Ano!\n\t\t-- Nestroy\n%\nNe - nikdy\n")
    ['Krása pomíjí, blbost je věčná.', 'Ano!', 'Ne', 'nikdy']
    """
    found = []
    for quotation in re.split(r"^%[ \t]*$", content, flags=re.MULTILINE):
        lines = [line for line in quotation.splitlines() if not _SOURCE.fullmatch(line)]
        found += [sentence for sentence in _END_OF_SENTENCE.split(" ".join(" ".join(lines).split())) if sentence]
    return found


def sentences_of(package: Package, language: str) -> Iterator[str]:
    """Yield the sentences of a package of fortunes.

    :raises PackageError: it has no files of the language
    """
    folder = os.path.join(package.folder, FORTUNES, language)
    there = set(os.listdir(folder)) if os.path.isdir(folder) else set()
    names = sorted(name for name in there - FOREIGN[language] if not name.endswith((".dat", ".u8")))
    if not names:
        raise PackageError("no quotations in %s: another version of the package?" % folder)
    for name in names:
        with open(os.path.join(folder, name), encoding="utf8") as file:
            yield from read_quotations(file.read())
