"""The table of what changes with behavior_version has the versions that the code compares with, and no other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import returnn_tf
from returnn_tf.config.behavior_versions import CHANGES, NEWEST_VERSION


def _compared(path: Path) -> Iterator[int]:
    text = path.read_text(encoding="utf8")
    tree = ast.parse(text if "behavior_version" in text else "")
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and ast.unparse(node.left).rpartition(".")[2] == "behavior_version":
            (right,) = node.comparators
            value = right.value if isinstance(right, ast.Constant) else constants[ast.unparse(right)]
            if value is not None:
                yield value


def test_versions_of_the_code_are_those_of_the_table() -> None:
    found = {version for path in Path(returnn_tf.__path__[0]).rglob("*.py") for version in _compared(path)}
    assert found == set(CHANGES)
    assert list(CHANGES) == sorted(CHANGES) and NEWEST_VERSION == 30
    assert all(text.endswith(".") for texts in CHANGES.values() for text in texts)
