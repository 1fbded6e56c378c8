"""Tables of declared options."""

from __future__ import annotations

import html
from collections.abc import Sequence

from returnn_tf.config.options import OptionInfo

_HEAD = '<div class="options"><table><thead><tr><th>option</th><th>default</th><th>meaning</th></tr></thead><tbody>'


def option_table(infos: Sequence[OptionInfo]) -> str:
    """Return a table in HTML: name and type, default, help. In Markdown, types with | would end the cells."""
    if not infos:
        return "None."
    rows = []
    for info in infos:
        default = "required" if info.required else "<code>%s</code>" % breakable(repr(info.default))
        rows.append(
            "<tr><td><code>%s</code><br><small>%s</small></td><td>%s</td><td>%s</td></tr>"
            % (html.escape(info.name), breakable(info.type_name), default, with_code(info.description))
        )
    return "\n".join([_HEAD, *rows, "</tbody></table></div>"])


def with_code(text: str) -> str:
    """Return a help text as HTML."""
    parts = text.replace("``", "`").split("`")
    if len(parts) % 2 == 0:
        return html.escape(text)
    return "".join("<code>%s</code>" % html.escape(p) if i % 2 else html.escape(p) for i, p in enumerate(parts))


def breakable(text: str) -> str:
    """Return a text as HTML that may be broken after commas, bars and opening brackets."""
    return html.escape(text, quote=False).replace(",", ",<wbr>").replace("[", "[<wbr>").replace("_", "_<wbr>")
