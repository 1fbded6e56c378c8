"""What a config asks for in vain is told, once in the log of the run and by ``returnn-tf check``, or is an error."""

from __future__ import annotations

import pathlib

import pytest

from returnn_tf.cli.main import main
from returnn_tf.config import options

BASE = """
train = {"class": "Task12AXDataset", "num_seqs": 12}
extern_data = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
network = {
    "hidden": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "data"},
    "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "hidden"},
}
batch_size, behavior_version, num_epochs = 300, 21, 0
"""

#: Change of the config -> what is said of it; nothing else is said.
TOLD: dict[str, str] = {}

# layers that nothing needs
_AUX = 'network["aux"] = {"class": "softmax", "from": "hidden", '
_LEFT_OUT = "(Nothing needs this layer, so it is left out.)"
TOLD.update(
    {
        _AUX + '"los": "ce", "target": "classes"}': "unknown option 'los'. Did you mean 'loss'?",
        _AUX + '"is_output_layr": True, "n_out": 2}': "unknown option 'is_output_layr'. Did you mean",
        _AUX + '"target": "classes"}': "Layer 'aux' (class 'softmax'): it has a target, but no loss. " + _LEFT_OUT,
        'network["aux"] = float("nan")': "Layer 'aux' must be a dict such as {'class': 'linear', ...}, got nan.",
        'network["aux"] = float("inf")': "Layer 'aux' must be a dict",
        'network["aux"] = None': "Layer 'aux' must be a dict",
        'network["aux"] = set()': "Layer 'aux' must be a dict",
        'network["aux"] = {"class": "nosuch"}': "Layer 'aux': unknown layer class 'nosuch'.",
        'network["aux"] = {"class": "copy", "from": 1}': "'from' must be the name of a layer or a list of names",
        'network["aux"] = {"class": "copy", "from": "hiden"}': "there is no layer 'hiden'. " + _LEFT_OUT,
    }
)
# targets
_UNKNOWN = "target 'nosuch' is neither a layer nor a data key. Known: classes, data."
TOLD.update(
    {
        'network["hidden"]["target"] = "nosuch"': "Layer 'hidden' (class 'linear'): " + _UNKNOWN,
        'target = "nosuch"': "config key 'target': there is no data key 'nosuch'. Known: classes, data.",
    }
)

#: What is usual, and therefore not worth a word.
SILENT: list[str] = [
    "",
    'network["aux"] = {"class": "softmax", "from": "hidden", "n_out": 3}',
    _AUX + '"target": "classes", "loss": None}',
    _AUX + '"target": "classes", "only_on_search": True}',
    _AUX + '"target": "classes"}; network["search"] = {"class": "copy", "from": "aux"}',
    'network["aux"] = {"class": "decide", "from": "output", "target": "classes", "loss": "edit_distance", '
    '"only_on_search": True}',
    'target = "classes"',
    'network["labels"] = {"class": "copy", "from": "data:classes", "register_as_extern_data": "own"}; target = "own"',
]


@pytest.fixture(autouse=True)
def told_anew(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder; what the process has told in other tests is forgotten."""
    monkeypatch.chdir(tmp_path)
    options.log_inert.cache_clear()


def lines_of(capsys: pytest.CaptureFixture[str], change: str, *command: str) -> list[str]:
    """Run a command on the changed config; return the lines of its output that tell of something."""
    pathlib.Path("my.config").write_text("%smodel = 'm'\n%s\n" % (BASE, change))
    assert main([*command, "my.config"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines() + captured.err.splitlines()
    return [line for line in lines if line.startswith(("Warning", "note: ", "Settings without effect", "config"))]


@pytest.mark.parametrize("change", TOLD)
def test_told_in_the_log_and_by_check(change: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ((), ("check",)):
        lines = [line for line in lines_of(capsys, change, *command) if not line.startswith("config: ")]
        assert len(lines) == 1 and TOLD[change] in lines[0], (command, lines)


@pytest.mark.parametrize("change", SILENT)
def test_usual_configs_are_not_talked_about(change: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ((), ("check",)):
        assert [line for line in lines_of(capsys, change, *command) if not line.startswith("config: ")] == []


@pytest.mark.parametrize(
    "change, message",
    [
        (
            _AUX + '"loss": "ce", "target": "classes", "only_on_search": "xxx"}',
            "option 'only_on_search' must be True or False",
        ),
        (_AUX + '"loss": "ce", "target": "classes", "is_output_layer": "xxx"}', "option 'is_output_layer' must be"),
    ],
)
def test_is_an_error(change: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    pathlib.Path("my.config").write_text("%smodel = 'm'\n%s\n" % (BASE, change))
    for command in ((), ("check",)):
        assert main([*command, "my.config"]) == 2
        assert message in capsys.readouterr().err
    assert main(["check", "my.config", "++task", "search"]) == 2
