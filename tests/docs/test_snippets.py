"""The code that the pages of docs/ show runs and gives the output that they show."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.docs.run_page import blocks_of, same

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "native_ops" / "README.md", *ROOT.glob("docs/*.md")]
WITH_CODE = [
    "README",
    "docs/data",
    "docs/export",
    "docs/extending",
    "docs/jobs",
    "docs/meta-graphs",
    "docs/planning",
    "docs/precision",
    "docs/python-api",
    "docs/tools",
]


@pytest.mark.parametrize("page", WITH_CODE)
def test_code_runs(page, tmp_path):
    """In a process of its own, since layers that a page registers would be seen by other tests."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", "tests.docs.run_page", str(ROOT / (page + ".md"))]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"ran [1-9]\d* blocks", done.stdout)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_blocks():
    page = "# X\n\n<!-- file: a.config -->\n```python\nx = 1\n```\n\ntext\n\n```console\n$ returnn-tf layers\n```\n"
    found = [(block.mark, block.language, block.text, block.line) for block in blocks_of(page)]
    assert found == [("file: a.config", "python", "x = 1\n", 5), ("", "console", "$ returnn-tf layers\n", 11)]


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
def test_outputs_are_compared(output, expected, result):
    assert same(output, expected) is result
