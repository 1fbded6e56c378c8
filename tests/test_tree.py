"""The tree of tests is as its map says, and every folder is a package, so that file names may repeat."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
MAP = (ROOT / "README.md").read_text(encoding="utf8")


def _code_folders() -> list[str]:
    files = (path for path in ROOT.rglob("*.py") if "data" not in path.relative_to(ROOT).parts)
    return sorted({str(path.parent.relative_to(ROOT)) for path in files} - {"."})


def _data_folders() -> list[str]:
    return ["data/%s" % path.name for path in sorted((ROOT / "data").iterdir()) if path.is_dir()]


def test_every_folder_is_a_package() -> None:
    """Else two files of the same name could not both be imported."""
    assert (ROOT / "__init__.py").exists()
    assert [folder for folder in _code_folders() if not (ROOT / folder / "__init__.py").exists()] == []


def test_the_map_has_every_folder_and_no_other() -> None:
    rows = re.findall(r"(?m)^\| `([\w/]+)/` \|", MAP)
    assert len(rows) == len(set(rows))
    # layers/ names those below it in its own row
    below_layers = [folder for folder in _code_folders() if folder.startswith("layers/")]
    assert all("`%s/`" % folder.partition("/")[2] in MAP for folder in below_layers)
    expected = {*_code_folders(), *_data_folders(), "goldens", "tools/submit"} - set(below_layers)
    assert set(rows) == expected, "tests/README.md: add or remove the row of the folder"


def test_every_folder_has_a_budget(pytestconfig: pytest.Config) -> None:
    """Of seconds of computing, in pyproject.toml; "." is that of the files here."""
    budgets = [line.partition("=")[0].strip() for line in pytestconfig.getini("budgets")]
    folders = sorted({folder.partition("/")[0] for folder in _code_folders()})
    assert budgets == ["--fast", ".", *folders], "pyproject.toml, budgets: add or remove that of the folder"


def test_files_in_the_map_exist() -> None:
    names = re.findall(r"`([\w/]+\.(?:py|md))`", MAP) + re.findall(r"\]\(([\w/.]+)\)", MAP)
    found = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.*")}
    missing = [name for name in names if not any(path == name or path.endswith("/" + name) for path in found)]
    assert len(names) > 20 and missing == []


def test_the_map_explains_every_marker(pytestconfig: pytest.Config) -> None:
    """Those of the project, which stand in pyproject.toml."""
    ours = [line.partition(":")[0] for line in pytestconfig.getini("markers") if re.match(r"\w+: ", line)]
    assert {"slow", "long", "gpu"} <= set(ours)
    explained = re.findall(r"(?m)^\* `(\w+)`: ", MAP)
    assert set(explained) <= set(ours) and {"slow", "long", "gpu"} <= set(explained)
