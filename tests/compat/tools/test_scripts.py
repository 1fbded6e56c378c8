"""The scripts in ``tools/`` that have the names of RETURNN's: what there is, and how they are started."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from returnn_tf.cli.main import main
from returnn_tf.compat.tool.registry import TOOLS
from returnn_tf.compat.tool.shared.arguments import parse

ROOT = Path(__file__).parents[3]
SCRIPTS = {
    path.name: match.group(1)
    for path in sorted((ROOT / "tools").glob("*.py"))
    if (match := re.search(r'main\(\["tool", "([^"]+)"', path.read_text()))
}


def test_each_tool_has_a_script():
    assert sorted(SCRIPTS.values()) == sorted(name for name, _ in TOOLS.items())
    for script, tool in SCRIPTS.items():
        assert script.replace("-", "_") == tool.replace("-", "_") + ".py"


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_can_be_executed(script):
    path = ROOT / "tools" / script
    assert os.access(path, os.X_OK) and path.read_text().startswith("#!/usr/bin/env python3\n")


@pytest.mark.parametrize("name", SCRIPTS.values())
def test_help(name, capsys):
    assert main(["tool", name, "--help"]) == 0
    assert "returnn-tf tool %s" % name in capsys.readouterr().out


def test_list_of_all(capsys):
    assert main(["tool", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(re.search(r"^  %s  +\w" % name, out, re.M) for name in SCRIPTS.values())
    assert main(["tool"]) == 2 and main(["tool", "dump-datasets"]) == 2
    assert "Did you mean 'dump-dataset'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "args", [[], ["dump-dataset", "--endseq", "x"], ["hdf-dump"], ["get-best-model-epoch", "nothing"]]
)
def test_errors_name_the_page_on_commands(args, capsys):
    assert main(["tool", *args]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "More: returnn-tf explain commands"


@pytest.mark.slow
def test_runs_in_an_empty_environment(tmp_path):
    """From anywhere, without PATH, HOME or PYTHONPATH."""
    command = [sys.executable, str(ROOT / "tools" / "dump-dataset.py"), "{'class': 'Task12AX', 'num_seqs': 2}"]
    done = subprocess.run([*command, "--endseq", "-1", "--type", "null"], cwd=tmp_path, env={}, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"2 sequences\n", b"")


def test_documentation_has_each_tool():
    """With an example whose options there are."""
    page = (ROOT / "docs" / "tools.md").read_text()
    examples = {line.split("`")[1]: line.split("`")[3] for line in page.splitlines() if line.startswith("| `")}
    assert sorted(examples) == sorted(SCRIPTS.values())
    for name, example in examples.items():
        tool, *args = example.split()
        assert tool == name and parse(TOOLS[name].parser(), args)
