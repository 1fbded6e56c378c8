"""SVG drawing of a plan: layers top to bottom, sub-networks and loops as boxes. No libraries, no TensorFlow."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterator, Sequence, Set
from typing import Optional

from returnn_tf.graph.layer import Node

_CHAR, _LINE, _PAD, _GAP_X, _GAP_Y = 6.2, 14.0, 8.0, 18.0, 34.0
#: Of this picture alone: in a page, the rules of a picture would apply to all others, too.
_STYLE = "".join(
    ".returnn-net %s" % rule
    for rule in (
        "text{font:11px sans-serif;text-anchor:middle}",
        ".c{fill:#666}",
        ".g{text-anchor:start;font-weight:bold;fill:#446}",
        ".n{fill:#fff;stroke:#345;rx:4}",
        ".i{fill:#eef4ff}",
        ".l{fill:#e8f7e8}",
        ".b{fill:#f6f6fa;stroke:#99a;rx:8;stroke-dasharray:5 3}",
        "path{fill:none;stroke:#567;stroke-width:1.1;marker-end:url(#returnn-arrow)}",
    )
)


@dataclasses.dataclass
class _Box:
    """A layer or a group of layers; coordinates are relative to the enclosing group until they are made absolute."""

    name: str
    node: Optional[Node]
    has_loss: bool = False
    children: dict[str, _Box] = dataclasses.field(default_factory=dict)
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0

    @property
    def is_group(self) -> bool:
        return bool(self.children)


def draw_layers(nodes: Sequence[Node], with_loss: Set[Node]) -> str:
    """Return the SVG text of a network.

    :param nodes: its layers, those in loops included
    :param with_loss: those that are marked
    """
    root = _group_by_path(nodes, with_loss)
    edges = [(dep, node) for node in nodes for dep in _visible_deps(node)]
    _layout(root, edges)
    _make_absolute(root, 0.0, 0.0)
    boxes = {box.node: box for box in _walk(root) if box.node is not None}
    drawn = [box for box in _walk(root) if box is not root]
    parts = [_svg_box(box) for box in drawn if box.is_group]
    # An edge into a group from one of its own layers carries no information.
    for source, target in edges:
        a, b = boxes.get(source), boxes.get(target)
        if a is not None and b is not None and not (b.is_group and a in list(_walk(b))):
            parts.append(_svg_edge(a, b))
    parts += [_svg_box(box) for box in drawn if not box.is_group]
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" class="returnn-net" width="%d" height="%d" viewBox="0 0 %d %d">'
        '<style>%s</style><defs><marker id="returnn-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" style="fill:#567;stroke:none;marker-end:none"/></marker></defs>\n%s\n</svg>\n'
        % (root.width, root.height, root.width, root.height, _STYLE, "\n".join(parts))
    )


def _visible_deps(node: Node) -> list[Node]:
    """Return the layers that a layer needs, looking through the nodes that connect a loop with the outside."""
    found: list[Node] = []
    todo = list(node.deps)
    seen: set[Node] = set()
    while todo:
        dep = todo.pop(0)
        if dep in seen:
            continue
        seen.add(dep)
        if not dep.layer.is_connector:
            found.append(dep)
        else:
            of = dep.layer.of
            todo += [of] if isinstance(of, Node) else dep.sources
    return found


def _group_by_path(nodes: Sequence[Node], with_loss: Set[Node]) -> _Box:
    """Return boxes nested like the paths."""
    root = _Box("", None)
    for node in nodes:
        box = root
        names = [node.path] if node.extern_key is not None else node.path.split("/")
        for name in names:
            box = box.children.setdefault(name, _Box(name, None))
        box.node, box.has_loss = node, node in with_loss
    return root


def _walk(box: _Box) -> Iterator[_Box]:
    yield box
    for child in box.children.values():
        yield from _walk(child)


def _layout(box: _Box, edges: list[tuple[Node, Node]]) -> None:
    """Set the size of a box and the positions of its children: one row per distance from the inputs."""
    if not box.is_group:
        box.width = max(len(t) for t in _texts(box)) * _CHAR + 2 * _PAD
        box.height = len(_texts(box)) * _LINE + _PAD
        return
    for child in box.children.values():
        _layout(child, edges)
    rows = _rows(box, edges)
    y = _GAP_Y
    inner = max(sum(c.width for c in row) + _GAP_X * (len(row) - 1) for row in rows)
    inner = max(inner, len(box.name) * 7.5)
    for row in rows:
        x = _GAP_X + (inner - sum(c.width for c in row) - _GAP_X * (len(row) - 1)) / 2
        for child in row:
            child.x, child.y = x, y
            x += child.width + _GAP_X
        y += max(c.height for c in row) + _GAP_Y
    box.width, box.height = inner + 2 * _GAP_X, y - _GAP_Y / 2


def _rows(box: _Box, edges: list[tuple[Node, Node]]) -> list[list[_Box]]:
    """Return the children by their longest path from the inputs; within a row, each is centred under its sources."""
    owner = {inner.node: child for child in box.children.values() for inner in _walk(child) if inner.node is not None}
    feeds: dict[str, list[_Box]] = {name: [] for name in box.children}
    for source, target in edges:
        a, b = owner.get(source), owner.get(target)
        if a is not None and b is not None and a is not b:
            feeds[b.name].append(a)
    depth: dict[str, int] = {}

    def visit(child: _Box) -> int:
        if child.name not in depth:
            depth[child.name] = 0  # also ends the recursion where groups feed each other
            depth[child.name] = 1 + max([visit(f) for f in feeds[child.name]], default=-1)
        return depth[child.name]

    for child in box.children.values():
        visit(child)
    rows: list[list[_Box]] = [[] for _ in range(max(depth.values()) + 1)]
    for child in box.children.values():
        rows[depth[child.name]].append(child)
    place: dict[str, float] = {}
    for row in rows:
        row.sort(key=lambda c: sum(place.get(f.name, 0.0) for f in feeds[c.name]) / max(1, len(feeds[c.name])))
        for i, child in enumerate(row):
            place[child.name] = (i + 0.5) / len(row)
    return [row for row in rows if row]


def _make_absolute(box: _Box, x: float, y: float) -> None:
    box.x, box.y = box.x + x, box.y + y
    for child in box.children.values():
        _make_absolute(child, box.x, box.y)


def _texts(box: _Box) -> list[str]:
    node = box.node
    if node is None:
        return [box.name]
    kind = "data" if node.extern_key is not None else node.layer.class_name
    axes = " ".join(
        k if k == "B" else "%s %s" % (k, d.size or d) for k, d in zip(node.output.axis_kinds, node.output.dims)
    )
    return [box.name, kind, axes or "scalar"]


def _svg_box(box: _Box) -> str:
    rect = '<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>'
    place = (box.x, box.y, box.width, box.height)
    if box.is_group:
        kind = "" if box.node is None else " (%s)" % box.node.layer.class_name
        label = '<text class="g" x="%.1f" y="%.1f">%s</text>' % (box.x + _PAD, box.y + 16, html.escape(box.name + kind))
        return rect % (("b",) + place) + label
    style = "n"
    if box.node is not None and box.node.extern_key is not None:
        style = "n i"
    elif box.has_loss:
        style = "n l"
    text = "".join(
        '<text class="%s" x="%.1f" y="%.1f">%s</text>'
        % ("" if i == 0 else "c", box.x + box.width / 2, box.y + _LINE * (i + 1), html.escape(line))
        for i, line in enumerate(_texts(box))
    )
    return rect % ((style,) + place) + text


def _svg_edge(a: _Box, b: _Box) -> str:
    x1, y1 = a.x + a.width / 2, a.y + a.height
    x2, y2 = b.x + b.width / 2, b.y
    bend = max(12.0, abs(y2 - y1) / 2)
    return '<path d="M%.1f,%.1f C%.1f,%.1f %.1f,%.1f %.1f,%.1f"/>' % (x1, y1, x1, y1 + bend, x2, y2 - bend, x2, y2)
