"""Run the code of a page: ``python -m tests.docs.run_page PAGE.md`` in an empty folder.

What a page shows is run from top to bottom, Python blocks in one namespace:

* ```` ```python ```` and ```` ```console ````: run. In a console block, each line after ``$`` is an argument list of
  ``returnn-tf``, and the lines up to the next ``$`` are its output. A line ``...`` stands
  for any number of lines, and ``...`` in a line for anything.
* after ``<!-- file: NAME -->``, a block of any language is written to a file.
* after ``<!-- not run: REASON -->`` it is left out.

Expected output of Python blocks stands in a ```` ```text ```` block after ``<!-- output -->``.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from returnn_tf.cli.main import main as returnn_tf_main
from returnn_tf.logging.handlers import PACKAGE
from tests.processes import optimize_graphs, trace_once

_BLOCK = re.compile(r"^(?:<!-- (?P<mark>[^>]*?) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A code block of a page.

    :param mark: text of the comment before it, e.g. "file: my.config"
    :param line: where its code begins, counted from 1
    """

    mark: str
    language: str
    text: str
    line: int


def blocks_of(page: str) -> Iterator[Block]:
    """Yield the code blocks of a page.

    :param page: its text
    """
    for match in _BLOCK.finditer(page):
        line = page.count("\n", 0, match.start("text")) + 1
        yield Block(match["mark"] or "", match["language"], match["text"], line)


def is_run(block: Block) -> bool:
    """Return whether a block is run: Python that is not the text of a file, and commands."""
    return block.language in ("python", "console") and not block.mark.startswith(("file: ", "not run", "output"))


def run_page(path: str) -> int:
    """Run all blocks in the current folder; return how many were run.

    :raises AssertionError: an output differs from what the page shows
    """
    os.environ["COLUMNS"] = "120"  # pages are written for this width
    with open(path, encoding="utf8") as file:
        page = file.read()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    output, count = "", 0
    for block in blocks_of(page):
        where = "%s:%d" % (path, block.line)
        if block.mark.startswith("file: "):
            _write(block.mark[len("file: ") :], block.text)
        elif block.mark == "output":
            assert same(output, block.text), "%s: the output is\n%s" % (where, output)
        elif block.language == "python" and not block.mark.startswith("not run"):
            count += 1
            output = _run_python(block.text, where, namespace)
        elif block.language == "console" and not block.mark.startswith("not run"):
            count += 1
            _run_console(block.text, where)
    return count


def _write(name: str, text: str) -> None:
    os.makedirs(os.path.dirname(os.path.abspath(name)), exist_ok=True)
    with open(name, "w", encoding="utf8") as file:
        file.write(text)


def _run_python(text: str, where: str, namespace: dict[str, Any]) -> str:
    path, _, line = where.rpartition(":")
    code = compile("\n" * (int(line) - 1) + text, path, "exec")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(code, namespace)
    return output.getvalue()


def _run_console(text: str, where: str) -> None:
    for command in re.split(r"^\$ ", text, flags=re.M)[1:]:
        line, _, expected = command.partition("\n")
        words = shlex.split(line, comments=True)
        assert words[0] == "returnn-tf", "%s: only returnn-tf is run" % where
        with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(output):
            code = returnn_tf_main(words[1:])
        assert bool(code) == expected.startswith("error:"), "%s: exit code %d\n%s" % (where, code, output.getvalue())
        assert same(output.getvalue(), expected), "%s: %s gives\n%s" % (where, line, output.getvalue())


def same(output: str, expected: str) -> bool:
    """Return whether an output fits what a page shows, apart from white space at the ends of lines.

    :param expected: with lines ``...`` for any number of lines; empty: the output is not shown
    """
    if not expected.strip():
        return True
    lines = [line.rstrip() for line in expected.strip().splitlines()]
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else re.sub(r"(\\\.){3}", ".*", re.escape(line)) + r"\n" for line in lines
    )
    got: list[str] = [line.rstrip() for line in output.strip().splitlines()]
    return re.fullmatch(pattern, "\n".join(got) + "\n") is not None


if __name__ == "__main__":
    optimize_graphs(False)  # what pages train and search runs few steps
    trace_once()
    # Whether native ops have to be compiled first depends on the machine: a page shows what it prints with all of them.
    logging.getLogger(PACKAGE).addFilter(lambda record: not record.getMessage().startswith("Compiling "))
    print("ran %d blocks" % run_page(sys.argv[1]))
