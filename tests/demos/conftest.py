"""The demos are no package: their modules are imported from their directories."""

from __future__ import annotations

import os
import sys

import pytest

from tests import processes

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMOS = os.path.join(ROOT, "demos")
sys.path.insert(0, os.path.join(DEMOS, "digits"))

#: Runs a program which runs the steps of a demo as programs.
_WITH_STEPS = """
import os, runpy, sys
from tests.processes import fork_children
fork_children()
del sys.argv[0]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def run_demo(tmp_path):
    """Return a function that runs Python with the given arguments in an empty directory, with the package importable.

    Gives the output; a failure of the program fails the test.
    """

    def run(*arguments: str) -> str:
        if os.path.basename(arguments[0]) == "run.py":
            arguments = ("-c", _WITH_STEPS, *arguments)
        path = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
        done = processes.run(arguments, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
        output = done.stdout + done.stderr
        assert done.returncode == 0, output[-4000:]
        return output

    return run
