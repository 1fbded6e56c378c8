"""Sentences for an assistant at home, from a small grammar of some hundred words (grammar.txt).

python sentences.py 10         prints some
"""

from __future__ import annotations

import os
import random
import re
import sys


def read_grammar(path: str) -> dict[str, list[str]]:
    """Return the alternatives of each rule."""
    rules: dict[str, list[str]] = {}
    with open(path, encoding="utf8") as file:
        for line in file:
            name, colon, text = line.partition(":")
            if colon and not line.startswith("#"):
                rules.setdefault(name, []).extend(part.strip() for part in text.split("|"))
    return rules


_ALTERNATIVES = read_grammar(os.path.join(os.path.dirname(os.path.abspath(__file__)), "grammar.txt"))


def sentence(rng: random.Random, name: str = "sentence") -> str:
    """Return a random expansion of a rule."""
    text = rng.choice(_ALTERNATIVES[name])
    return re.sub(r"\{(\w+)\}", lambda match: sentence(rng, match[1]), text)


def vocabulary() -> set[str]:
    """Return all words of the grammar."""
    return {word for texts in _ALTERNATIVES.values() for text in texts for word in text.split() if "{" not in word}


def distinct(count: int, seed: int) -> list[str]:
    """Return different sentences of the grammar."""
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[sentence(rng)] = None
    return list(found)


if __name__ == "__main__":
    print("\n".join(distinct(int(sys.argv[1]), seed=1)))
