"""The drawing of the floors in docs/develop/architecture.md is that of the import test, and names every folder."""

import re

from tests.docs.test_snippets import ROOT
from tests.test_imports import FLOORS, INNER_FLOORS

PAGE = (ROOT / "docs" / "develop" / "architecture.md").read_text(encoding="utf8")
DRAWING = re.search(r"## Floors.*?```text\n(.*?)```", PAGE, re.S)[1]


def names_of(line):
    """Return the folders and modules in the left column of a line."""
    return [name.rstrip("/").replace(".py", "") for name in re.findall(r"[a-z_]+(?:/|\.py)?", line[4:30])]


def test_floors():
    floors = {}
    for line in DRAWING.splitlines():
        number = re.match(r" ?(\d+) ", line)
        if number:
            current = floors.setdefault(int(number[1]), set())
        if number or re.match(r" {4}\w", line):
            current.update(names_of(line))
    assert [floors[number] - {"native_ops"} for number in sorted(floors)] == [set(floor) for floor in FLOORS]


def test_inner_floors_of_the_largest_folders():
    for folder in ("engine", "layers", "network"):
        for name in [name for floor in INNER_FLOORS[folder] for name in floor]:
            assert name in PAGE or (ROOT / "returnn_tf" / folder / (name + ".py")).exists(), name
