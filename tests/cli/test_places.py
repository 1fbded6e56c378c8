"""Errors point at the text of the config: file, line, column, and the line with a caret.

Each config marks by ⟦ ⟧ what is wrong. What code makes has no place, or a place around it.
"""

from __future__ import annotations

import json
import textwrap

import pytest

from returnn_tf.cli.main import main
from returnn_tf.cli.shared.locator import Locator
from returnn_tf.cli.shared.snippet import columns, snippet
from returnn_tf.config import Config
from returnn_tf.config.places import Span
from tests.cli.config_mutations import corpus
from tests.compiler.mutations import copied

HEAD = """behavior_version = 21
extern_data = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
batch_size = 100
"""
#: A network on one line with a place for a layer before its output.
NET = 'network = {%s"output": {"class": "softmax", "loss": "ce", "from": "data"}}\n'

CONFIGS = {
    "value of a setting": "num_epochs = ⟦'x'⟧\n",
    "value over several lines": "num_epochs = ⟦[\n    'x',\n]⟧\n",
    "the last assignment": "num_epochs = 'x'\nnum_epochs = 5\nnum_epochs = ⟦'x'⟧\n",
    "the assignment in a branch": "num_epochs = 5\nif batch_size:\n    num_epochs = ⟦'x'⟧\n",
    "computed value": "num_epochs = ⟦str(batch_size) + 'x'⟧\n",
    "computed in one of two places": "num_epochs = str(1) + 'x'\nif batch_size:\n    num_epochs = str(2) + 'x'\n",
    "set by a loop": "num_epochs = 'y'\nfor num_epochs in ['x']:\n    pass\n",
    "set by a function": "def f():\n    global num_epochs\n    num_epochs = str(1)\nnum_epochs = str(2)\nf()\n",
    "set by name": "num_epochs = str(1)\nglobals().update(num_epochs='x')\n",
    "local name": "def f():\n    num_epochs = 'x'\nnum_epochs = ⟦'x'⟧\n",
    "misspelt setting": "⟦num_epohcs⟧ = 5\n",
    "entry of a setting": "optimizer = {'class': 'adam', ⟦'epsilonn'⟧: 1e-8}\n",
    "entry of a setting by name": "opts = dict(⟦epsilonn⟧=1e-8)\nopts['class'] = 'adam'\noptimizer = opts\n",
    "class of an optimizer": "optimizer = {'class': ⟦'adm'⟧}\n",
    "name of an option": NET % '"a": {"class": "linear", ⟦"n_outt"⟧: 3, "from": "data", "loss": "as_is"}, ',
    "value of an option": NET % '"a": {"class": "linear", "n_out": ⟦"x"⟧, "from": "data", "loss": "as_is"}, ',
    "name among wide letters": NET % '"ä漢字é": {"class": "linear", ⟦"n_outt"⟧: 3, "from": "data", "loss": "as_is"}, ',
    "class of a layer": NET % '"a": {"class": ⟦"liner"⟧, "from": "data", "loss": "as_is"}, ',
    "source": NET % '"a": {"class": "copy", "from": ["data", ⟦"dat"⟧], "loss": "as_is"}, ',
    "source named like the class": NET % '"a": {"class": "copy", "from": ⟦"copy"⟧, "loss": "as_is"}, ',
    "sources that are no names": NET % '"a": {"class": "copy", "from": ⟦1⟧, "loss": "as_is"}, ',
    "missing option": NET % '⟦"a"⟧: {"class": "linear", "from": "data", "loss": "as_is"}, ',
    "option of a loss": NET.replace('"ce"', '"ce", "loss_opts": {⟦"focal_los"⟧: 3}') % "",
    "unit": NET % '"a": {"class": "rec", "unit": ⟦"lsmt"⟧, "n_out": 3, "from": "data", "loss": "as_is"}, ',
    "layer in a loop": NET
    % (
        '"r": {"class": "rec", "from": "data", "loss": "as_is", "unit": {\n'
        '  "output": {"class": "linear", "n_out": 3, ⟦"activatoin"⟧: "tanh", "from": "data:source"}}}, '
    ),
    "layer in a loop and one of its name outside": NET.replace('"ce"', '"ce", "activation": None')
    % (
        '"r": {"class": "rec", "from": "data", "loss": "as_is", "unit": {\n'
        '  "output": {"class": "softmax", "loss": "ce", ⟦"n_outt"⟧: 3, "from": "data"}}}, '
    ),
    "assigned layer": NET % "" + "network['a'] = {'class': 'linear', ⟦'n_outt'⟧: 3, 'from': 'data', 'loss': 'as_is'}\n",
    "assigned option": NET % '"a": {"class": "copy", "from": "data", "loss": "as_is"}, '
    + "network['a'][⟦'n_outt'⟧] = 3\n",
    "assigned value": NET % '"a": {"class": "linear", "n_out": 3, "from": "data", "loss": "as_is"}, '
    + "network['a']['n_out'] = ⟦'x'⟧\n",
    "updated option": NET % '"a": {"class": "copy", "from": "data", "loss": "as_is"}, '
    + "network['a'].update(⟦n_outt⟧=3)\n",
    "layer by name": "a = {'class': 'linear', ⟦'n_outt'⟧: 3, 'from': 'data', 'loss': 'as_is'}\n" + NET % '"a": a, ',
    "value by name": "N = 'x'\n" + NET % '"a": {"class": "linear", "n_out": ⟦N⟧, "from": "data", "loss": "as_is"}, ',
    "layers made by a loop": NET % ""
    + "for i in 'ab':\n    network[i] = {'class': 'linear', 'n_outt': 3, 'loss': 'as_is'}\n",
    "two alike": NET % '"a": {"class": "copy", "n_outt": 3, "from": "data", "loss": "as_is"}, '
    + "others = {'a': {'class': 'copy', 'n_outt': 3, 'from': 'data', 'loss': 'as_is'}}\n",
    "two that differ": NET % '"a": {"class": "copy", ⟦"n_outt"⟧: 3, "from": "data", "loss": "as_is"}, '
    + "others = {'a': {'class': 'copy', 'n_outt': 4, 'from': 'data', 'loss': 'as_is'}}\n",
    "value that others replace": "more = {'n_out': 'x'}\nN = 3\n"
    + NET % '⟦"a"⟧: {"class": "linear", "n_out": N, **more, "from": "data", "loss": "as_is"}, ',
    "network of a function": "def get_network(epoch, **_):\n    return {\n"
    "        'output': {'class': 'softmax', 'loss': 'ce', ⟦'n_outt'⟧: epoch, 'from': 'data'}}\n",
    "dataset": "train = {'class': 'Task12AXDataset', ⟦'nmu_seqs'⟧: 5}\n",
    "class of a dataset": "train = {'class': ⟦'Task12AxDataset'⟧, 'num_seqs': 5}\n",
    "inner dataset": "dev = {'class': 'MetaDataset', 'seq_list_file': 'x', 'data_map': {'data': ('a', 'data')},\n"
    "       'datasets': {'a': {'class': 'Task12AXDataset', ⟦'nmu_seqs'⟧: 4}}}\n",
    "one of the datasets": "eval_datasets = {'other': {'class': 'Task12AXDataset', 'num_seqs': ⟦'x'⟧}}\n",
}


def without_marks(text: str):
    """Return a text without its marks, and the place between them, or None."""
    before, start, rest = text.partition("⟦")
    inside, _, after = rest.partition("⟧")
    if not start:
        return text, None
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    end, last = inside.count("\n"), len(inside) - (inside.rfind("\n") + 1)
    return before + inside + after, (line, column, line + end, (1 if end else column) + last)


@pytest.mark.parametrize("name", CONFIGS)
def test_place(name, tmp_path, capsys):
    """The first error or warning has the marked place, in JSON and in the text."""
    own = CONFIGS[name]
    network = "" if "network" in own else NET % ""
    text, place = without_marks(HEAD + network + own)
    path = tmp_path / "my.config"
    path.write_text(text, encoding="utf8")
    main(["check", "--json", str(path)])
    found = json.loads(capsys.readouterr().out)["diagnostics"][0]["place"]
    span = found["line"], found["column"], found["end_line"], found["end_column"]
    assert (None if found["column"] is None else span) == place, found
    main(["check", str(path)])
    shown = capsys.readouterr().err
    assert ("--> " in shown) == (place is not None)
    if place is not None:
        assert found["file"] == str(path) and "--> %s:%d:%d\n" % (path, *place[:2]) in shown


@pytest.mark.slow
def test_run_points_too(tmp_path, capsys):
    """A task shows what check shows."""
    path = tmp_path / "my.config"
    path.write_text(HEAD + NET % '"a": {"class": "linear", "n_outt": 3, "from": "data", "loss": "as_is"}, ')
    assert main([str(path), "++task", "forward", "++forward_data", "{'class': 'Task12AXDataset'}"]) == 2
    lines = capsys.readouterr().err.splitlines()
    marked = next(i for i, line in enumerate(lines) if "--> %s:4:" % path in line)
    assert lines[marked + 2].index('"n_outt"') == lines[marked + 3].index("^^^^^^^^")


def test_other_files(tmp_path, capsys):
    """Of several files, the last one that sets a value; imported ones; JSON with comments; lines; the command line."""
    first, second, module = tmp_path / "a.config", tmp_path / "b.config", tmp_path / "places_base.py"
    module.write_text("optimizer = {'class': 'adam',\n  'epsilonn': 1e-8}\n")
    first.write_text("from places_base import *\nnum_epochs = 'x'\n" + HEAD + NET % "")
    second.write_text('{ // Ends later\n  "num_epochs": "yé", "task": "train"}\n')
    lines = tmp_path / "c.config"
    lines.write_text("max_seqs many  # or few\n")
    main(["check", "--json", str(first), str(second), str(lines), "++seq_ordering_seed", "5", "++log_verbosity", "x"])
    diagnostics = json.loads(capsys.readouterr().out)["diagnostics"]
    found = {each["message"].split("'")[1]: each["place"] for each in diagnostics}
    places = {name: (each["file"], each["line"], each["column"], each["end_column"]) for name, each in found.items()}
    assert places["num_epochs"] == (str(second), 2, 17, 21)
    assert places["max_seqs"] == (str(lines), 1, 10, 14)
    assert places["log_verbosity"][2:] == (None, None)
    assert places["adam"][0].endswith("places_base.py") and places["adam"][1:] == (2, 3, 13)


def test_without_working_directory(tmp_path, monkeypatch, capsys):
    """The error is shown where the folder in which the program was started is gone."""
    path, gone = tmp_path / "my.config", tmp_path / "gone"
    path.write_text(HEAD + "num_epochs = 'x'\n" + NET % "")
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["check", "--no-data", str(path)]) == 2
    assert "--> %s:4:14\n" % path in capsys.readouterr().err


def test_text_at_the_time_of_loading(tmp_path):
    """A file that changes while it runs is shown as it was read."""
    path = tmp_path / "my.config"
    path.write_text("num_epochs = 'x'\n")
    config = Config.from_file(str(path))
    path.write_text("\n\n\n")
    span = Locator(config).locate("config key 'num_epochs' (%s:1): expected a whole number" % path).span
    assert span == Span(str(path), 1, 14, 1, 17)


@pytest.mark.parametrize(
    "line, column, end, width, shown, carets",
    [
        ("x = 'y'", 5, 8, 80, "x = 'y'", "    ^^^"),
        ("\tx = 'y'", 6, 9, 80, "    x = 'y'", "        ^^^"),
        ("漢字 = 'y'", 6, 9, 80, "漢字 = 'y'", "       ^^^"),
        ("e\u0301 = '漢'", 6, 9, 80, "e\u0301 = '漢'", "    ^^^^"),
        ("x = '\x1b'", 5, 8, 80, "x = '\\x1b'", "    ^^^^^^"),
        ("a" * 50 + "bcd" + "e" * 50, 51, 54, 44, "..." + "a" * 22 + "bcd" + "e" * 9 + "...", " " * 25 + "^^^"),
        ("x = '" + "y" * 99 + "'", 5, 106, 34, "x = '" + "y" * 11 + "...", " " * 4 + "^" * 15),
    ],
)
def test_snippet(line, column, end, width, shown, carets):
    """The carets stand below the part, whatever width its letters have, and the line fits into the terminal."""
    found = snippet(Span("my.config", 7, column, 7, end), [""] * 6 + [line], width).splitlines()
    assert found[0] == " --> my.config:7:%d" % column and found[1] == "  |"
    assert found[2] == "7 | " + shown and found[3] == "  | " + carets
    assert columns(found[2]) <= max(width, 24) + 1


def _entries(value, keys=()):
    """Yield the keys that lead to each value in nested dicts, and the value."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield (*keys, key), inner
        yield from _entries(inner, (*keys, key))


@pytest.mark.parametrize("name", sorted(corpus()))
def test_misspelt_options(name, tmp_path, capsys):
    """Wherever a name in a config is misspelt: the error about it has its place, and no error has that of another."""
    path, found = tmp_path / "my.config", 0
    for keys, _ in _entries(corpus()[name]):
        settings = copied(corpus()[name])
        target = settings
        for key in keys[:-1]:
            target = target[key]
        wrong = "%sxq" % keys[-1]
        renamed = {wrong if key == keys[-1] else key: value for key, value in target.items()}
        target.clear()
        target.update(renamed)
        path.write_text("".join("%s = %s\n" % (key, code_of(value)) for key, value in settings.items()))
        main(["check", "--json", "--no-data", str(path)])
        text = path.read_text().splitlines()
        for each in json.loads(capsys.readouterr().out)["diagnostics"]:
            place = each["place"]
            if "unknown option %r" % wrong in each["message"]:
                assert place["line"] == place["end_line"], each
                assert text[place["line"] - 1][place["column"] - 1 : place["end_column"] - 1] == repr(wrong)
                found += 1
    assert found > 5


def code_of(value) -> str:
    """Return a value as Python code, dicts over several lines."""
    if not isinstance(value, dict):
        return repr(value)
    inner = "".join("%r: %s,\n" % (key, code_of(each)) for key, each in value.items())
    return "{\n%s}" % textwrap.indent(inner, "    ")
