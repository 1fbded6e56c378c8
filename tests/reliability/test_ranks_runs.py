"""Which launchers the tests of several processes use: those that the installed Horovod was built for."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.reliability import ranks_runs

pytestmark = pytest.mark.slow  # each starts processes


@pytest.mark.parametrize(
    "built,mpirun,name,expected",
    [
        (("mpi", "gloo"), True, "", "mpirun"),
        (("mpi", "gloo"), False, "", "horovodrun"),
        (("gloo",), True, "", "horovodrun"),
        (("gloo",), True, "horovodrun", "horovodrun"),
        (("mpi",), True, "", "mpirun"),
    ],
)
def test_the_launcher_that_works(
    monkeypatch: pytest.MonkeyPatch, built: tuple[str, ...], mpirun: bool, name: str, expected: str
) -> None:
    _pretend(monkeypatch, built, mpirun)
    assert ranks_runs.launcher(name)[0].endswith(expected)


@pytest.mark.parametrize(
    "built,mpirun,name,reason",
    [
        (("gloo",), True, "mpirun", "^Horovod was built without MPI: make venv .*libopenmpi-dev"),
        (("mpi", "gloo"), False, "mpirun", "^there is no mpirun: apt-get install openmpi-bin$"),
        (("mpi",), True, "horovodrun", "^Horovod was built without Gloo"),
        ((), True, "", "without MPI.*; Horovod was built without Gloo"),
    ],
)
def test_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, built: tuple[str, ...], mpirun: bool, name: str, reason: str
) -> None:
    _pretend(monkeypatch, built, mpirun)
    with pytest.raises(pytest.skip.Exception, match=reason):
        ranks_runs.launcher(name)


def _pretend(monkeypatch: pytest.MonkeyPatch, built: tuple[str, ...], mpirun: bool) -> None:
    monkeypatch.setattr(ranks_runs, "_built_with", lambda: (built, ""))
    monkeypatch.setattr(ranks_runs.shutil, "which", lambda _: "/usr/bin/mpirun" if mpirun else None)
    monkeypatch.setattr(ranks_runs, "_HOROVODRUN", ranks_runs.pathlib.Path(__file__))


MODULES: dict[str, Any] = {
    "no_horovod": ({}, "^Horovod is not installed"),
    "without_tensorflow": ({"tensorflow.py": "raise ImportError('has not been built')"}, "imported: .*not been built"),
    "of_gloo": ({"tensorflow.py": "mpi_built, gloo_built = (lambda: False), (lambda: True)"}, "built without MPI"),
}


@pytest.mark.parametrize("files,reason", MODULES.values(), ids=MODULES.keys())
def test_horovod_is_asked_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, files: dict[str, str], reason: str
) -> None:
    package = tmp_path / "horovod"
    package.mkdir()
    for name, text in {"__init__.py": "", **files}.items():
        (package / name).write_text(text)
    monkeypatch.setattr(ranks_runs.importlib.util, "find_spec", lambda _: object() if files else None)
    monkeypatch.setattr(ranks_runs.toy, "environment", lambda **_: {**os.environ, "PYTHONPATH": str(tmp_path)})
    monkeypatch.setattr(ranks_runs, "_built_with", ranks_runs._built_with.__wrapped__)
    with pytest.raises(pytest.skip.Exception, match=reason):
        ranks_runs.launcher("mpirun")
