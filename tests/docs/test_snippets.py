"""The code that the pages of docs/ show runs and gives the output that they show."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.docs.run_page import blocks_of, is_run, same

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
WITH_CODE = [
    path.relative_to(ROOT).as_posix() for path in PAGES if any(map(is_run, blocks_of(path.read_text(encoding="utf8"))))
]


@pytest.mark.parametrize("page", WITH_CODE)
def test_code_runs(page: str, tmp_path: pathlib.Path) -> None:
    """In a process of its own, since layers that a page registers would be seen by other tests."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", "tests.docs.run_page", str(ROOT / page)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"ran [1-9]\d* blocks", done.stdout)


def test_pages_in_folders_are_run() -> None:
    assert {"README.md", "docs/data.md", "docs/develop/extending.md"} <= set(WITH_CODE)


def test_blocks() -> None:
    page = "# X\n\n<!-- file: a.config -->\n```python\nx = 1\n```\n\ntext\n\n```console\n$ returnn-tf layers\n```\n"
    found = [(block.mark, block.language, block.text, block.line) for block in blocks_of(page)]
    assert found == [("file: a.config", "python", "x = 1\n", 5), ("", "console", "$ returnn-tf layers\n", 11)]
    assert [is_run(block) for block in blocks_of(page)] == [False, True]


@pytest.mark.parametrize(
    "output, expected, result",
    [
        ("a\nb\n", "a\nb", True),
        ("a\nb\nc\n", "a\n...\nc", True),
        ("a\nb", "a", False),
        ("a", "", True),
        ("x 1.5 y", "x ... y", True),
    ],
)
def test_outputs_are_compared(output: str, expected: str, result: bool) -> None:
    assert same(output, expected) is result
