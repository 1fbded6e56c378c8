"""Runs shared by the tests of reliability."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.reliability import toy


@pytest.fixture(scope="session")
def warm() -> Iterator[toy.Warm]:
    """Start runs of the program quickly."""
    with toy.Warm() as server:
        yield server


@pytest.fixture(scope="session")
def undisturbed(warm: toy.Warm, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the folder of a toy run which nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    toy.write_config(folder)
    assert warm.run(folder) == 0, toy.text_of(folder)
    return folder
