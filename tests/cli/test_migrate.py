"""returnn-tf check --migrate: what is old, inert, unsupported or different, by line, with what to write today."""

from __future__ import annotations

from pathlib import Path

import pytest

from returnn_tf.cli.main import main
from returnn_tf.config.places import ConfigText

CONFIG = """#!rnn.py
from TFUtil import where_bc
import returnn.tf.util.basic
adam = True
need_data = False
num_inputs = 5
num_outputs = {"classes": (3, 1)}
Width = 4
network = {
    "h": {"class": "hidden", "activation": "tanh", "n_out": Width, "from": "data",
          "only_on_eval": True},
    "rec": {"class": "rec", "from": "h", "unit": {
        "output": {"class": "forward", "activation": None, "n_out": 3, "from": "data:source"}}},
}
network["output"] = {"class": "softmax", "loss": "ce", "from": "rec", "target": "classes"}
for i in range(2):
    network["made%i" % i] = {"class": "hidden", "n_out": 2, "from": "h", "is_output_layer": True}
"""

EXPECTED = [
    (2, "old: TFUtil: ", "from returnn.tf.util.basic import where_bc"),
    (4, "old: adam: ", 'optimizer = {"class": "adam"}'),
    (5, "no effect: need_data: ", "remove it"),
    (6, "old: num_inputs: ", "extern_data"),
    (7, "old: num_outputs: ", "extern_data"),
    (10, "old: layer 'h': older name of the class", "'class': 'linear'"),
    (11, "no effect: layer 'h': only_on_eval: ", "remove it"),
    (13, "old: layer 'rec/output': older name of the class", "'class': 'linear'"),
    (None, "old: layer 'made0': older name of the class", "'class': 'linear'"),
    (None, "old: layer 'made1': older name of the class", "'class': 'linear'"),
    (None, "old: no behavior_version: ", "behavior_version = 30"),
]


@pytest.fixture
def path(tmp_path):
    """Return an old config."""
    path = tmp_path / "old.config"
    path.write_text(CONFIG)
    return path


def test_report(path, capsys):
    """Each finding stands on its line, in the order of the lines, with what to write today; nothing else is listed."""
    assert main(["check", str(path), "--migrate"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "9 old, 2 no effect"
    found = lines[:-1]
    assert len(found) == len(EXPECTED)
    for number, what, write in EXPECTED:
        place = "%s:%d: " % (path, number) if number else ""
        matching = [line for line in found if what in line]
        assert len(matching) == 1, (what, found)
        assert matching[0].startswith(place) and write in matching[0]
    numbers = [
        int(line.split(":")[1]) for line in found if line.startswith("%s:" % path) and line.split(":")[1].isdigit()
    ]
    assert numbers == sorted(numbers)


def test_strict(path, tmp_path, capsys):
    """Each finding is an error; without one the exit code is 0."""
    assert main(["check", str(path), "--strict"]) == 2
    assert "error: --strict: 9 old, 2 no effect" in capsys.readouterr().err
    new = tmp_path / "new.config"
    new.write_text(
        "behavior_version = 30\nextern_data = {'data': {'dim': 5}, 'classes': {'dim': 3, 'sparse': True}}\n"
        "network = {'output': {'class': 'softmax', 'loss': 'ce', 'from': 'data', 'target': 'classes'}}\n"
    )
    assert main(["check", str(new), "--strict"]) == 0
    assert main(["check", str(new), "--migrate"]) == 0
    assert "nothing to migrate" in capsys.readouterr().out


def test_mistakes_remain_mistakes(path, capsys):
    """The report is printed even if the check fails, and the exit code tells."""
    assert main(["check", str(path), "--migrate", "++num_epochs", "'x'"]) == 2
    captured = capsys.readouterr()
    assert "older name of the class" in captured.out and "num_epochs" in captured.err


def test_unsupported(path, capsys):
    """A setting that is not supported is listed with the reason."""
    with path.open("a") as file:
        file.write("network['h']['state'] = {'x': 1}\n")
    assert main(["check", str(path), "--migrate"]) == 2
    assert "not supported: layer 'h': state: " in capsys.readouterr().out


def test_version(tmp_path, capsys):
    """If the newest rules refuse the network, the error says why; if they change it, the layers are named."""
    path = tmp_path / "my.config"
    head = "extern_data = {'data': {'dim': 5}}\nnetwork = {'output': {'class': %s}}\n"
    path.write_text(head % "'linear', 'n_out': 2")
    assert main(["check", str(path), "--migrate"]) == 0
    assert "the rules of version 0 apply; with 30: Layer 'output'" in capsys.readouterr().out
    path.write_text(head % "'conv', 'n_out': 2, 'filter_size': (3,), 'padding': 'same', 'from': 'data'")
    assert main(["check", str(path), "--migrate"]) == 0
    assert "with 30 these change: output/bias" in capsys.readouterr().out


def test_different_and_switches(path, capsys):
    """What works unlike in RETURNN, and switches of optimizers beside another one."""
    with path.open("a") as file:
        file.write("nadam = True\naccum_grad_multiple_step = 2\n")
    assert main(["check", str(path), "--migrate"]) == 0
    out = capsys.readouterr().out
    assert "different: accum_grad_multiple_step: gradients of exactly these steps" in out
    assert "no effect: nadam: adam is set too, and comes first" in out


def test_strict_and_misspelt_settings(tmp_path, capsys):
    """A misspelt setting of the command line is an error with --strict only."""
    demo = Path(__file__).parents[2] / "demos" / "12ax" / "12ax.config"
    assert main(["check", str(demo), "++num_epoch", "3"]) == 0
    assert "Did you mean 'num_epochs'?" in capsys.readouterr().err
    assert main(["check", str(demo), "--strict", "++num_epoch", "3"]) == 2
    err = capsys.readouterr().err
    assert "Did you mean 'num_epochs'?" in err and "error: --strict: 1 mistake\n" in err


def test_strict_takes_a_version(tmp_path, capsys):
    """A version below the newest one is fine if the newest one would not change the plan; the demo is such a config."""
    demo = Path(__file__).parents[2] / "demos" / "12ax" / "12ax.config"
    assert main(["check", str(demo), "--strict"]) == 0


@pytest.mark.parametrize(
    "text, options, option, line",
    [
        ("x = {\n'a': {'class': 'copy',\n'n_out': 3}}", {"class": "copy", "n_out": 3}, "n_out", 3),
        ("x = dict(\na=dict(k='copy',\nn=3))", {"k": "copy", "n": 3}, "n", 3),
        ("x['a'] = {\n'k': 1}", {"k": 1}, "k", 2),
        ("x['a'] = {'k': n}", {"k": 5, "more": 2}, "k", 1),
        ("x['a'] = {'k': 1}", {"k": 2}, "k", None),
        ("x['a'] = {'k': 1}\ny['a'] = {'k': 1}", {"k": 1}, "k", None),
        ("x['a'] = {'k': True}", {"k": 1}, "k", None),
        ("no python", {"k": 1}, "k", None),
    ],
)
def test_places(text, options, option, line):
    """Lines are found in the syntax tree; where several places fit, or none, there is no line."""
    found = ConfigText("my.py", text)
    layer = found.layer("net/a", options)
    entry = None if layer is None else found.option(layer, option, options)
    assert (None if entry is None else found.span(entry.key).line) == line
