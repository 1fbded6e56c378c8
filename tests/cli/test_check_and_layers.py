"""returnn-tf check and layers: arguments reach the functions that describe, mistakes end with a message."""

import pytest

from returnn_tf.cli import check
from returnn_tf.cli.main import main

CONFIG = """
extern_data = {"data": {"dim": 5}, "classes": {"dim": 3, "sparse": True}}
network = {"output": {"class": "softmax", "loss": "ce", "from": "data"}}
"""


@pytest.fixture
def config(tmp_path):
    """Return a config with a small network."""
    path = tmp_path / "my.config"
    path.write_text(CONFIG)
    return str(path)


def test_check(config, capsys):
    """The table names the layer and its class; warnings name settings which have no meaning or no effect."""
    assert main(["check", config, "++num_epoch", "3", "++web_server_port", "80"]) == 0
    captured = capsys.readouterr()
    assert "output" in captured.out and "softmax" in captured.out and "\x1b[" not in captured.out
    assert "Did you mean 'num_epochs'?" in captured.err
    assert "Warning: setting without effect: web_server_port (the task search_server does not exist)" in captured.err


def test_memory(config, capsys):
    """A row for each length, with as many sequences as the limits allow; Adam has two slots."""
    limits = ["++batch_size", "700", "++max_seqs", "10", "++optimizer", "{'class': 'adam'}"]
    assert main(["check", "--memory", "--no-data", config, *limits]) == 0
    lines = capsys.readouterr().out.split("memory of a step of training, ")[1].splitlines()
    assert lines[0] == "estimated: parameters 72B, gradients 72B, optimizer 144B"
    rows = [line.split()[:2] for line in lines[2:]]
    assert rows == [["50", "10"], ["100", "7"], ["200", "3"], ["500", "1"], ["700", "1"]]
    assert main(["check", "--memory", "--no-data", config, *limits, "++max_seq_length", "40"]) == 0
    lines = capsys.readouterr().out.split("memory of a step of training, ")[1].splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [["40", "10"]]
    assert main(["check", "--memory", "--no-data", config, *limits, "++max_seqs_by_length", "{60: 4, 150: 5}"]) == 0
    lines = capsys.readouterr().out.split("memory of a step of training, ")[1].splitlines()
    rows = [line.split()[:2] for line in lines[2:]]
    assert rows == [["50", "4"], ["100", "5"], ["200", "1"], ["500", "1"], ["700", "1"]]
    assert main(["check", "--memory", "--no-data", config, "++task", "search"]) == 2
    assert "--memory is about training" in capsys.readouterr().err


@pytest.mark.parametrize("form", [["--graph", "%s"], ["--graph=%s"]])
def test_graph(config, form, tmp_path, monkeypatch):
    """--graph gets to the function."""
    seen = []
    monkeypatch.setattr(check, "describe_and_draw", lambda plan, graph, color: seen.append((graph, color)) or "")
    assert main(["check", config] + [word.replace("%s", "x.svg") for word in form]) == 0
    assert seen == [("x.svg", False)]


def test_check_errors(config, capsys):
    """No config, no file for the graph."""
    assert main(["check"]) == 2
    assert main(["check", config, "--graph"]) == 2
    assert main(["check", config, "--grph", "x.svg"]) == 2
    assert main(["check", config, "--graph", "/dev/null.svg/x.svg"]) == 2
    err = capsys.readouterr().err
    assert "which config?" in err and "--graph needs a value" in err
    assert "unknown option '--grph'. Did you mean '--graph OUT.svg'?" in err and "Create it first" in err


def test_graph_that_cannot_be_written(config, capsys, tmp_path):
    """A folder stands in the way."""
    (tmp_path / "x.svg").mkdir()
    assert main(["check", config, "--graph", str(tmp_path / "x.svg")]) == 2
    assert "can't be written: Is a directory" in capsys.readouterr().err


def test_summaries_are_whole_sentences(capsys):
    """One line for each layer, not cut within brackets or after an abbreviation."""
    assert main(["layers"]) == 0
    for line in capsys.readouterr().out.splitlines():
        assert line.count("(") == line.count(")") and not line.endswith(("e.g.", "i.e.", "et al.")), line


def test_layers(capsys):
    """The list, one class, a class that isn't there."""
    assert main(["layers"]) == 0
    assert "softmax" in capsys.readouterr().out
    assert main(["layers", "linear"]) == 0
    assert "activation" in capsys.readouterr().out
    assert main(["layers", "liner"]) == 2
    assert "linear" in capsys.readouterr().err
    assert main(["layers", "--all"]) == 2


@pytest.mark.parametrize("name", ["lstm", "GRU", "LSTMCell"])
def test_units_are_no_layer_classes(name, capsys):
    """The error names the class that they are units of, not a class with a similar name."""
    assert main(["layers", name]) == 2
    assert 'a unit of layer class \'rec\': {"class": "rec", "unit": "%s"}' % name in capsys.readouterr().err


SEARCH = """
extern_data = {"data": {"dim": 3}, "classes": {"dim": 4, "sparse": True}}
network = {
    "output": {"class": "rec", "from": "data", "unit": {
        "prob": {"class": "softmax", "from": "data:source", "n_out": 4},
        "output": {"class": "choice", "from": "prob", "beam_size": 3, "target": "classes",
                   "initial_output": 0},
    }},
    "decision": {"class": "decide", "from": "output", "is_output_layer": True},
    "scores": {"class": "linear", "activation": None, "n_out": 4, "from": "data", "is_output_layer": True},
    "sum": {"class": "reduce", "mode": "sum", "axis": ["B", "T"], "from": "data", "is_output_layer": True},
}
task = "search"
"""


@pytest.mark.parametrize(
    "layer, code, message",
    [
        ("decision", 0, ""),
        ("decison", 2, "Did you mean 'decision'?"),
        ("scores", 0, ""),
        ("sum", 2, "which is neither a sequence of labels nor an array for each sequence"),
    ],
)
def test_check_of_a_search(layer, code, message, tmp_path, capsys):
    """The layer whose output would be written is looked up in the network as it searches."""
    path = tmp_path / "search.config"
    path.write_text(SEARCH)
    assert main(["check", str(path), "++search_output_layer", layer]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("args, shown", [([], True), (["++search_do_eval", "0"], False), (["++task", "train"], False)])
def test_check_of_a_search_names_the_label_that_is_no_error(args, shown, tmp_path, capsys):
    """The label for which the layer ``end`` is true."""
    path = tmp_path / "search.config"
    path.write_text(
        SEARCH.replace('"is_output_layer": True},', '"loss": "edit_distance"},', 1)
        .replace('"from": "data", "unit": {', '"from": [], "max_seq_len": 9, "unit": {')
        .replace('"prob": {', '"end": {"class": "compare", "from": "output", "value": 2}, "prob": {')
        .replace('"from": "data:source"', '"from": "prev:output"')
    )
    assert main(["check", str(path), *args]) == 0
    text = "note: task search counts the errors of 'decision' without the end label 2, also where a reference has it\n"
    assert (text in capsys.readouterr().out) is shown
