"""English texts as they are spoken: numbers, amounts and abbreviations in words.

The rules are those of the text normalisation which is common in speech synthesis; numbers in words by the package
inflect.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from returnn_tf.config import ConfigError
from returnn_tf.util.installing import install_command

_ABBREVIATIONS = {
    "mrs": "misses",
    "mr": "mister",
    "dr": "doctor",
    "st": "saint",
    "co": "company",
    "jr": "junior",
    "maj": "major",
    "gen": "general",
    "drs": "doctors",
    "rev": "reverend",
    "lt": "lieutenant",
    "hon": "honorable",
    "sgt": "sergeant",
    "capt": "captain",
    "esq": "esquire",
    "ltd": "limited",
    "col": "colonel",
    "ft": "fort",
}
_ABBREVIATION = re.compile(r"\b(%s)\." % "|".join(_ABBREVIATIONS), re.IGNORECASE)
_GROUPED = re.compile(r"[0-9][0-9,]+[0-9]")
_POUNDS = re.compile(r"£([0-9,]*[0-9]+)")
_DOLLARS = re.compile(r"\$([0-9.,]*[0-9]+)")
_DECIMAL = re.compile(r"([0-9]+)\.([0-9]+)")
_ORDINAL = re.compile(r"[0-9]+(?:st|nd|rd|th)")
_NUMBER = re.compile(r"[0-9]+")
_CACHED_NUMBERS = 1 << 14
_LONGEST_NAMED = 36  # digits


def expand_abbreviations(text: str) -> str:
    """Write abbreviations that end with a dot in full, e.g. "Dr." as "doctor"."""
    return _ABBREVIATION.sub(lambda match: _ABBREVIATIONS[match.group(1).lower()], text)


def normalize_numbers(text: str, *, spaced: bool = False) -> str:
    """Write numbers, ordinals and amounts of money in words; 1984 is read as a year.

    :param spaced: put blanks around the words of each number
    """
    text = _GROUPED.sub(lambda match: match.group().replace(",", ""), text)
    text = _POUNDS.sub(r"\1 pounds", text)
    text = _DOLLARS.sub(lambda match: _dollars(match.group(1)), text)
    text = _DECIMAL.sub(r"\1 point \2", text)
    text = _ORDINAL.sub(lambda match: number_in_words(match.group()), text)
    form = " %s " if spaced else "%s"
    return _NUMBER.sub(lambda match: form % number_in_words(match.group()), text)


def _dollars(amount: str) -> str:
    parts = amount.replace(",", "").split(".")
    if len(parts) > 2:
        return amount + " dollars"
    counts = [(int(part or 0), unit) for part, unit in zip(parts, ("dollar", "cent"))]
    named = ["%d %s%s" % (count, unit, "" if count == 1 else "s") for count, unit in counts if count]
    return ", ".join(named) or "zero dollars"


@functools.lru_cache(maxsize=_CACHED_NUMBERS)
def number_in_words(digits: str) -> str:
    """Return a number, or an ordinal such as "3rd", in English words.

    Digit by digit are read: numbers that begin with a zero, as after a decimal point; 747, the aircraft; and those
    beyond the names of numbers.
    """
    words: Any = _inflect().number_to_words
    if not digits.isdecimal():
        return str(words(digits))
    if digits.startswith("0") or digits == "747" or len(digits) > _LONGEST_NAMED:
        return " ".join(str(words(digit)) for digit in digits)
    number = int(digits)
    if not 1000 < number < 3000 or number == 2000:
        return str(words(number, andword=""))
    if 2000 < number < 2010:
        return "two thousand " + str(words(number % 100))
    if number % 100 == 0:
        return str(words(number // 100)) + " hundred"
    return str(words(number, andword="", zero="oh", group=2)).replace(", ", " ")


@functools.lru_cache(maxsize=1)
def _inflect() -> Any:
    try:
        import inflect
    except ImportError as exc:
        raise ConfigError(
            "numbers in words need the package inflect: %s (%s)" % (install_command("text"), exc)
        ) from exc
    return inflect.engine()
