"""Post-processing of transcriptions, as ``orth_post_process`` of datasets names it."""

from __future__ import annotations

import ast
import functools
import re
from typing import Any, Callable

from returnn_tf.config.errors import CodeDataError, TextDataError, TextError, did_you_mean, shown
from returnn_tf.config.user_code import result_of_config
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
    """Write numbers, ordinals and amounts of money in words by the package inflect; 1984 is read as a year.

    The rules, as those for abbreviations, are those of text normalisation which are common in speech synthesis.

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
        raise TextError("numbers in words need the package inflect: %s (%s)" % (install_command("text"), exc)) from exc
    return inflect.engine()


PostProcessing = Callable[[str], str]

_BLANKS = re.compile(r"\s+")
_WORD = re.compile(r"\S+")
# a word that begins with [..] or <..> stays as it is
_SPECIAL = re.compile(r"\[\S*\]|<\S*>")
_FORMS = "a name, a function, a list of these, or text such as \"lowercase,get_remove_chars('-')\""


def lowercase(text: str) -> str:
    """Write all letters in lower case."""
    return text.lower()


def lowercase_keep_special(text: str) -> str:
    """Write all words but [special] and <special> ones in lower case."""
    return _WORD.sub(lambda match: match.group() if _SPECIAL.match(match.group()) else match.group().lower(), text)


def collapse_whitespace(text: str) -> str:
    """Replace white space by single blanks; none at both ends."""
    return _BLANKS.sub(" ", text).strip()


def convert_to_ascii(text: str) -> str:
    """Write letters and signs beyond ASCII by similar ones."""
    return text if text.isascii() else str(_unidecode()(text))


def basic_cleaners(text: str) -> str:
    """Write in lower case, with single blanks."""
    return collapse_whitespace(lowercase(text))


def transliteration_cleaners(text: str) -> str:
    """Write in ASCII, in lower case, with single blanks."""
    return collapse_whitespace(lowercase(convert_to_ascii(text)))


def english_cleaners(text: str) -> str:
    """Write English text in ASCII, in lower case, with numbers and abbreviations in words."""
    return _english(lowercase(convert_to_ascii(text)))


def english_cleaners_keep_special(text: str) -> str:
    """Write like ``english_cleaners``, but keep the case of [special] and <special> words."""
    return _english(lowercase_keep_special(convert_to_ascii(text)))


def _english(text: str) -> str:
    return collapse_whitespace(expand_abbreviations(normalize_numbers(text, spaced=True)))


def get_remove_chars(chars: str) -> PostProcessing:
    """Return a function that replaces each of the characters by a blank, and joins blanks."""
    table = str.maketrans(dict.fromkeys(chars, " "))
    return lambda text: collapse_whitespace(text.translate(table))


def get_replace(old: str, new: str) -> PostProcessing:
    """Return a function that replaces a part of the text."""
    return lambda text: text.replace(old, new)


_PROCESSINGS: dict[str, PostProcessing] = {
    function.__name__: function
    for function in (
        lowercase,
        lowercase_keep_special,
        collapse_whitespace,
        convert_to_ascii,
        basic_cleaners,
        transliteration_cleaners,
        english_cleaners,
        english_cleaners_keep_special,
        normalize_numbers,
        expand_abbreviations,
    )
}
_MAKERS: dict[str, Callable[..., PostProcessing]] = {"get_remove_chars": get_remove_chars, "get_replace": get_replace}


def make_post_processing(value: Any, *, owner: str = "orth_post_process") -> PostProcessing:
    """Return the function for the option ``orth_post_process`` or ``targets_post_process``.

    :param value: the name of a function of this module, calls of ``get_remove_chars`` and ``get_replace``, several of
        these separated by commas; a function; a list of these, which are applied one after the other; None for none
    :param owner: prefix of errors
    :raises ConfigError: for anything else

    >>> make_post_processing(["lowercase", "get_remove_chars('-')"])("Re-read")
    're read'
    """
    if callable(value):
        return _Given(value, owner.rpartition(": ")[2])
    if value is None or isinstance(value, (list, tuple)):
        functions = [make_post_processing(entry, owner=owner) for entry in value or ()]
        return functions[0] if len(functions) == 1 else _Chain(functions)
    if not isinstance(value, str):
        raise TextError("%s is %r, but must be %s." % (owner, value, _FORMS))
    try:
        expression = ast.parse(value.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise TextError("%s: %r can't be read; it must be %s." % (owner, value, _FORMS)) from None
    return _evaluate(expression, value, owner)


def _evaluate(expression: Any, text: str, owner: str) -> PostProcessing:
    if isinstance(expression, (ast.Tuple, ast.List)):
        return _Chain([_evaluate(entry, text, owner) for entry in expression.elts])
    if isinstance(expression, ast.Name):
        return _named(expression.id, _PROCESSINGS, owner)  # type: ignore[no-any-return]
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        return make_post_processing(expression.value, owner=owner)
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name):
        maker: Any = _named(expression.func.id, _MAKERS, owner)
        try:
            args = [_text(arg) for arg in expression.args]
            function: PostProcessing = maker(*args, **{str(arg.arg): _text(arg.value) for arg in expression.keywords})
            return function
        except (ValueError, TypeError) as exc:
            raise TextError("%s: %s in %r: %s." % (owner, expression.func.id, text, exc)) from None
    raise TextError("%s: %r can't be read; it must be %s." % (owner, text, _FORMS))


def _named(name: str, table: dict[str, Any], owner: str) -> Any:
    if name in table:
        return table[name]
    known = [*_PROCESSINGS, *_MAKERS]
    if name in known:
        what = "arguments, e.g. get_remove_chars('-')" if name in _MAKERS else "no arguments"
        raise TextError("%s: %s takes %s." % (owner, name, what))
    raise TextError("%s: unknown name %r. %s" % (owner, name, did_you_mean(name, known, max_listed=20)))


def _text(node: ast.expr) -> str:
    value = ast.literal_eval(node)
    if not isinstance(value, str):
        raise ValueError("its arguments are texts, not %r" % (value,))
    return value


class _Given:
    """Calls a function of the user.

    :param option: that gives it; what errors are prefixed by names the dataset
    """

    def __init__(self, function: PostProcessing, option: str) -> None:
        self.function = function
        self.option = option

    def __call__(self, text: str) -> str:
        """Process a text; DataError if the function fails or returns no text."""
        result = result_of_config(self.option, functools.partial(self.function, text), error=CodeDataError)
        if not isinstance(result, str):
            raise TextDataError(
                "%s returned %s for %s, not a text" % (self.option, shown(result), shown(text, most=100))
            )
        return result


class _Chain:
    """Applies functions one after the other."""

    def __init__(self, functions: list[PostProcessing]) -> None:
        self.functions = functions

    def __call__(self, text: str) -> str:
        """Process a text."""
        for function in self.functions:
            text = function(text)
        return text


@functools.lru_cache(maxsize=1)
def _unidecode() -> Any:
    try:
        import unidecode
    except ImportError as exc:
        raise TextError(
            "convert_to_ascii needs the package unidecode: %s (%s)" % (install_command("text"), exc)
        ) from exc
    return unidecode.unidecode
