"""The page of a report: one self-contained HTML file, for screens and paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from returnn_tf.util.html import Html, escaped

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, "Segoe UI", "Noto Sans", sans-serif; color: #1b1f24; background: #fff; margin: 0; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 1.6em; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.2em; margin: 36px 0 10px; padding-bottom: 4px; border-bottom: 1px solid #d0d7de; }
h3 { font-size: 1em; margin: 20px 0 6px; overflow-wrap: anywhere; }
p { margin: 6px 0; }
.lead { color: #57606a; overflow-wrap: anywhere; }
nav { margin: 14px 0 0; font-size: 0.93em; display: flex; flex-wrap: wrap; gap: 2px 14px; }
nav a { color: #0550ae; text-decoration: none; white-space: nowrap; }
.wide { overflow-x: auto; margin: 8px 0; /* a shadow at each side where there is more to see */
  background: linear-gradient(to right, #fff 30%, #fff0) left, linear-gradient(to left, #fff 30%, #fff0) right,
    linear-gradient(to right, #1b1f2440, #1b1f2400) left, linear-gradient(to left, #1b1f2440, #1b1f2400) right;
  background-repeat: no-repeat; background-size: 40px 100%, 40px 100%, 16px 100%, 16px 100%;
  background-attachment: local, local, scroll, scroll; }
.wide > table { width: max-content; min-width: min(100%, 20em); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { background: #f6f8fa; font-weight: 600; }
th, td { border: 1px solid #d0d7de; padding: 3px 10px !important; overflow-wrap: break-word; }
td { max-width: 36em; }
.texts td, .texts th { max-width: 18em; }
td code { display: block; min-width: 14em; overflow-wrap: anywhere; }
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 0.9em; }
figure { margin: 12px 0; }
figure > svg { max-width: 100%; height: auto; display: block; }
figcaption { color: #57606a; font-size: 0.92em; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; margin: 18px 0 0; }
.facts div { border: 1px solid #d0d7de; border-radius: 6px; padding: 8px 12px; }
.facts b { display: block; font-size: 1.15em; overflow-wrap: anywhere; }
.facts span { color: #57606a; font-size: 0.88em; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(100px, 1fr)); gap: 10px; margin: 4px 0 14px; }
.tiles div { font-size: 0.8em; color: #57606a; }
.tiles img { display: block; width: 100%; border: 1px solid #d0d7de; image-rendering: pixelated; }
summary { cursor: pointer; color: #0550ae; margin: 6px 0; }
@media screen and (max-width: 640px) {
  main { padding: 14px 12px 40px; } body { font-size: 14px; }
  figure > svg { width: 100%; }
}
@media print {
  nav { display: none; } main { max-width: none; padding: 0; } h2, h3 { break-after: avoid; }
  figure, tr { break-inside: avoid; } .wide { overflow: visible; } body { font-size: 11px; }
  .wide > table { width: auto; max-width: 100%; } th, td { padding: 2px 4px !important; overflow-wrap: anywhere; }
  td[style*="right"] { overflow-wrap: normal; } .wide > table { font-size: 9px; }
}
"""


class Section(NamedTuple):
    """A part of the page.

    :param title: heading; its words make the anchor
    :param body: HTML
    """

    title: str
    body: str

    @property
    def anchor(self) -> str:
        """Return the name to link to."""
        return "".join(c if c.isalnum() else "-" for c in self.title.lower())


def page(title: str, lead: str, facts: Sequence[tuple[str, str]], sections: Sequence[Section]) -> str:
    """Return the text of the page.

    :param lead: a line below the title
    :param facts: (name, value) of the boxes at the top
    """
    links = "".join('<a href="#%s">%s</a>' % (part.anchor, escaped(part.title)) for part in sections)
    boxes = "".join("<div><b>%s</b><span>%s</span></div>" % (escaped(value), escaped(name)) for name, value in facts)
    bodies = "".join(
        '<section><h2 id="%s">%s</h2>%s</section>\n' % (part.anchor, escaped(part.title), part.body)
        for part in sections
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<title>%s</title><style>%s</style></head>\n<body><main><h1>%s</h1>"
        '<p class="lead">%s</p><div class="facts">%s</div><nav>%s</nav>\n%s</main></body></html>\n'
        % (escaped(title), _STYLE, escaped(title), escaped(lead), boxes, links, bodies)
    )


def figure(svg: str, caption: str = "") -> Html:
    """Return a picture with a caption."""
    text = "<figcaption>%s</figcaption>" % escaped(caption) if caption else ""
    return Html("<figure>%s%s</figure>" % (svg, text))


def tiles(pictures: Sequence[tuple[str, str]], shape: float) -> Html:
    """Return small pictures side by side.

    :param pictures: (URL, caption)
    :param shape: height / width
    """
    each = "<div><img src='%s' alt='%s' style='aspect-ratio:1/%.3g'>%s</div>"
    found = (each % (url, escaped(caption), shape, escaped(caption)) for url, caption in pictures)
    return Html("<div class='tiles'>%s</div>" % "".join(found))


def wide(content: str, *, texts: bool = False) -> Html:
    """Return content that may be wider than the page, with its own scroll bar.

    :param texts: whether it is a table with columns of texts, to be compared side by side
    """
    return Html('<div class="wide%s">%s</div>' % (" texts" * texts, content))


def heading(text: str) -> Html:
    """Return the heading of a part of a section."""
    return Html("<h3>%s</h3>" % escaped(text))
