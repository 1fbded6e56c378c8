"""llms.txt has each section with its pages, their first sentences, and links to their Markdown."""

from __future__ import annotations

import re

import pytest

from tools.docs.llms import llms_txt, summary_of
from tools.docs.pages import all_pages

PAGES = {
    "README.md": "# Home\n\n| a | b |\n|---|---|\n",
    "guide/README.md": "# Guides\n\n* [Long](long.md)\n* [Short](short.md)\n",
    "guide/long.md": "# Long `runs`\n\nWhat takes **weeks**. And more.\n",
    "guide/short.md": "# Short [ones]\n\nWhat does not:\n\n```\nx\n```\n",
    "reference/README.md": "# Reference\n",
    "reference/layers/README.md": "# Layers\n\nAll of them.\n",
    "reference/layers/conv.md": "# conv\n\nConvolution.\n",
    "errors/README.md": "# Errors\n\nWhat went wrong.\n",
}


def test_the_form() -> None:
    assert llms_txt(PAGES, "tool", "What it is", "https://docs.example/") == (
        "# tool\n\n> What it is\n"
        "\n## Home\n\n- [Home](https://docs.example/README.md)\n"
        "\n## Guide\n\n- [Guides](https://docs.example/guide/README.md)\n"
        "- [Long runs](https://docs.example/guide/long.md): What takes weeks.\n"
        "- [Short (ones)](https://docs.example/guide/short.md): What does not.\n"
        "\n## Reference\n\n- [Reference](https://docs.example/reference/README.md)\n"
        "- [Layers](https://docs.example/reference/layers/README.md): All of them.\n"
        "\n## Optional\n\n- [Errors](https://docs.example/errors/README.md): What went wrong.\n"
    )


@pytest.mark.parametrize(
    "page, summary",
    [
        ("# A\n\nOne. Two.\n", "One."),
        ("# A\nOne\nline. Two.\n", "One line."),
        ("# A\n\n<!-- file: a.config -->\n\nOne.\n", "One."),
        ("# A\n\n## B\n\n![picture](a.png)\n\nOne.\n", "One."),
        (
            "# A\n\nSee [one](one.md#x) e.g. here, version 2.1 of `**b`. `two` too.\n",
            "See one e.g. here, version 2.1 of `**b`.",
        ),
        ("# A\n\nWhy? Because.\n", "Why?"),
        ("# A\n\nNo end", "No end"),
        ("# A\n\n* item\n\nOne.\n", ""),
        ("# A\n\n```\n# B\n```\n\nThe first of these.\n", ""),
        ("# A\n", ""),
        ("", ""),
    ],
)
def test_summaries(page: str, summary: str) -> None:
    assert summary_of(page) == summary


def test_of_all_pages() -> None:
    text = llms_txt(all_pages(), "returnn_tf", "Summary", "")
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", text, re.M)
    assert len(links) == len(set(links)) and set(links) <= set(all_pages())
    written = {name for name in all_pages() if re.match(r"(guide/|cookbook/)?[\w-]+\.md$", name)}
    assert written <= set(links)
    assert re.findall(r"^#+ .*", text, re.M)[0] == "# returnn_tf" and text.count("\n# ") == 0
