"""Post-processing of transcriptions: all recorded ones, and what is not a name of one."""

from __future__ import annotations

import pytest

from returnn_tf.config import ConfigError
from returnn_tf.datasets.text.orth import make_post_processing
from tests.datasets.recorded import load_json

CASES = [
    (entry["processor"], given, expected)
    for entry in load_json("text/post_process.json")["cases"]
    for given, expected in entry["cases"]
]


@pytest.mark.slow
@pytest.mark.parametrize("name, given, expected", CASES)
def test_recorded(name, given, expected):
    pytest.importorskip("inflect")
    pytest.importorskip("unidecode")
    process = make_post_processing(name)
    assert process(given) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, given, expected",
    [
        ("normalize_numbers", "$1.01 $2 $0.50 $0.0 $1,000 $1.2.3", "one dollar, one cent two dollars fifty cents "
         "zero dollars one thousand dollars one point two.three dollars"),
        ("normalize_numbers", "£10,500 in 1905, 1900, 2000 and 2010", "ten thousand, five hundred pounds in nineteen "
         "oh five, nineteen hundred, two thousand and twenty ten"),
        ("normalize_numbers", "1000 1001 3000 2.50 21st", "one thousand ten oh one three thousand two point fifty "
         "twenty-first"),
        ("normalize_numbers", "9" * 40, "nine" + " nine" * 39),
        ("expand_abbreviations", "Dr. St. Co. drs. first. Mrs", "doctor saint company doctors first. Mrs"),
        ("lowercase_keep_special", "[A] <B C> D[E]  [F G]", "[A] <b c> d[e]  [f g]"),
        ("collapse_whitespace", " a\t b\u00a0c \n", "a b c"),
        ("english_cleaners", "Dr.Ä,3x", "doctora, three x"),
        ("english_cleaners", "Mrs. X at 7.05", "misses x at seven point zero five"),
        ("convert_to_ascii", "Straße \u2014 “ñ”", 'Strasse -- "n"'),
        ("get_replace('a', new='(,)')", "banana", "b(,)n(,)n(,)"),
        ("(get_remove_chars('b'), 'lowercase')", "AbcB", "a cb"),
        (" lowercase ", "A", "a"),
        (("lowercase", lambda text: text + "!", ["get_replace('b', 'c')"]), "AB", "ac!"),
        ([], " A ", " A "),
        (None, " A ", " A "),
        (str.upper, "a", "A"),
    ],
)  # fmt: skip
def test_neighbours(name, given, expected):
    pytest.importorskip("inflect")
    pytest.importorskip("unidecode")
    assert make_post_processing(name)(given) == expected


IN_WORDS = {
    "0": "zero",
    "00": "zero zero",
    "000": "zero zero zero",
    "01": "zero one",
    "05": "zero five",
    "007": "zero zero seven",
    "0747": "zero seven four seven",
    "08015": "zero eight zero one five",
    "1": "one",
    "10": "ten",
    "70": "seventy",
    "100": "one hundred",
    "101": "one hundred one",
    "746": "seven hundred forty-six",
    "747": "seven four seven",
    "748": "seven hundred forty-eight",
    "747s": "seven four sevens",
    "7471": "seven thousand, four hundred seventy-one",
    "1747": "seventeen forty-seven",
    "1,007": "ten oh seven",
    "0,007": "zero zero zero seven",
    "1907": "nineteen oh seven",
    "2000": "two thousand",
    "2001": "two thousand one",
    "2010": "twenty ten",
    "5,010": "five thousand ten",
    "0.5": "zero point five",
    "0.05": "zero point zero five",
    "1.0": "one point zero",
    "1.00": "one point zero zero",
    "1.50": "one point fifty",
    "12.05": "twelve point zero five",
    "12.005": "twelve point zero zero five",
    "12.747": "twelve point seven four seven",
    "00.5": "zero zero point five",
    "$1.05": "one dollar, five cents",
    "$747": "seven four seven dollars",
    "£07": "zero seven pounds",
    "10:05": "ten:zero five",
    "01.02.2003": "zero one point zero two.two thousand three",
    "1st, 2nd": "first, second",
    "room 007b": "room zero zero sevenb",
    "7" * 37: " ".join(["seven"] * 37),
    "1" + "0" * 5000: "one" + " zero" * 5000,
}


@pytest.mark.parametrize("given", IN_WORDS)
def test_numbers_in_words(given):
    pytest.importorskip("inflect")
    assert make_post_processing("normalize_numbers")(given) == IN_WORDS[given]


@pytest.mark.parametrize(
    "value, text",
    [
        ("lowercas", "unknown name 'lowercas'. Did you mean 'lowercase'"),
        ("lowercase()", "lowercase takes no arguments"),
        ("get_remove_chars", "get_remove_chars takes arguments"),
        ("get_remove_chars(1)", "its arguments are texts, not 1"),
        ("get_replace('a')", "missing 1 required"),
        ("get_replace('a', open('b'))", "get_replace in"),
        ("lambda text: text", "can't be read; it must be a name, a function"),
        ("__import__('os').remove('x')", "can't be read"),
        ("lowercase,", None),
        ("lowercase,,", "can't be read"),
        ("", "can't be read"),
        (3, "is 3, but must be a name"),
    ],
)
def test_bad_values(value, text):
    if text is None:
        assert make_post_processing(value)("A") == "a"
        return
    with pytest.raises(ConfigError, match="^dataset 'x': .*" + text):
        make_post_processing(value, owner="dataset 'x': orth_post_process")
