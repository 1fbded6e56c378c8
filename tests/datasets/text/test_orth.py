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


@pytest.mark.parametrize("name, given, expected", CASES)
def test_recorded(name, given, expected):
    pytest.importorskip("inflect")
    pytest.importorskip("unidecode")
    process = make_post_processing(name)
    assert process(given) == expected


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
