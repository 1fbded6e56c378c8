"""Self-contained HTML for notebooks and reports: tables, texts that fold."""

from __future__ import annotations

import html
from collections.abc import Sequence

_CELL = "text-align:%s;vertical-align:top;padding:1px 10px"


class Html(str):
    """HTML, which is not escaped."""


def escaped(value: object) -> str:
    """Return a value as HTML; `Html` as it is."""
    return str(value) if isinstance(value, Html) else html.escape(str(value))


def table(header: Sequence[object], rows: Sequence[Sequence[object]], *, numbers: Sequence[int] = ()) -> Html:
    """Return a table.

    :param header: of the columns; empty: none
    :param numbers: the columns that are aligned to the right
    """

    def row(cells: Sequence[object], tag: str) -> str:
        align = ("right" if column in numbers else "left" for column in range(len(cells)))
        return "<tr>%s</tr>" % "".join(
            "<%s style='%s'>%s</%s>" % (tag, _CELL % side, escaped(cell), tag) for cell, side in zip(cells, align)
        )

    head = "<thead>%s</thead>" % row(header, "th") if header else ""
    return Html("<table>%s<tbody>%s</tbody></table>" % (head, "".join(row(cells, "td") for cells in rows)))


def code(text: object) -> Html:
    """Return a text in the font of code."""
    return Html("<code>%s</code>" % escaped(text))


def folded(title: object, content: str, *, opened: bool = False) -> Html:
    """Return content that shows when its title is clicked."""
    return Html("<details%s><summary>%s</summary>%s</details>" % (" open" * opened, escaped(title), content))


def paragraph(text: object) -> Html:
    """Return a paragraph."""
    return Html("<p>%s</p>" % escaped(text))


def shortened(text: str, most: int = 200) -> str:
    """Return a text cut to a number of characters."""
    return text if len(text) <= most else text[: most - 3] + "..."
