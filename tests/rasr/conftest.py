"""What the tests with a stand-in for RASR need."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data" / "rasr" / "dataset"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a copy of the recorded files, which is the working directory."""
    shutil.copytree(DATA, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RASR_EXTRA", "--*.foo=1 --*.bar=2")
    monkeypatch.delenv("NOT_SET_VARIABLE", raising=False)
    return tmp_path
