"""Options: declared once, checked with type, choices and range, reported when they have no effect."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Callable, Optional, Union

import numpy as np
import pytest

from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.config.errors import shown
from returnn_tf.config.option_types import (
    Written,
    fits_type,
    shown_with_kind,
    type_name,
    type_words,
    with_python_numbers,
)
from returnn_tf.config.options import (
    LayerOrNumber,
    LayerRef,
    LayerRefs,
    above,
    at_least,
    check_options,
    declared_options,
    from_options,
    option,
    own_options_first,
    probability,
)


@dataclasses.dataclass(frozen=True)
class Base:
    """Options of all."""

    size: int = option(1, help="number of entries", check=at_least(1))
    old: bool = option(False, help="obsolete flag", inert="there is only one way to do it")


@dataclasses.dataclass(frozen=True)
class Example(Base):
    """An example."""

    mode: str = option("skip", help="what to do", choices=("skip", "stop"))
    gone: Optional[str] = option(None, help="a thing of the past", unsupported="write mode instead")
    rate: Optional[float] = option(None, help="dropout", check=probability)
    lambda_: float = option(1.0, help="factor", name="lambda", check=above(0))
    table: dict[str, int] = option({}, help="counts")
    where_from: str = option(help="name of the file")


MIN = {"where_from": "x"}


def test_instance():
    """Names of configs become attributes; what is not given has its default."""
    made = from_options(Example, {"where_from": "f", "lambda": 2, "size": np.int64(3)}, where="here")
    assert (made.where_from, made.lambda_, made.size, made.mode, made.table) == ("f", 2, 3, "skip", {})
    assert type(made.size) is int
    assert from_options(Example, {"where_from": "f", "mode": None}, where="here", none_is_absent=True).mode == "skip"
    assert from_options(Example, {**MIN, "old": None}, where="here").old is False


@pytest.mark.parametrize(
    "given, message",
    [
        ({}, "here: the option 'where_from' is missing. It is: name of the file (a string)"),
        ({"mod": "skip"}, "here: unknown option 'mod'. Did you mean 'mode'?"),
        ({"zzz": 1}, "here: unknown option 'zzz'. Known: mode, gone, rate, lambda, table, where_from, size, old."),
        ({3: 1}, "here: unknown option 3. Known: mode"),
        (
            {**MIN, "size": "1"},
            "here: option 'size' must be a whole number, got '1' (a string). It is: number",
        ),
        ({**MIN, "size": True}, "must be a whole number, got True."),
        ({**MIN, "size": 0}, "here: option 'size' must be at least 1, got 0. It is: number of entries"),
        ({**MIN, "rate": 1.5}, "'rate' must be from 0 to 1, got 1.5"),
        ({**MIN, "lambda": 0}, "'lambda' must be above 0, got 0"),
        ({**MIN, "mode": "skp"}, "here: option 'mode' is 'skp'. Did you mean 'skip'? It is: what to do"),
        ({**MIN, "mode": None}, "'mode' must be a string, got None"),
        ({**MIN, "gone": "a"}, "here: option 'gone' is not supported: write mode instead"),
        ({**MIN, "table": {"a": "b"}}, "'table' must be a dict {string: a whole number}, got {'a': 'b'}"),
        ([], "here: expected a dict of options, got [] (a list)."),
    ],
)
def test_errors(given, message):
    """Each names the place, the option and what is accepted."""
    with pytest.raises(ConfigError) as info:
        from_options(Example, given, where="here")
    assert message in str(info.value)


def test_without_effect(caplog):
    """An option without effect is logged once per place, unless it has its default anyway."""
    with caplog.at_level(logging.WARNING, logger="returnn_tf"):
        check_options(Example, {**MIN, "old": False, "gone": None}, where="test_without_effect, a")
        assert not caplog.records
        for place in ("a", "a", "b"):
            check_options(Example, {**MIN, "old": True}, where="test_without_effect, " + place)
    assert [record.getMessage() for record in caplog.records] == [
        "test_without_effect, %s: option 'old' has no effect: there is only one way to do it" % place
        for place in ("a", "b")
    ]


FITS = [
    (LayerRef, "a", True),
    (LayerRef, 3, False),
    (LayerRefs, ["a", "b"], True),
    (LayerRefs, ["a", 3], False),
    (LayerOrNumber, 3, True),
    (LayerOrNumber, [], False),
    (Optional[LayerRef], None, True),
    (Optional[LayerRef], {}, False),
    (Union[bool, dict[str, Any]], {"a": 1}, True),
    (Mapping[str, float], {"a": 1}, True),
    (Mapping[str, float], {"a": "b"}, False),
    (Mapping[str, float], 3, False),
    (Sequence[int], (1, 2), True),
    (Sequence[int], "12", False),
    (tuple[int, ...], [1, 2, 3], True),
    (tuple[int, int], [1, 2, 3], False),
    (set[str], {"a"}, True),
    (set[str], {1}, False),
    (Callable[[int], int], len, True),
    (Callable[[int], int], "len", False),
    (list[int], [np.int32(1)], True),
    (float, np.float32(1), True),
    (float, True, False),
    (bool, np.bool_(True), True),
    (bool, 2, False),
    (np.ndarray, np.zeros(2), True),
]


@pytest.mark.parametrize("expected, value, fits", FITS)
def test_types(expected, value, fits):
    """What fits an annotation."""
    assert fits_type(value, expected) == fits


NUMBERS = [
    (int, np.int64(3), 3),
    (float, np.int32(3), 3),
    (bool, np.bool_(True), True),
    (Optional[LayerOrNumber], np.float32(0.5), 0.5),
    (Any, np.int64(-1), -1),
    (list[int], [np.int64(3), 4], [3, 4]),
    (Any, [(np.int64(3), None), "B"], [(3, None), "B"]),
    (Annotated[Any, Written(Union[float, np.generic, list[Any]])], np.float32(0.5), np.float32(0.5)),
    (Annotated[Any, Written(Union[float, np.generic, list[Any]])], [np.int64(3)], [np.int64(3)]),
    (dict[str, Any], {"a": np.float32(0.5)}, {"a": np.float32(0.5)}),
    (Union[Callable[[int], int], int], np.int64(3), 3),
]


@pytest.mark.parametrize("expected, given, taken", NUMBERS)
def test_numbers_of_numpy(expected, given, taken):
    """Scalars of numpy become numbers of Python, but not where the option names them, nor in dicts."""
    value = with_python_numbers(given, expected)
    assert value == taken and repr(value) == repr(taken) and type(value) is type(taken)


@dataclasses.dataclass(frozen=True)
class Dependent:
    """Options of which some need others."""

    audio: Optional[dict[str, Any]] = option(None, help="features")
    folder: Optional[str] = option(None, help="of the files", needs="audio")
    rate: float = option(0.0, help="dropout")
    axes: Optional[int] = option(None, help="of the mask", needs="rate")
    text: Optional[str] = option("txt", help="ending")
    field: Optional[str] = option(None, help="of the text", needs=("text", "audio"))


@pytest.mark.parametrize(
    "given, told",
    [
        ({"folder": "x"}, "'folder' has no effect: it needs audio"),
        ({"folder": "x", "audio": None}, ""),
        ({"folder": "x", "audio": {}}, ""),
        ({"axes": 1}, "'axes' has no effect: it needs rate"),
        ({"axes": 1, "rate": 0}, ""),
        ({"field": "x"}, ""),
        ({"field": "x", "text": None}, ""),
    ],
)
def test_what_needs_another_option(given, told, caplog):
    """Where a config turns that one off, with None or 0, nothing is logged: it does so on purpose."""
    with caplog.at_level(logging.WARNING, logger="returnn_tf"):
        check_options(Dependent, given, where="here")
    assert [record.getMessage() for record in caplog.records] == (["here: option " + told] if told else [])


def test_type_names():
    """What a reader of the reference sees."""
    assert type_name(Optional[LayerRef]) == "layer | None"
    assert type_name(LayerRefs) == "layer | list[layer]"
    assert type_name(Union[str, Callable[[int], int]]) == "str | function"
    infos = declared_options(Example)
    assert (infos["mode"].type_name, infos["mode"].default) == ("'skip' | 'stop'", "skip")
    assert infos["mode"].description == "what to do"
    assert infos["gone"].description == "a thing of the past; not supported: write mode instead"
    assert infos["old"].description == "obsolete flag; no effect: there is only one way to do it"
    assert [info.name for info in own_options_first(Example)][-2:] == ["size", "old"]
    assert infos["where_from"].required


@pytest.mark.parametrize("name, near", [("shape", None), ("stat", "state"), ("sate", "state"), ("staet", "state")])
def test_did_you_mean(name, near):
    """Words that merely share letters are not suggested."""
    expected = "Known: state." if near is None else "Did you mean %r?" % near
    assert did_you_mean(name, ["state"]) == expected


def test_a_long_value_loses_its_middle():
    assert shown("x" * 100) == repr("x" * 100)
    text = shown({"first": "x" * 5000, "last": 1})
    assert len(text) <= 300 and text.startswith("{'first': 'xxx") and text.endswith("xxx', 'last': 1}")


def test_none_where_it_is_a_value():
    @dataclasses.dataclass
    class Options:
        audio: Optional[dict] = option(help="a required option, None = off")
        end: Optional[str] = option("</s>", help="an end symbol, None = none")
        count: int = option(3, help="a number")

    opts = from_options(Options, {"audio": None, "end": None, "count": None}, where="X", none_is_absent=True)
    assert (opts.audio, opts.end, opts.count) == (None, None, 3)
    with pytest.raises(ConfigError, match="the option 'audio' is missing"):
        from_options(Options, {"end": None}, where="X", none_is_absent=True)


@pytest.mark.parametrize(
    "annotation, words",
    [
        (int, "a whole number"),
        (Optional[int], "a whole number or None"),
        (Union[int, float, None], "a number or None"),
        (Union[bool, dict[str, Any], None], "True, False, a dict or None"),
        (Union[int, dict[str, Optional[int]]], "a whole number or a dict {string: a whole number or None}"),
        (Union[str, list[str]], "a string or a list of strings"),
        (list[list[int]], "a list of lists of whole numbers"),
        (tuple[int, float], "a list of 2: a whole number, a number"),
        (Callable[[int], int], "a function"),
        (Annotated[Any, Written(str, "axis | list[axis]")], "an axis or a list of axes"),
        (Annotated[Any, Written(str, "layer | 'zeros' | number")], "a layer, 'zeros' or a number"),
    ],
)
def test_types_in_words(annotation: Any, words: str) -> None:
    assert type_words(annotation) == words


@pytest.mark.parametrize(
    "value, words",
    [(3, "3"), (None, "None"), ("3", "'3' (a string)"), ([], "[] (a list)"), (int, "int (a class)")],
)
def test_values_in_words(value: Any, words: str) -> None:
    assert shown_with_kind(value) == words
