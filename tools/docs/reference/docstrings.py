"""Docstrings as Markdown: code, lists, equations, literal blocks, parameters, examples."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

_CODE = re.compile(r"``(.+?)``|`([^`]+)`", re.S)
_FIELD = re.compile(r"^:(param|return|returns|raises|type|rtype)\s*([^:]*):\s*(.*)$", re.S)
_FIELD_TITLES = {"return": "Returns", "returns": "Returns", "raises": "Raises"}
#: How the blocks begin that are shown in other ways.
_EXAMPLE = "Example::"
_TABLE = re.compile(r"^=+( +=+)+$", re.M)


def to_markdown(doc: str) -> str:
    """Return the Markdown of a docstring without indentation.

    A paragraph of lines of code is one of equations. What is indented below ``::`` is a block of code; that of
    ``Example::`` is left out.
    """
    parts: list[str] = []
    paragraphs = _paragraphs(doc)
    while paragraphs:
        text = paragraphs.pop(0)
        if text.strip() == _EXAMPLE:
            while paragraphs and paragraphs[0].startswith("    "):
                paragraphs.pop(0)
        elif _TABLE.search(text):
            parts.append(_table(text))
        elif text.startswith(">>> "):
            parts.append(_fenced(re.sub(r" *# doctest:.*", "", text), "pycon"))
        elif text.startswith("    "):
            while paragraphs and paragraphs[0].startswith("    "):
                text += "\n\n" + paragraphs.pop(0)
            parts.append(_fenced(textwrap.dedent(text), "python"))
        elif text.startswith(":"):
            parts.append(_fields(text))
        else:
            parts.append(_equations(text) or _prose(text))
    return "\n\n".join(part for part in parts if part)


def doc_of(what: Any) -> str:
    """Return the docstring as Markdown; "" if there is none of its own."""
    return to_markdown(inspect.getdoc(what) or "")


def inline(text: str) -> str:
    """Return a text with code in backticks as Markdown, in which nothing else is markup."""
    parts, end = [], 0
    for match in _CODE.finditer(text):
        parts += [_escaped(text[end : match.start()]), code(" ".join((match[1] or match[2]).split()))]
        end = match.end()
    return "".join(parts) + _escaped(text[end:])


def code(text: str) -> str:
    """Return a text as inline code."""
    return "`` %s ``" % text if "`" in text else "`%s`" % text


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|{}#])", r"\\\1", text).replace("\\<", "&lt;").replace("\\>", "&gt;")


def _fenced(text: str, language: str) -> str:
    return "```%s\n%s\n```" % (language, text.strip("\n"))


def _paragraphs(doc: str) -> list[str]:
    return [part for part in re.split(r"\n[ \t]*\n", doc.strip("\n")) if part.strip()]


def _equations(text: str) -> str:
    """Return a block of code with one equation a line if the paragraph has nothing else, else ""."""
    parts = _CODE.findall(text)
    rest = _CODE.sub("", text).strip(" \n.,;")
    if rest or not any("=" in (double or single) for double, single in parts):
        return ""
    lines = [line for double, single in parts for line in re.split(r"; {1,2}", " ".join((double or single).split()))]
    return _fenced("\n".join(lines), "text")


def _table(text: str) -> str:
    """Return a table whose columns are marked by lines of =. The first row is the head.

    A line without a first cell, or after a first cell that ends with a comma, continues its row.
    """
    lines = text.split("\n")
    marks = [match.span() for match in re.finditer("=+", next(line for line in lines if _TABLE.match(line)))]
    spans = [(start, None if (start, end) == marks[-1] else end) for start, end in marks]
    rows: list[list[str]] = []
    for line in lines:
        if not _TABLE.match(line):
            cells = [line[start:end].strip() for start, end in spans]
            if rows and (not cells[0] or rows[-1][0].endswith(",")):
                rows[-1] = [(" ".join(both)).strip() for both in zip(rows[-1], cells)]
            else:
                rows.append(cells)
    shown = ["| %s |" % " | ".join(map(inline, row)) for row in rows]
    return "\n".join([shown[0], "|---" * len(spans) + "|", *shown[1:]])


def _prose(text: str) -> str:
    """Return a paragraph, whose lists become items of Markdown and whose lines of code keep their line breaks."""
    blocks: list[list[str]] = [[]]
    for line in text.split("\n"):
        if re.match(r"^ *[*-] ", line):
            blocks.append([line.strip()])
        elif blocks[-1] and blocks[-1][0][:2] in ("* ", "- ") and not line.startswith(" "):
            blocks.append([line])
        else:
            blocks[-1].append(line.strip())
    parts: list[str] = []
    for lines in (block for block in blocks if block):
        if lines[0][:2] in ("* ", "- "):
            item = "* " + inline(" ".join([lines[0][2:], *lines[1:]]))
            parts.append(item if not parts or parts[-1].lstrip().startswith("* ") else "\n" + item)
        else:
            # formulas below each other
            joined = re.sub(r"(?<=\n)(``[^`\n]*=.*)\n(?=``[^`\n]*=)", "\\1\0", "\n" + "\n".join(lines))
            joined = joined.strip("\n").replace("\n", " ")
            parts.append(inline(joined).replace("\0", "  \n").removesuffix("::"))
    return "\n".join(parts).strip()


def _fields(text: str) -> str:
    """Return the parameters, result and errors as a list."""
    items = []
    for field in re.split(r"\n(?=:)", text):
        match = _FIELD.match(field)
        if match is None:
            continue
        kind, name, rest = match[1], match[2].strip(), inline(" ".join(match[3].split()))
        label = code(name) if kind == "param" else _FIELD_TITLES.get(kind, kind)
        if kind == "raises" and name:
            label += " " + code(name)
        items.append("* %s: %s" % (label, rest))
    return "\n".join(items)
