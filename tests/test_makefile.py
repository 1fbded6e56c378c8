"""`make venv` builds Horovod when it has to and only then. Python and pip are stand-ins that log their calls."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Callable

import pytest

MAKEFILE = Path(__file__).parents[1] / "Makefile"
NEEDED = ("sh", "make", "touch", "rm", "env", "grep", "printf")
#: Knows by the file `built` how "Horovod" was built; installing it writes that, unless the file `broken` is there.
PYTHON = """#!/bin/sh
echo "$*" >>calls
case "$*" in
*mpi_built*) want=gloo; case "$*" in *"'mpi' == 'mpi'"*) want=mpi;; esac; grep -qx $want built;;
*importlib.metadata*) echo horovod==1.2.3;;
*force-reinstall*horovod==1.2.3) [ ! -e broken ] || exit 1
  echo built >>builds
  [ -n "$HOROVOD_WITH_MPI" ] && echo mpi >built || echo gloo >built;;
esac
"""

Venv = Callable[..., str]


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    """Return a function that runs `make venv`, with or without mpicxx, and returns the output."""
    shutil.copy(MAKEFILE, tmp_path)
    for name in ("setup.py", "pyproject.toml"):
        (tmp_path / name).touch()
    tools = tmp_path / "tools"
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    tools.mkdir()
    for name in NEEDED:
        (tools / name).symlink_to(shutil.which(name) or pytest.fail("%s is missing" % name))
    for path in (tmp_path / ".venv" / "bin" / "python", tools / "python3"):
        path.write_text(PYTHON)
        path.chmod(0o755)

    def run(mpi: bool, target: str = "venv", *, headers: bool = True) -> str:
        compiler = tools / "mpicxx"
        compiler.unlink(missing_ok=True)
        if mpi:
            compiler.write_text("#!/bin/sh\nexit %d\n" % (not headers))
            compiler.chmod(0o755)
        done = subprocess.run(
            ["make", target], cwd=tmp_path, env={"PATH": str(tools)}, capture_output=True, text=True, check=True
        )
        return done.stdout + done.stderr

    return run


def _builds(folder: Path) -> int:
    path = folder / "builds"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize(
    "mpi,builds",
    [
        ([False, False], [1, 1]),
        ([True, True], [1, 1]),
        ([False, True, True], [1, 2, 2]),  # MPI was installed later
        ([True, False, False], [1, 2, 2]),
        ([False, True, False], [1, 2, 3]),
    ],
)
def test_built_again_when_mpi_comes_or_goes(venv: Venv, tmp_path: Path, mpi: list[bool], builds: list[int]) -> None:
    found = []
    for there in mpi:
        venv(there)
        found.append(_builds(tmp_path))
        assert (tmp_path / "built").read_text() == ("mpi\n" if there else "gloo\n")
    assert found == builds


def test_mpicxx_without_the_headers_of_mpi_counts_as_none(venv: Venv, tmp_path: Path) -> None:
    """Debian's package openmpi-bin alone is such a case."""
    venv(True, headers=False)
    assert (tmp_path / "built").read_text() == "gloo\n"
    venv(True)
    assert (tmp_path / "built").read_text() == "mpi\n"


def test_a_fitting_one_is_not_built_again(venv: Venv, tmp_path: Path) -> None:
    """Not even when the environment changes; an older Makefile may have built it too."""
    (tmp_path / "built").write_text("mpi\n")
    venv(True)
    (tmp_path / "pyproject.toml").touch()
    venv(True, "horovod")
    assert _builds(tmp_path) == 0


def test_a_failure_is_reported_once(venv: Venv, tmp_path: Path) -> None:
    """The older build stays, and `make horovod` tries again."""
    venv(False)
    (tmp_path / "broken").touch()
    assert "Horovod can't be built here" in venv(True)
    assert "Horovod" not in venv(True)
    assert (tmp_path / "built").read_text() == "gloo\n"
    (tmp_path / "broken").unlink()
    venv(True, "horovod")
    assert (tmp_path / "built").read_text() == "mpi\n"


def test_the_docs_install_their_packages_once(venv: Venv, tmp_path: Path) -> None:
    assert "tools.docs.build" not in venv(False)  # nor are they part of the environment
    assert not (tmp_path / ".venv" / ".docs-packages").exists()
    (tmp_path / "calls").unlink(missing_ok=True)
    for _ in range(2):
        venv(False, "docs")
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call for call in calls if ".[docs]" in call] == [calls[0]]
    assert calls.count("-m tools.docs.build") == 2
