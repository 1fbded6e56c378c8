"""The guided tours of docs/develop/tours.md: every file that they name exists, and defines what they name in it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "develop" / "tours.md").read_text(encoding="utf-8")
TOURS = dict(re.findall(r"^## (.*?)$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
STOP = re.compile(r"^\d+\. `([^`]+\.py)`: ((?:`[^`]+`(?:, )?)+)", re.MULTILINE)


def _stops(tour: str) -> list[tuple[str, list[str]]]:
    """Return the files of a tour, each with what it is read for."""
    text = re.sub(r"\n +", " ", TOURS[tour])
    return [(path, re.findall(r"`([^`]+)`", names)) for path, names in STOP.findall(text)]


def _defined(path: Path) -> set[str]:
    """Return the classes, methods and functions that a module defines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = {node.name for node in tree.body if isinstance(node, (ast.ClassDef, *functions))}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found |= {"%s.%s" % (node.name, part.name) for part in node.body if isinstance(part, functions)}
    return found


def test_there_are_five_tours():
    assert len(TOURS) == 5


@pytest.mark.parametrize("tour", TOURS)
def test_all_that_a_tour_names_exists(tour):
    stops = _stops(tour)
    numbered = re.findall(r"^\d+\. ", TOURS[tour], re.MULTILINE)
    assert len(numbered) == len(stops) <= 12 and len(dict(stops)) == len(stops)
    for path, names in stops:
        file = ROOT / "returnn_tf" / path
        assert file.exists(), path
        assert set(names) <= _defined(file), path
