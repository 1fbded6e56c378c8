"""What is wrong with a loop is said when it is planned, with the layer and the way out."""

import pytest

from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import ConfigError
from tests.layers.nets import config_of, run

LINEAR = {"class": "linear", "activation": "tanh", "n_out": 3}
SEARCH = {
    "output": {"class": "choice", "from": "p", "target": "labels", "beam_size": 2, "initial_output": 0},
    "p": {"class": "softmax", "from": "e", "n_out": 5},
    "e": {**LINEAR, "from": "prev:output"},
    "end": {"class": "compare", "from": "output", "value": 0},
}


def linear(*sources, **options):
    return {**LINEAR, "from": list(sources), **options}


def plan(unit, source="data", search=False, **options):
    network = {
        "mean": {"class": "reduce", "mode": "mean", "axes": "T", "from": "data"},
        "wide": {"class": "linear", "activation": None, "n_out": 5, "from": "mean"},
        "loop": {"class": "rec", "from": source, "unit": unit, **options},
        "output": {"class": "copy", "from": "loop"},
    }
    return plan_from_config(config_of(network), search=search)


def fails(match, *args, **options):
    with pytest.raises(ConfigError, match=match) as info:
        plan(*args, **options)
    assert "loop" in str(info.value)


@pytest.mark.parametrize(
    "limit,match",
    [
        (None, "needs the option max_seq_len"),
        (0, "at least 1, got 0"),
        (2.5, "must be a string, a whole number or None, got 2.5"),
        (True, "got True"),
        ("-3", "'-3' is -3, but it must be a whole number"),
        ("3.5", "is 3.5"),
        ("1 / 0", "ZeroDivisionError"),
        ("max_len_form('base:data')", "unknown name 'max_len_form'.*Did you mean 'max_len_from'"),
        ("max_len_from('base:dat')", "max_seq_len: there is no layer 'dat'"),
        ("max_len_from('base:mean')", "'base:mean' has no time axis"),
        ("max_len_from('base:data') *", "does not parse"),
        ("max_len_from()", "takes the name of one layer"),
        ("max_len_from(base)", "unknown name 'base'|takes the name of one layer"),
        ("max_len_from('base:data') + x", "unknown name 'x'"),
        ("__import__('os').getpid()", "unknown name '__import__'"),
    ],
)
def test_max_seq_len(limit, match):
    fails(match, SEARCH, [], search=True, max_seq_len=limit)


@pytest.mark.parametrize("limit", [3, "2 + 1", "max_len_from('base:data') * 2", "min(max_len_from('base:data'), 7)"])
def test_good_max_seq_len(limit):
    plan(SEARCH, [], search=True, max_seq_len=limit)


@pytest.mark.parametrize(
    "initial,match",
    [
        ("zeroes", "there is no layer 'zeroes'(.|\n)*Did you mean 'zeros'"),
        ("apply(1)", "Did you mean 'apply\\(0\\)'"),
        ("base:maen", "there is no layer 'maen'"),
        ("base:wide", "layer 'wide' is .*but the value of a step is .*without the axis"),
        ([1], "must be a layer, 'zeros'"),
    ],
)
def test_initial_output(initial, match):
    fails(match, {"output": linear("data:source", "prev:output", initial_output=initial)})


def test_labels_need_an_initial_output():
    unit = {**SEARCH, "output": {**SEARCH["output"], "initial_output": None}, "x": linear("e", is_output_layer=True)}
    fails("'prev:output' needs the option 'initial_output'", unit, [], target="labels", max_seq_len=3)


@pytest.mark.parametrize(
    "unit,match",
    [
        ({"output": linear("data:source", "prev:outptu")}, "no layer 'outptu' in the loop.*Did you mean 'output'"),
        (
            {"a": linear("b"), "b": linear("c"), "c": linear("data:source", "a"), "output": linear("a")},
            "in a cycle: loop/a <- loop/b <- loop/c <- loop/a. One of them must use .* e.g. 'prev:a'",
        ),
        ({"output": linear("output")}, "in a cycle: loop/output <- loop/output"),
        ({"outputt": linear("data:source")}, "has no layer 'output'. Did you mean 'outputt'"),
        (
            {"a": {"class": "reduce", "mode": "sum", "axes": "T", "from": "data:source"}, "output": linear("a")},
            "'T' means no axis(.|\n)*The axis time is the step axis: a layer of a loop sees one step at a time",
        ),
    ],
)
def test_wrong_units(unit, match):
    fails(match, unit)


def test_no_end():
    fails("neither a source nor.*nor a layer 'end'", {"output": linear("prev:output")}, [])


def test_end_that_is_no_flag():
    fails("'end' must be a bool per sequence", {**SEARCH, "end": linear("output")}, [], search=True, max_seq_len=3)


def test_a_layer_outside_needs_base() -> None:
    fails("there is no layer 'mean'. Write 'base:mean' for the outer layer", {"output": linear("mean", "prev:output")})


def test_a_choice_has_no_initial_output_on_zeros() -> None:
    choice = {**SEARCH["output"], "initial_output": "apply(0)"}
    fails("a choice has no 'apply\\(0\\)'. Give a label", {**SEARCH, "output": choice}, [], search=True, max_seq_len=3)


def test_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    unit = {name: layer for name, layer in SEARCH.items() if name != "end"}
    plan(unit, [], target="labels", search=True)
    text = capsys.readouterr().out
    assert "'loop': the loop has no layer 'end', so the search outputs as many labels" in text and "mean" not in text
    plan({**unit, "ende": SEARCH["end"]}, [], target="labels", search=True, max_seq_len=3)
    assert "Did you mean 'end' by 'ende'?" in capsys.readouterr().out
    without_target = {name: value for name, value in SEARCH["output"].items() if name != "target"}
    plan({**unit, "output": without_target}, [], target="labels")
    assert "'loop/output' (class 'choice'): has no target, so it searches in training" in capsys.readouterr().out
    plan({**unit, "output": {**without_target, "target": None}}, [], target="labels")
    plan(SEARCH, [], target="labels", search=True, max_seq_len=4)
    plan({**unit, "output": {**SEARCH["output"], "cheating": True}}, [], target="labels", search=True)
    assert not capsys.readouterr().out


def test_the_error_is_that_of_the_layer_at_fault() -> None:
    unit = {
        "s": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": 5, "from": ["data:source", "prev:att"]},
        "q": linear("s"),
        "w": linear("s", n_out=4),
        "att": {"class": "combine", "kind": "add", "from": ["q", "w"]},
        "output": {"class": "copy", "from": "s"},
    }
    fails("(?s)Layer 'loop/att' \\(class 'combine'\\): The dims don't fit: .*loop/w", unit)


@pytest.mark.parametrize("name", ["output", "prev:output", "prev:e", "e", "end"])
def test_initial_output_of_the_loop_itself(name):
    unit = {**SEARCH, "e": {**SEARCH["e"], "initial_output": name}, "p": {**SEARCH["p"], "from": ["e", "prev:e"]}}
    fails("initial_output: '%s' has no value before the first step" % name, unit, [], search=True, max_seq_len=3)


def test_search_whose_length_is_that_of_the_target():
    """Nothing but the number of steps needs the target."""
    unit = {name: layer for name, layer in SEARCH.items() if name != "end"}
    network = {"output": {"class": "rec", "from": [], "unit": unit, "target": "labels"}}
    config = config_of(network, extern_data={"data": {"dim": 3}, "labels": {"dim": 5, "sparse": True}})
    assert "labels" in plan_from_config(config, search=True).extern


def test_part_of_a_loop_whose_source_is_not_used():
    unit = {"h": {**LINEAR, "from": "prev:h", "is_output_layer": True}, "output": {"class": "copy", "from": "h"}}
    network = {"loop": {"class": "rec", "from": "data", "unit": unit}, "output": {"class": "copy", "from": "loop/h"}}
    assert run(network)["output"].value.shape[-1] == 3
