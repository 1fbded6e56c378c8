"""What an export was checked with runs in a fork with TensorFlow imported; `test_saved_model.py` has real processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import pytest

from returnn_tf.export.saved_model import run
from tests import processes


def _forked(program: str, arguments: Sequence[str], cwd: str) -> tuple[int, str]:
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    done = processes.run([program, *arguments], cwd=cwd, env={**os.environ, "PYTHONPATH": paths})
    return done.returncode, done.stderr


@pytest.fixture(autouse=True)
def forked_checks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save the import of TensorFlow in the check of an export, but for tests with the marker ``own_process``."""
    if not request.node.get_closest_marker("own_process"):
        monkeypatch.setattr(run, "_run_program", _forked)
