"""The demos are no package: their modules are imported from their directories."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMOS = os.path.join(ROOT, "demos")
sys.path.insert(0, os.path.join(DEMOS, "digits"))


@pytest.fixture
def run_demo(tmp_path):
    """Return a function that runs Python with the given arguments in an empty directory, with the package importable.

    Gives the output; a failure of the program fails the test.
    """

    def run(*arguments: str) -> str:
        path = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    return run
