"""Write pairs of lines, numbers in English and in German words, to see the format before the text is your own.

data/source.train and data/target.train have a sentence in each line, with blanks between words; line n of one is the
translation of line n of the other. source.dev and target.dev have other numbers. The vocabularies are pickled dicts
from word to label. For your own text, replace `pairs`; words that are rare should be split into pieces (sentencepiece,
subword-nmt) before.
"""

import os
import pickle
from collections.abc import Iterator

import numpy as np

SIZES = {"train": 4000, "dev": 200}  # pairs
END, UNKNOWN = "</S>", "<unk>"  # the first two labels of both vocabularies

# fmt: off
EN_ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
           "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
EN_TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
DE_ONES = ["null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf",
           "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"]
DE_TENS = ["", "", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
# fmt: on


def english(number: int) -> str:
    """Return the words of a number from 1 to 999999."""
    if number >= 1000:
        return " ".join([english(number // 1000), "thousand", english(number % 1000) if number % 1000 else ""]).strip()
    if number >= 100:
        rest = " and " + english(number % 100) if number % 100 else ""
        return "%s hundred%s" % (EN_ONES[number // 100], rest)
    if number >= 20:
        return " ".join([EN_TENS[number // 10]] + ([EN_ONES[number % 10]] if number % 10 else []))
    return EN_ONES[number]


def german(number: int) -> str:
    """Return the words of a number from 1 to 999999: the ones stand before the tens."""
    if number >= 1000:
        return " ".join([german(number // 1000), "tausend", german(number % 1000) if number % 1000 else ""]).strip()
    if number >= 100:
        rest = " " + german(number % 100) if number % 100 else ""
        return "%s hundert%s" % (DE_ONES[number // 100], rest)
    if number >= 20:
        return " ".join(([DE_ONES[number % 10], "und"] if number % 10 else []) + [DE_TENS[number // 10]])
    return DE_ONES[number]


def pairs() -> Iterator[tuple[str, str]]:
    """Yield pairs of sentences, the same ones in each call, none of them twice."""
    numbers = np.random.default_rng(1).choice(np.arange(1, 1000000), size=sum(SIZES.values()), replace=False)
    for number in numbers:
        yield english(int(number)), german(int(number))


def write(folder: str) -> None:
    """Write the data sets and the vocabularies into a folder."""
    all_pairs = list(pairs())
    for side, kind in enumerate(("source", "target")):
        lines = [pair[side] for pair in all_pairs]
        words = sorted({word for line in lines[: SIZES["train"]] for word in line.split()})
        with open(os.path.join(folder, kind + ".vocab.pkl"), "wb") as file:
            pickle.dump({word: label for label, word in enumerate([END, UNKNOWN, *words])}, file, protocol=2)
        begin = 0
        for name, count in SIZES.items():
            with open(os.path.join(folder, "%s.%s" % (kind, name)), "w", encoding="utf8") as file:
                file.writelines(line + "\n" for line in lines[begin : begin + count])
            begin += count


if __name__ == "__main__":
    write(os.path.join(os.path.dirname(os.path.abspath(__file__)), "data"))
