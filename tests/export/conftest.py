"""What an export was checked with runs in a fork with TensorFlow imported; `test_saved_model.py` has real processes."""

from __future__ import annotations

import pytest

from returnn_tf.export.saved_model import run
from tests import processes


@pytest.fixture(autouse=True)
def forked_checks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save the import of TensorFlow in the check of an export, but for tests with the marker ``own_process``."""
    if not request.node.get_closest_marker("own_process"):
        monkeypatch.setattr(run, "_run_program", processes.run_check)
