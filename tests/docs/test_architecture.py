"""The drawing of the floors in docs/develop/architecture.md is that of the import test, and names every folder."""

import re

from tests.docs.test_snippets import ROOT
from tools.lint.imports import FLOORS, INNER_FLOORS

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
    """Below the line of the folder, its folders and modules stand in the order of their floors, top to bottom."""
    for folder in ("compiler", "engine", "layers"):
        rows = {name: number for number, row in enumerate(INNER_FLOORS[folder]) for name in row}
        start = DRAWING.index(" %s/ " % folder)
        block = re.match(r".*\n((?: {6}.*\n)*)", DRAWING[start:])[1]
        drawn = [names_of(line) for line in block.splitlines()]
        assert sorted(name for names in drawn for name in names) == sorted(rows)
        numbers = [rows[name] for names in drawn for name in names]
        assert numbers == sorted(numbers, reverse=True)
